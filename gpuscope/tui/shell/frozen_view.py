"""This module lets the screen stand still while data keeps coming.

It shows what was when it was stopped, or at an earlier moment.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...store.view import by_key
from ...text.clock import clock_text
from ...text.units import age_text, ago_text
from .keymap import key_of

if TYPE_CHECKING:
    from ...store.replay import ReplaySource
    from ...store.store import Store
    from ...store.view import HostView, View

SPEEDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)


class FrozenView:
    """Whether the screen stands still, and which moment it shows.

    ``frozen`` is the picture at the stop, None while the screen goes on.
    """

    def __init__(self) -> None:
        self.frozen: View | None = None
        self._since: float | None = None
        self._key = ""
        self._past: HostView | None = None
        self._at_oldest = False
        """Whether nothing older than the moment moved to is kept."""

    def stop(self, view: View | None) -> None:
        """Stop at ``view``; None where there is none yet."""
        self.frozen, self._since, self._past = view, time.monotonic(), None

    def go_on(self) -> None:
        """Show again what is."""
        self.frozen = self._since = self._past = None

    @property
    def seconds(self) -> float | None:
        """For how long the screen has been frozen, None while it is live."""
        return None if self._since is None else time.monotonic() - self._since

    def past(self, key: str | None) -> HostView | None:
        """Return the host of this source at the moment moved to, None where it was not moved.

        A source of None means the only one.
        """
        return self._past if key in (None, self._key) else None

    def move(self, store: Store, key: str, seconds: float) -> bool:
        """Look ``seconds`` later, and return whether that moved.

        A negative number looks earlier. It moves no further than what is kept.
        """
        now, oldest = store.host(key), store.oldest_seconds(key)
        if now is None or now.sampled_seconds is None or oldest is None:
            return False
        if self._since is None:
            self.stop(store.view())
        here = self.past(key) or by_key(self.frozen.hosts, key) or now if self.frozen else now
        moment = (here.sampled_seconds or now.sampled_seconds) + seconds
        self._key = key
        self._past = store.host_at(key, min(max(moment, oldest), now.sampled_seconds))
        self._at_oldest = moment <= oldest
        return self._past is not None

    def ago_seconds(self, now: HostView | None) -> float:
        """Return how long before now the moment that is shown was, 0 while the screen goes on.

        ``now`` is the host as it is.
        """
        if self._since is None or self.frozen is None or now is None or now.sampled_seconds is None:
            return 0.0
        shown = self.past(now.key) or by_key(self.frozen.hosts, now.key)
        if shown is None or shown.sampled_seconds is None:
            return 0.0
        return max(now.sampled_seconds - shown.sampled_seconds, 0.0)

    def text(self, now: HostView | None) -> str:
        """Return ``PAUSED 12 s`` or ``PAST 21:51:40, 2m 05s ago``; "" while the screen goes on.

        ``now`` is the host as it is.
        """
        if self._since is None:
            return ""
        past = self.past(now.key) if now is not None else None
        if now is None or now.sampled_seconds is None or past is None:
            return f"PAUSED {age_text(time.monotonic() - self._since)}"
        ago = self.ago_seconds(now)
        if ago < 1:
            return "PAST, the newest"
        at = "" if past.wall_seconds is None else f"{clock_text(past.wall_seconds)}, "
        oldest = ", the oldest" if self._at_oldest else ""
        return f"PAST {at}{ago_text(ago)}{oldest}"


def next_speed(replay: ReplaySource, faster: bool) -> bool:
    """Replay at the next of ``SPEEDS``; False where there is none."""
    options = [
        speed for speed in SPEEDS if (speed > replay.speed if faster else speed < replay.speed)
    ]
    if options:
        replay.set_speed(options[0] if faster else options[-1])
    return bool(options)


def replay_text(replay: ReplaySource, judged_until: float | None = None) -> str:
    """Return the place in a replay, as ``▶ 00:12/01:30 ×2``; ``■`` stands for its end.

    After a long seek it says up to where the recording has been judged so far.
    """
    judged = f", findings to {_clock(judged_until)}" if judged_until is not None else ""
    mark = "‖" if replay.paused else "■" if replay.ended else "▶"
    return (
        f"{mark} {_clock(replay.position_seconds)}/{_clock(replay.duration_seconds)} "
        f"×{replay.speed:g}{judged}"
    )


def first_trainer_text(replay: ReplaySource | None) -> str:
    """Return when the first trainer of a recording starts, "" where that is past or unknown."""
    first = replay.first_trainer_seconds if replay is not None else None
    if replay is None or first is None or replay.position_seconds >= first:
        return ""
    key = key_of("replay_forward")
    return f"the first starts at {_clock(first)} of the recording (key {key} goes there)"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return (
        f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
        if minutes >= 60
        else f"{minutes:02d}:{rest:02d}"
    )
