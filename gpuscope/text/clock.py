"""Write moments as the clock of the user shows them, in local time."""

from __future__ import annotations

import time

from .units import DASH

SECOND, MINUTE = "%H:%M:%S", "%H:%M"
DATE_AND_SECOND, DATE_AND_MINUTE = "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M"


def clock_text(wall_seconds: float, form: str = SECOND) -> str:
    """Return a moment in seconds since 1970 as a time of the day, or as ``form`` says.

    A moment that no calendar has, such as one of a file that somebody made up, is a dash.
    """
    try:
        return time.strftime(form, time.localtime(wall_seconds))
    except (OverflowError, ValueError, OSError):
        return DASH
