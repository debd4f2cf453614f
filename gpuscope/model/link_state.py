"""Judge whether a host is reachable, stale or unreachable, in a word and with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..store.view import HostView

Word = Literal["live", "replay", "connecting", "queued", "stale", "unreachable"]


@dataclass(frozen=True, slots=True)
class LinkState:
    """The state of the way to a host; ``why`` it is not there, "" where it is.

    Stale is a host that is connected and sends nothing. Unreachable is one to which the connection
    failed or was lost, whether it is tried again or not.
    """

    kind: Literal["ok", "idle", "warn", "bad"]
    word: Word
    why: str = ""


def link_state(host: HostView) -> LinkState:
    """Return the state of the way to a host."""
    link = host.link
    if link.state in ("live", "replay"):
        return LinkState("ok", link.state)
    why = link.reason.removeprefix(f"{host.key}: ").removeprefix(f"{host.name}: ")
    if link.failed:
        return LinkState("bad", "unreachable", why or "the connection ended")
    if link.state == "stale":  # for how long stands beside the state, and grows there
        return LinkState("warn", "stale", "connected, but no data")
    return LinkState("idle", "queued" if "queued" in why else "connecting", why)
