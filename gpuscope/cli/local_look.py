"""Take one look at this machine, in the shape that the screens read: a ``HostView``.

It is for the verbs that print and leave.

The agent's own workers ask, in this process and with a limit. What they tell goes into a store as
frames, without a child process and without the codec: nothing is foreign here but strings, and
whoever prints those cleans them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..collect.nvml import Nvml
    from ..store.view import HostView
    from ..wire.frames import Unknown

KEY = "here"


@dataclass
class Look:
    """``host``: what came, without what has ended.

    ``complete``: everything that was asked answered within the limit; what did not is Unknown
    ``timeout`` in the host, with the call that does not return.
    """

    host: HostView
    complete: bool
    holders: dict[str, Any] | Unknown | None = None
    """Who has the devices open (``collect.holders.told``), or why that could not be had, where it
    was asked for.
    """
    environments: Mapping[int, Mapping[str, str] | Unknown] = field(default_factory=dict)
    """By pid: variables of an allow-list that a process was started with, where they were asked
    for.
    """


def look(
    timeout: float = 5.0,
    want_trainers: bool = True,
    make_nvml: Callable[[], Nvml] | None = None,
    directories: Sequence[str] | None = None,
) -> Look:
    """Look at this machine until all have answered, or for ``timeout`` seconds."""
    from ..agent.oneshot import collect_once
    from ..agent.oneshot_frames import frames
    from ..store.store import Store
    from ..store.view import Link

    shot = collect_once(timeout, want_trainers, make_nvml, directories)
    store = Store()
    store.add_source(KEY, "")
    for frame in frames(shot.picture):
        store.apply(KEY, frame, time.monotonic())
    store.set_link(KEY, Link("live"))
    host = store.host(KEY)
    assert host is not None
    return Look(host, shot.complete)
