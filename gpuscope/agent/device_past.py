"""Answer ``recent`` about the GPUs of this host: what the driver itself sampled before."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Sequence

from ..wire import frames

if TYPE_CHECKING:
    from .device_workers import DeviceWorker


def answer(request: frames.Request, workers: Sequence[DeviceWorker]) -> frames.Result:
    """Ask the driver. The calling thread must be one that may wait.

    A device that hangs is left out.
    """
    pasts = []
    for worker in workers:
        identity = worker.identity
        if identity is None or worker.late(time.monotonic()) is not None:
            continue
        past = worker.device.past()
        if past:
            pasts.append([identity.uuid, past])
    return frames.Result(request.id, {"devices": pasts})
