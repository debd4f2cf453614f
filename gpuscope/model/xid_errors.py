"""Judge how grave a critical error of the driver (XID) is.

Every screen, verb, alert and finding that names one asks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..collect.xid import HARDWARE as HARDWARE
from ..collect.xid import PROGRAM as PROGRAM
from ..collect.xid import xid_advice, xid_cause, xid_words
from ..wire.frames import Reading

_CONSEQUENCES = frozenset((43, 45))
"""They follow what a program did or another error: no alarm by themselves."""


@dataclass(frozen=True, slots=True)
class XidError:
    """A critical error of the driver, judged.

    ``kind``: warn where somebody should know, ok where it is only the consequence of something
    else. ``text`` says what happened, ``advice`` what to do ("" where nothing is known).
    ``cause``: what it is laid to, as ``collect.xid`` has it.
    """

    number: int
    kind: Literal["ok", "warn"]
    text: str
    advice: str
    cause: str


def xid_error(number: int) -> XidError:
    kind: Literal["ok", "warn"] = "ok" if number in _CONSEQUENCES else "warn"
    return XidError(number, kind, xid_words(number), xid_advice(number), xid_cause(number))


def last_xid_error(readings: Mapping[str, Reading]) -> XidError | None:
    """Judge the last error that the driver has reported of a device since the agent came.

    None where it has reported none.
    """
    number = readings.get("last_xid")
    return xid_error(int(number)) if isinstance(number, (int, float)) else None
