"""Take one look at this machine and return it as a ``HostView``, which the screens also read.

It is for verbs that print once. The agent's workers ask within this process, with a time limit.
Their answers go into a store as frames, without a child process and without the codec: they come
from this process, except for strings, which are cleaned when they are printed.
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
class LocalLook:
    """One look at this machine.

    ``host`` contains what was read, without anything that has ended. ``complete`` says that
    everything answered within the limit. What did not is Unknown with the code ``timeout`` in the
    host, and names the call that does not return.
    """

    host: HostView
    complete: bool
    holders: dict[str, Any] | Unknown | None = None
    """Which processes have the devices open, or why that is unknown.

    ``collect.holders.holders_document`` makes it. It is set only where it was asked for.
    """
    environments: Mapping[int, Mapping[str, str] | Unknown] = field(default_factory=dict)
    """By pid: the allow-listed variables that a process was started with.

    It is set only where it was asked for.
    """


def look(
    timeout: float = 5.0,
    want_trainers: bool = True,
    make_nvml: Callable[[], Nvml] | None = None,
    directories: Sequence[str] | None = None,
) -> LocalLook:
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
    return LocalLook(host, shot.complete)
