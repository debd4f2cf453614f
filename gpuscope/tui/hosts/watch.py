"""This module sums up the hosts of a session, again only for those that changed.

It asks the doctor's rules in turn. The rules of one host take a millisecond or two: they are
asked of as many hosts at a time as a share of the viewer's time allows, so that each host is
judged every few seconds and no key waits for a judgement.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ...model.job_ends import NOTHING_SENT
from ...store.view import no_history
from .jobs import across
from .order import Order, sorts_of
from .summary import Grade, HostSummary, HostTotals, Missing, Word, summarise, totals

if TYPE_CHECKING:
    from ...doctor.finding import Finding, Fix, Pitfall
    from ...model.ended_jobs import EndedJob
    from ...store.store import Store
    from ...store.view import HistoryOf, HostView, JobView, View

log = logging.getLogger("gpuscope.doctor")

JUDGE_SECONDS = 0.004
"""The processor time that the rules may take for one picture; there are two pictures a second."""
SUM_SECONDS, HIDDEN_SECONDS = 0.4, 2.0
"""A host is summed up no more often: one that is on the screen, and one that is only in the totals
and the order.
"""
FORGET_SECONDS = 60.0
"""How long findings of the rules count if they are not confirmed."""
_DEVICE = re.compile(r"GPU \d+")
_GRADES = {"problem": Grade.PROBLEM, "warning": Grade.WARNING}


class Told(NamedTuple):
    """A finding and what to do first about it, None where nothing is known to help."""

    finding: Finding
    first: Fix | None


class Fleet:
    """All hosts of a session, summed up.

    ``store`` holds the hosts, ``frozen`` is the picture of them while the screen stands still.
    ``left`` returns the jobs that ended badly on a host before it was watched, and ``sent`` holds,
    by pid, the signals that were sent from here.
    """

    def __init__(
        self,
        store: Callable[[], Store | None],
        frozen: Callable[[], View | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        left: Callable[[str], Sequence[EndedJob]] = lambda key: (),
        sent: Mapping[int, str] = NOTHING_SENT,
    ) -> None:
        self._left, self._sent = left, sent
        self.sort = "worst"
        self.order = Order()
        self._store, self._frozen, self._clock = store, frozen, clock
        self.visible: Collection[str] = ()
        """The keys of the hosts that are on the screen."""
        self._known: dict[str, tuple[HostView, tuple[Word, ...], HostSummary]] = {}
        self._summed: dict[str, float] = {}
        self._across: dict[str, list[Word]] = {}
        self._found: dict[str, tuple[float, tuple[Word, ...]]] = {}
        self._told: dict[str, dict[Word, Told]] = {}
        """For each host its findings, by the words for them."""
        self._of_devices: dict[str, dict[str, Told]] = {}
        """The worst finding about the state of a device, by the name of the device."""
        self._findings: dict[str, tuple[Finding, ...]] = {}
        """For each host, what the rules found, the worst first."""
        self._away: dict[str, float] = {}
        """For each host, when the viewer saw it become unreachable."""
        self._stopped: float | None = None
        """When the user stopped the screen, None while it is live."""
        self._turn = 0
        self._judged: dict[str, float | None] = {}
        self._all: tuple[HostSummary, ...] = ()

    def age_of(self, key: str) -> float | None:
        """Return the seconds since the last frame of a host, None before the first frame."""
        store = self._store()
        received = store.received_seconds(key) if store is not None else None
        return None if received is None else max(0.0, self._now() - received)

    def _now(self) -> float:
        """Return the moment that the screen shows, which is fixed while the screen is stopped."""
        return self._clock() if self._stopped is None else self._stopped

    def oldest_seconds(self) -> float | None:
        """Return the age of the oldest reading of the hosts that are live, None without any."""
        ages = [self.age_of(one.key) for one in self._all if one.state == "live"]
        return max((age for age in ages if age is not None), default=None)

    def missing(self, one: HostSummary) -> Missing:
        """Return since when a host is not heard, and when it is tried again."""
        now, age = self._now(), self.age_of(one.key)
        if age is None:
            age = now - self._away.get(one.key, now)
        return Missing(age, None if one.retry_at is None else max(0.0, one.retry_at - now))

    def told(self, one: HostSummary) -> Mapping[Word, Told]:
        """Return the findings behind what is wrong with a host.

        The words on the state of a device are not those of its finding; they begin with its name.
        """
        named = {
            word: found
            for word in one.words
            for device, found in self._of_devices.get(one.key, {}).items()
            if word.text.startswith(f"{device} ")
        }
        return {**named, **self._told.get(one.key, {})}

    def host(self, key: str) -> HostView | None:
        """Return a host as it was summed up last."""
        known = self._known.get(key)
        return known[0] if known is not None else None

    def findings(self, key: str) -> tuple[Finding, ...]:
        """Return what the rules find on a host, the worst first."""
        return self._findings.get(key, ())

    @property
    def all(self) -> tuple[HostSummary, ...]:
        """All hosts as of the last :meth:`look`, in the order in which they were added."""
        return self._all

    def look(self) -> tuple[HostSummary, ...]:
        """Return every host, as it is or was a moment ago."""
        frozen, store = self._frozen(), self._store()
        now = self._clock()
        self._stopped = None if frozen is None else now if self._stopped is None else self._stopped
        if frozen is not None:
            self._all = tuple(self._sum_up(host) for host in frozen.hosts)
        elif store is not None:
            for key in store.sources:
                known = self._known.get(key)
                if known is None or known[0].link.state != store.link(key).state:
                    self._summed.pop(key, None)
                self.heard(key)
            hosts = [
                known[0] for key in store.sources if (known := self._known.get(key)) is not None
            ]
            self._across = across(hosts)
            self._all = tuple(self._sum_up(host) for host in hosts)
        self._away = {
            one.key: self._away.get(one.key, now) for one in self._all if one.state == "unreachable"
        }
        return self._all

    def heard(self, key: str) -> None:
        """Sum up a host that has sent a sample at once, where it is time to.

        All hosts at a time would keep a key waiting.
        """
        now, store = self._clock(), self._store()
        seconds = SUM_SECONDS if key in self.visible else HIDDEN_SECONDS
        if store is not None and now - self._summed.get(key, float("-inf")) >= seconds:
            self._summed[key] = now
            host = store.host(key)
            if host is not None:
                self._sum_up(host)

    def _sum_up(self, host: HostView) -> HostSummary:
        when, found = self._found.get(host.key, (0.0, ()))
        words = (
            *self._across.get(host.key, ()),
            *(found if self._clock() - when < FORGET_SECONDS else ()),
        )
        known = self._known.get(host.key)
        if known is None or known[0] is not host or known[1] != words:
            known = self._known[host.key] = (
                host,
                words,
                summarise(host, words, self.history_of(host), self._left(host.key), self._sent),
            )
        return known[2]

    def shown(self, mine: bool = False, text: str = "") -> list[HostSummary]:
        """Those that contain ``text``, in order."""
        needle = text.casefold()
        passed = [one for one in self._all if needle in one.text and (one.mine or not mine)]
        inorder = self.order.arrange(self._all, self.sort, self._clock())
        kept = {one.key for one in passed}
        return [one for one in inorder if one.key in kept]

    def totals(self) -> HostTotals:
        """The sums over all hosts, whatever the filter hides."""
        return totals(self._all)

    def sort_by(self, step: int) -> str:
        """Sort by the next column, and return its name."""
        sorts = sorts_of(self._all)
        at = sorts.index(self.sort) if self.sort in sorts else 0
        self.sort = sorts[(at + step) % len(sorts)]
        return self.sort

    # ── the rules ──

    def judge(self, table: Mapping[str, Pitfall]) -> bool:
        """Apply the rules to the hosts whose turn it is, and return whether anything changed."""
        hosts = [
            host for host, _, _ in self._known.values() if host.link.state in ("live", "replay")
        ]
        began, changed = time.thread_time(), False
        for _ in range(len(hosts)):
            host = hosts[self._turn % len(hosts)]
            self._turn += 1
            if host.sampled_seconds is None or self._judged.get(host.key) == host.sampled_seconds:
                continue
            self._judged[host.key] = host.sampled_seconds
            before = self._found.get(host.key, (0.0, ()))[1]
            words = self._examine(host, table)
            self._found[host.key] = self._clock(), words
            changed = changed or words != before
            if time.thread_time() - began > JUDGE_SECONDS:
                break
        return changed

    def history_of(self, host: HostView) -> HistoryOf:
        store = self._store()
        return no_history if store is None else partial(store.history, host.key)

    def _examine(self, host: HostView, table: Mapping[str, Pitfall]) -> tuple[Word, ...]:
        from ...doctor import live, postmortem_end, report
        from ...doctor.live_states import OF_A_STATE
        from ...doctor.steps import steps_of

        if self._store() is None:
            return ()
        try:
            runs = report.finish(live.examine(host, self.history_of(host)), table)
            ends = report.finish(postmortem_end.examine(host, host.jobs), table)
        except Exception:  # a rule that fails must not end the screen
            log.exception("a rule failed")
            return ()
        found, replayed = (*runs.findings, *ends.findings), host.link.state == "replay"
        told = [one for one in found if one.cause not in OF_A_STATE]
        firsts = {one: next(iter(steps_of(one, replayed)), None) for one in found}
        words = {
            word: Told(one, firsts[one])
            for one in told
            if (word := word_of(one, one in ends.findings, live.job_of(one, host))) is not None
        }
        self._findings[host.key], self._told[host.key] = tuple(told), words
        of_devices = {
            device[0]: Told(one, firsts[one])
            for one in reversed(found)
            if one not in told and (device := _DEVICE.search(one.where)) is not None
        }
        self._of_devices[host.key] = of_devices  # of one device that of the worst
        return tuple(sorted(words, key=lambda word: word[0]))


def word_of(finding: Finding, of_the_dead: bool, job: JobView | None) -> Word | None:
    """Return the words for a finding on a ``job``, None where it is no trouble."""
    grade = _GRADES.get(finding.severity)
    key, title = (job.key, job.title) if job is not None else ("", "")
    if grade is None or of_the_dead:
        return None if grade is None else Word(Grade.ENDED, finding.title, key, title)
    if grade is Grade.PROBLEM and finding.cause.startswith("stall."):
        grade = Grade.STALLED
    return Word(grade, finding.title, key, title)
