"""Measure how much of this host's GPU memory a training takes besides its tensors.

``gpuscope predict --measure`` measures this once and saves the result. A child process makes CUDA
load, stage by stage, what trainings load, and the driver reports the used memory after each stage.
Where the driver does not report memory by process (a container hides it), the difference of the
whole device's memory is used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from typing import Any

from ....errors import UserError
from ....exit_status import ExitStatus
from ....model.cuda_devices import visible_in_order
from ....predict.context_memory import ContextMemory, keep
from ....process.line_child import ChildError, Ended, Late, LineChild
from ....store.view import DeviceView, HostView
from ....text.units import MIB, bytes_text
from ....wire.clean import clean
from ... import output
from ..lab import devices as lab_devices

LEAST_ERROR = 16 * MIB
"""The error of one reading: the driver counts in pages of 2 MiB, and a reading is a moment late."""
SETTLE_SECONDS = 0.4
MODULE = "gpuscope.predict.tracing.context"


class ContextNotMeasured(UserError):
    """The memory that a training takes in addition to its tensors could not be measured."""


def run(args: argparse.Namespace) -> int:
    try:
        gpu, torch, found, stages = measure(args.timeout)
        path = keep(gpu, torch, found)
    except ContextNotMeasured as trouble:
        if args.json:
            error = {"what": trouble.what, "why": trouble.why, "next": trouble.next}
            print(output.dump({"outside": None, "error": error, "exit_code": trouble.exit_status}))
        raise
    except OSError as error:
        raise UserError("It was measured, but could not be saved.", clean(str(error))) from None
    if args.json:
        answer = {"gpu": gpu, "torch": torch, "outside": asdict(found), "stages": stages}
        print(output.dump({**answer, "exit_code": ExitStatus.OK}))
        return ExitStatus.OK
    bar = f"± {bytes_text(found.error_bytes)}"
    print(
        f"{clean(gpu)}, torch {clean(torch)}: {bytes_text(found.context_bytes)} outside torch's "
        f"allocator, {bar};"
    )
    print(
        f"the driver keeps {bytes_text(found.driver_bytes)}. Saved in {path}: predictions for "
        f"this GPU now use it."
    )
    for name, size in stages.items():
        print(f"  after {name:10} {bytes_text(size):>10}")
    return ExitStatus.OK


def measure(
    seconds: float,
    command: list[str] | None = None,
    look: Callable[[], HostView] = lab_devices.look,
) -> tuple[str, str, ContextMemory, dict[str, int]]:
    """Return the card's name, torch's version, notes, and non-allocator bytes by stage.

    Tests pass ``command`` and ``look``. Raises :class:`ContextNotMeasured`.
    """
    before = look()
    if not before.devices:
        why = before.nvml.text if before.nvml is not None else "the driver reports no GPUs"
        raise ContextNotMeasured(
            "There is no GPU here to measure.",
            why,
            "run it on the machine that trains; --gpu NAME needs none",
        )
    deadline = time.monotonic() + seconds
    with closing(LineChild(command or [sys.executable, "-m", MODULE])) as child:
        ready = _stage(child, deadline)
        if ready["stage"] != "ready":
            raise ContextNotMeasured(
                "CUDA was not measured.",
                f"torch {ready.get('torch')} finds no GPU",
                "use the Python that trains: its torch must be a CUDA build",
            )
        device = _device(before, str(ready.get("uuid", "")))
        idle = device.readings.get("used_bytes")
        stages: dict[str, int] = {}
        for name in ("first", "products", "kernels"):
            _go_on(child)
            reserved = int(_stage(child, deadline)["reserved_bytes"])
            time.sleep(SETTLE_SECONDS)
            now = look()
            held = _bytes_held(now, _device(now, device.definition.uuid), child.pid, idle)
            if held is None:
                raise ContextNotMeasured(
                    "The driver does not report the used memory.",
                    "neither by process nor for the GPU",
                    "--gpu NAME predicts with known figures of such GPUs",
                )
            stages[name] = max(0, held - reserved)
    driver = device.readings.get("driver_reserved_bytes")
    low, high = stages["products"], stages["kernels"]
    error = max(LEAST_ERROR, (high - low) // 2)
    found = ContextMemory(
        (low + high) // 2, int(driver) if isinstance(driver, int) else 0, error, "measured"
    )
    return str(device.definition.name), str(ready["torch"]), found, stages


def _device(host: HostView, uuid: str) -> DeviceView:
    """Return the device with this UUID, which torch writes without NVML's "GPU-" prefix.

    If the UUID is not known, the first device that a trainer would see is returned.
    """
    wanted = uuid.lower().removeprefix("gpu-")
    named = [
        one for one in host.devices if one.definition.uuid.lower().removeprefix("gpu-") == wanted
    ]
    found = next(iter(named), None)
    visible = visible_in_order(host.devices) or host.devices
    if found is None and not visible:
        raise ContextNotMeasured(
            "The GPU is gone.", "the driver no longer reports it", "gpuscope devices"
        )
    return found or visible[0]


def _bytes_held(host: HostView, device: DeviceView, pid: int, idle: Any) -> int | None:
    """Bytes of the process; else what the device's use has grown by since before."""
    own = {process.id for process in host.processes if process.definition.pid == pid}
    for use in device.uses:
        used = use.reading("used_bytes")
        if use.process in own and isinstance(used, int):
            return used
    now = device.readings.get("used_bytes")
    return max(0, int(now) - int(idle)) if isinstance(now, int) and isinstance(idle, int) else None


def _stage(child: LineChild, deadline: float) -> dict[str, Any]:
    """Return what the measuring child reports for its next stage.

    Raises :class:`ContextNotMeasured`.
    """
    try:
        found = json.loads(child.read_line(deadline))
        assert isinstance(found, dict)
        return found
    except Late:
        raise ContextNotMeasured(
            "CUDA did not start in time.",
            "the measuring process did not answer",
            "use a longer --timeout",
        ) from None
    except (ChildError, ValueError, AssertionError):
        why = child.last_words or "the measuring process died without a message"
        raise ContextNotMeasured(
            "The measurement failed.", why, "gpuscope doctor   checks torch here"
        ) from None


def _go_on(child: LineChild) -> None:
    """Let the child go to its next stage."""
    try:
        child.write(b"\n")
    except Ended:
        pass  # the missing answer to the next stage reports this
