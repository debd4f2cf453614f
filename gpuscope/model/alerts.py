"""Alert when a reading crosses a threshold.

An alert fires once and clears once, with hysteresis in value and in time.

:class:`Alerts` is given pictures of hosts one after the other and says what has changed. It does
not depend on any screen. A reading that is unknown neither fires nor clears an alert.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ..collect.clock_events import SLOWED_CLOCK_EVENTS
from ..store.view import (
    DeviceView,
    Gone,
    HistoryOf,
    HostView,
    ProcView,
    TrainerView,
    by_id,
    no_history,
)
from ..text.process_name import short_script
from ..text.units import age_text
from . import slowdown
from .alerts_settings import AlertSettings
from .change_point import ChangePoint
from .device_state import faults_of, judge, slowed
from .job_ends import has_ended, is_out_of_sight, last_end
from .lost_loss import loss_of
from .ranks import subject_of
from .stalls import is_stalled
from .step_time import SLOWER
from .xid_errors import xid_error

MARGINS = {"temperature": 3.0, "memory": 2.0}
"""A threshold's alert clears this far below it: °C, percentage points."""
EVENT_SECONDS = 300.0
"""The alert of a single event (an XID, an end, a change point) clears after this time."""
FAST_SECONDS = 60.0
"""A trainer that was slower must have its old pace for this long before the alert clears."""
MAX_ALERTS = 1000
STATES = {
    "lost": frozenset(("lost", "hung", "failed", "gone", "remap failed")),
    "spinning": frozenset(("spinning", "waits")),
    "filling": frozenset(("filling",)),
    "starved": frozenset(("input-bound",)),
    "tensor_idle": frozenset(("tensor idle",)),
}
"""Alerts by what :func:`~.device_state.judge` says of a device: these words of its state."""
UNJUDGED = frozenset(("unknown", "waiting"))
"""States in which it is unknown whether a device is well."""


@dataclass(frozen=True, slots=True)
class Alert:
    """``state`` is fired or cleared.

    ``value`` and ``threshold`` are in the unit that ``kind`` has: °C, percent, a count; None where
    it has none. ``at`` is wall seconds, None if the host sent none.
    """

    kind: str
    key: str
    host: str
    subject: str
    text: str
    state: str
    value: float | None = None
    threshold: float | None = None
    at: float | None = None
    device_uuid: str | None = None
    pid: int | None = None

    def data(self) -> dict[str, Any]:
        """Return the alert as JSON for ``on_alert``."""
        return {
            "alert": self.kind,
            "state": self.state,
            "host": self.host,
            "subject": self.subject,
            "text": self.text,
            "value": self.value,
            "threshold": self.threshold,
            "at": self.at,
            "device_uuid": self.device_uuid,
            "pid": self.pid,
        }


@dataclass(frozen=True, slots=True)
class _Now:
    """One thing that can be wrong, as a picture shows it.

    ``on`` says that it is wrong, and ``off`` that it is not. If neither is set, the reading is
    between the two thresholds, or unknown. ``once`` says that it is an event that does not last.
    """

    kind: str
    key: str
    subject: str
    text: str
    on: bool
    off: bool
    value: float | None = None
    threshold: float | None = None
    device_uuid: str | None = None
    pid: int | None = None
    once: bool = False


class _Known:
    __slots__ = ("alert", "since", "why")

    def __init__(self) -> None:
        self.alert: Alert | None = None
        self.since: float | None = None  # since when it is other than what was said
        self.why = ""


class Alerts:
    """Finds what is wrong now, by the settings."""

    def __init__(self, settings: AlertSettings) -> None:
        self._settings = settings
        self._known: dict[tuple[str, str, str], _Known] = {}
        self._xid_counts: dict[tuple[str, str], tuple[float, float | None]] = {}
        self._joined: dict[
            str, float
        ] = {}  # when each host was first seen; trainers that ended before are not reported
        self._slower: dict[tuple[str, str], _Slower] = {}

    @property
    def active(self) -> list[Alert]:
        """Return the alerts that have fired and not cleared, the latest last."""
        return [known.alert for known in self._known.values() if known.alert is not None]

    def look(self, host: HostView, history: HistoryOf = no_history) -> list[Alert]:
        """Return what has fired or cleared since the last picture of this host.

        ``history`` has the readings before, for what only they tell.
        """
        now = host.sampled_seconds
        if now is None or not self._settings.any:
            return []
        if now < self._joined.setdefault(host.key, now):  # the host was started anew
            self._joined[host.key] = now
        changed = []
        for item in self._items(host, history, now):
            key = (host.key, item.kind, item.key)
            known = self._known.get(key)
            if known is None:
                if not item.on or len(self._known) >= MAX_ALERTS:
                    continue
                known = self._known[key] = _Known()
            alert = self._step(host, item, known, now)
            if alert is not None:
                changed.append(alert)
            if known.alert is None and known.since is None:
                del self._known[key]
        return changed

    def _step(self, host: HostView, item: _Now, known: _Known, now: float) -> Alert | None:
        towards = item.off if known.alert is not None else item.on
        if not towards:
            known.since = None
            return None
        if known.since is None or now < known.since:
            known.since = now
        if not item.once and now - known.since < self._settings.for_seconds:
            return None
        fired = known.alert is None
        alert = Alert(
            item.kind,
            item.key,
            host.name,
            item.subject,
            item.text if fired else f"{item.subject}: {OVER[item.kind]}",
            "fired" if fired else "cleared",
            item.value,
            item.threshold,
            host.wall_seconds,
            item.device_uuid,
            item.pid,
        )
        known.alert, known.since = (alert if fired else None), None
        return alert

    # ── what a picture shows ──

    def _items(self, host: HostView, history: HistoryOf, now: float) -> Iterator[_Now]:
        for device in host.devices:
            yield from self._device(host, device)
            yield from self._states(host, device)
        if self._settings.xid:
            yield from self._xids(host, now)
        mine = {process.id for process in host.processes if process.definition.mine}
        for trainer in host.trainers:
            if self._settings.stall and trainer.process in mine and trainer.gone is None:
                yield _stalled(trainer)
            if self._settings.not_finite and trainer.process in mine and trainer.gone is None:
                yield _not_finite(host, history, trainer)
            if self._settings.slower and trainer.process in mine:
                yield from self._slowed(host, history, trainer, now)
        if self._settings.gone:
            yield from self._ended(host, mine, now)

    def _device(self, host: HostView, device: DeviceView) -> Iterable[_Now]:
        wanted, uuid = self._settings, device.definition.uuid
        who = f"GPU {device.definition.index}"
        heat, used, total = (
            device.number("temperature_celsius"),
            device.number("used_bytes"),
            device.definition.total_bytes,
        )
        if (most := wanted.temperature_celsius) is not None and heat is not None:
            yield _threshold(
                "temperature", uuid, who, f"{heat:.0f} °C (alert at {most:g} °C)", heat, most
            )
        if (most := wanted.memory_percent) is not None and used is not None and total:
            share = used / total * 100
            yield _threshold(
                "memory",
                uuid,
                who,
                f"{share:.1f}% of its memory is used (alert at {most:g}%)",
                share,
                most,
            )
        mask = device.number("clock_event_reasons")
        bits = None if mask is None else float(int(mask) & SLOWED_CLOCK_EVENTS)
        if wanted.throttle and bits is not None and (bits or self._holds(host, "throttle", uuid)):
            reasons = slowed(device.readings)
            text = f"{who}: throttled: {', '.join(reasons)}"
            yield _Now("throttle", uuid, who, text, bool(reasons), not reasons, bits, None, uuid)
        errors = device.number("ecc_uncorrected_count")
        if wanted.ecc and errors is not None and (errors or self._holds(host, "ecc", uuid)):
            fault = next((one for one in faults_of(device.readings) if one.word == "ECC"), None)
            text = f"{who}: {fault.reason if fault is not None else ''}"
            yield _Now(
                "ecc",
                uuid,
                who,
                text,
                fault is not None,
                fault is None,
                errors,
                1.0,
                uuid,
                once=True,
            )

    def _holds(self, host: HostView, kind: str, key: str) -> bool:
        """Return whether something of this kind was wrong at the last look."""
        return (host.key, kind, key) in self._known

    def _states(self, host: HostView, device: DeviceView) -> Iterable[_Now]:
        """Yield the alerts of a device's state, which every screen shows alike.

        If another state takes precedence (a full card whose tensor cores are idle), the alert does
        not end. It ends only when the device is well again, or answers again.
        """
        wanted = [kind for kind in STATES if getattr(self._settings, kind)]
        if not wanted:
            return
        state, uuid = judge(host, device), device.definition.uuid
        who = f"GPU {device.definition.index}"
        well = state.kind in ("ok", "idle", "shared")
        for kind in wanted:
            on = state.word in STATES[kind]
            off = not on and (well or kind == "lost") and state.word not in UNJUDGED
            text = f"{who}: {state.word}: {state.reason}"
            yield _Now(kind, uuid, who, text, on, off, None, None, uuid)

    def _xids(self, host: HostView, now: float) -> Iterable[_Now]:
        """Yield XID alerts by the count of errors that the driver has reported.

        Each new error fires; the alert ends when for a while no other came.
        """
        for device in host.devices:
            count, code = device.number("xid_count"), device.number("last_xid")
            error = xid_error(int(code or 0))
            if count is None:
                continue
            key = (host.key, device.key)
            before, since = self._xid_counts.get(key, (count, None))
            if count < before:  # counted anew: the agent was started again
                since = now if count else None
            elif count > before and error.kind != "ok":
                since = now
            self._xid_counts[key] = (count, since)
            uuid, who = device.definition.uuid, f"GPU {device.definition.index}"
            recent = since is not None and now - since < EVENT_SECONDS
            text = f"{who}: {error.text}"
            yield _Now("xid", uuid, who, text, recent, not recent, code, None, uuid, once=True)

    def _slowed(
        self, host: HostView, history: HistoryOf, trainer: TrainerView, now: float
    ) -> Iterable[_Now]:
        """Yield the alert that steps take longer since a moment, one for each such moment.

        A change point that is found again, a little earlier or later, is the same one: the next
        is reported only once the steps are slower still, or after they were as fast as before.
        """
        key = (host.key, trainer.key)
        reported = self._slower.get(key)
        if trainer.gone is not None:
            if reported is not None:
                del self._slower[key]
                yield reported.item(on=False)
            return
        found = slowdown.of_trainers([trainer], host, history)
        if reported is None and (found is None or len(self._slower) >= MAX_ALERTS):
            return
        if reported is not None:
            reported.follow(found is None, trainer, now)
        if found is not None and (reported is None or reported.is_another(found.change)):
            if reported is not None:
                yield reported.item(on=False)
            text = f"{_who(trainer)}: {found.text[:1].lower()}{found.text[1:]}"
            reported = self._slower[key] = _Slower(trainer, found.change, text, now)
        assert reported is not None
        yield reported.item(
            on=0 <= now - reported.seconds < EVENT_SECONDS and reported.fast_since is None
        )

    def _ended(self, host: HostView, mine: set[int], now: float) -> Iterable[_Now]:
        inside = {trainer.process for trainer in host.trainers}
        running = {
            trainer.definition.job
            for trainer in host.trainers
            if trainer.gone is None and trainer.definition.job
        }
        processes = {process.id: process for process in host.processes}
        ended: list[tuple[TrainerView | ProcView, Gone | None, str, str | None]] = [
            (t, last_end(t.gone, around), short_script(t.definition.script), t.definition.job)
            for t in host.trainers
            if t.process in mine and (around := processes.get(t.process)) is not None
        ]
        ended += [
            (p, p.gone, p.definition.name or "", None)
            for p in host.processes
            if p.id in mine - inside and p.uses
        ]
        for entity, gone, name, job in ended:
            if (
                gone is None
                or is_out_of_sight(gone)
                or gone.monotonic_seconds < self._joined[host.key]
            ):
                continue
            over = now - gone.monotonic_seconds >= EVENT_SECONDS or (
                job is not None and job in running
            )
            yield _ended_alert(entity, name, gone, over)


OVER = {
    "temperature": "has cooled down",
    "memory": "has room again",
    "throttle": "is no longer throttled",
    "ecc": "has no new memory errors",
    "xid": "no new error since",
    "lost": "answers again",
    "spinning": "no longer waits for a rank that hangs",
    "filling": "is no longer about to run out of memory",
    "starved": "no longer waits for input",
    "tensor_idle": "its tensor cores are in use again, or the GPU is idle",
    "stall": "steps again",
    "not_finite": "its loss is finite again",
    "slower": "is no longer slower, or was reported a while ago",
    "gone": "ended a while ago, or runs again",
}


def _threshold(kind: str, uuid: str, who: str, text: str, value: float, most: float) -> _Now:
    return _Now(
        kind,
        uuid,
        who,
        f"{who}: {text}",
        value >= most,
        value < most - MARGINS[kind],
        value,
        most,
        uuid,
    )


def _who(trainer: TrainerView) -> str:
    definition = trainer.definition
    pid = f"pid {definition.pid}"
    named = definition.rank is not None or definition.script
    return f"{subject_of(trainer)} ({pid})" if named else pid


@dataclass(slots=True)
class _Slower:
    """A change point of a trainer's step time for which an alert was sent, at ``seconds``.

    ``fast_since``: its steps are as fast as before since then, None while they are not.
    """

    trainer: TrainerView
    change: ChangePoint
    text: str
    seconds: float
    fast_since: float | None = None
    _begun: float | None = None

    def follow(self, is_over: bool, trainer: TrainerView, now: float) -> None:
        """Note whether the steps have their pace again; a short while does not count."""
        step = trainer.number("step_seconds")
        fast = is_over and step is not None
        if fast and step is not None and step <= (self.change.before + self.change.after) / 2:
            self._begun = now if self._begun is None else self._begun
            if now - self._begun >= FAST_SECONDS and self.fast_since is None:
                self.fast_since = self._begun
        else:
            self._begun = None

    def is_another(self, change: ChangePoint) -> bool:
        """Tell whether a change needs a new alert: slower still, or after a fast period."""
        if self.fast_since is not None and change.seconds > self.fast_since:
            return True
        return change.after >= SLOWER * self.change.after

    def item(self, on: bool) -> _Now:
        key = f"{self.trainer.key}/{self.change.seconds:.0f}"
        pid = self.trainer.definition.pid
        return _Now(
            "slower", key, _who(self.trainer), self.text, on, not on, self.change.ratio, None, None,
            pid, True,
        )  # fmt: skip


def _stalled(trainer: TrainerView) -> _Now:
    age, pid, who = trainer.number("step_age_seconds"), trainer.definition.pid, _who(trainer)
    at = trainer.readings.get("stall_at")
    where = f", stuck at {at}" if isinstance(at, str) and at else ""
    still = is_stalled(trainer)
    text = f"{who}: no step for {age_text(age or 0.0)}{where}"
    return _Now(
        "stall", trainer.key, who, text, still, not still and age is not None, age, None, None, pid
    )


def _not_finite(host: HostView, history: HistoryOf, trainer: TrainerView) -> _Now:
    lost, who = loss_of(host, trainer, history), _who(trainer)
    process = by_id(host.processes, trainer.process)
    logged = process.number("log_loss") if process is not None else None
    is_known = trainer.number("loss") is not None or logged is not None
    text = f"{who}: {lost.text}" if lost is not None else who
    pid = trainer.definition.pid
    return _Now(
        "not_finite", trainer.key, who, text, lost is not None, lost is None and is_known,
        None, None, None, pid,
    )  # fmt: skip


def _ended_alert(entity: TrainerView | ProcView, name: str, gone: Gone, over: bool) -> _Now:
    pid = entity.definition.pid
    who = f"{name} (pid {pid})" if name else f"pid {pid}"
    return _Now(
        "gone",
        entity.key,
        who,
        f"{who} {has_ended(gone)}",
        not over,
        over,
        None,
        None,
        None,
        pid,
        True,
    )
