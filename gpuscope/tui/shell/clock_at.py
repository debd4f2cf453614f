"""The time of day at the end of a time axis that does not end now."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.view import HostView
    from .session import Session


def clock_at(session: Session, host: HostView, moment: float | None = None) -> float | None:
    """Return the wall clock at the end of a time axis; None where the axis ends now.

    It ends earlier in a recording, while the screen stands still, and where the host is silent.
    ``moment`` is the end on the host's monotonic clock, by default its last sample.
    """
    still = session.replay is not None or session.paused_seconds is not None
    before = 0.0 if moment is None else max((host.sampled_seconds or moment) - moment, 0.0)
    if host.wall_seconds is None or not (still or before or session.ago_seconds >= 1):
        return None
    return host.wall_seconds - before
