"""This module says which actions a session can carry out, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from .actions import BY_NAME

if TYPE_CHECKING:
    from ...config import Settings
    from ...store.replay import ReplaySource
    from ...store.source import Source
    from ...store.view import HostView
    from ..background.doctor_watch import DoctorWatch
    from ..background.sources import Hosts

ACTING = ("trainer", "inject", "signal")
"""Needs of actions that touch somebody's process."""
READONLY = (
    "gpuscope runs with --readonly (or readonly = true in its config file): no signals, no "
    "requests to trainers"
)
NO_SOURCE = "no host is connected yet"
NO_TRAINER = "no trainer with a probe runs here"
NO_TRACE = "no trainer here uses CUDA yet: there is no GPU to trace"
LIVE = "live"
"""What a key of a screen needs that asks a process or its host and is no action of the tabs."""
ONLY_LIVE = "only a live trainer answers this, not a recording"
NO_LAB = "a recording is shown. For a live Lab: gpuscope --lab"
ON_LISTS = ("open", "next_pane", "filter")
"""What a key does on the lists of a tab: in a replay the Lab's tab has none."""
NOT_RECORDED = {
    "inject": "a recording has no process to attach to",
    "signal": "a recording has no process to signal",
}


class SessionState(Protocol):
    """What decides which actions are possible: a session, as far as this file knows it."""

    settings: Settings
    replay: ReplaySource | None
    hosts: Hosts | None
    tab: str

    @property
    def host(self) -> HostView | None:
        """The host that is looked at."""

    @property
    def many(self) -> bool:
        """Whether several hosts are looked at."""

    @property
    def training(self) -> object | None:
        """The Lab's runs while there is something of them to stop."""

    @property
    def doctor(self) -> DoctorWatch:
        """What is found wrong."""


def why_not(
    session: SessionState, action: str, source: Source | None, away: bool, heard: bool
) -> str:
    """Return why an action, or a key that needs :data:`LIVE`, is not possible; "" when it is.

    ``away`` says that other hosts may be looked at, ``heard`` that there is a store.
    """
    need = BY_NAME[action].needs if action in BY_NAME else action
    if need in ACTING and session.settings.readonly:
        return READONLY
    if need == "time":
        return "" if session.replay or heard else NO_SOURCE
    if need == "speed" and session.replay:
        return ""
    if need in ("speed", "rate"):
        if session.replay:
            return "a replay keeps the rate of its recording"
        return source.capabilities.why_not("rate") if source else NO_SOURCE
    if need == "asked":
        if session.replay:
            return ONLY_LIVE
        return "" if _has_trainers(session) else NO_TRAINER
    if need == "trainer":
        return _why_not_ask(session, action, source)
    if need == LIVE:
        return "a recording has no live process to ask" if session.replay else ""
    if need in NOT_RECORDED:
        if session.replay:
            return NOT_RECORDED[need]
        return NO_SOURCE if source is None else source.capabilities.why_not(need)
    if need == "proof":
        return why_not(session, "lab_run", source, away, heard) or session.doctor.why_no_proof
    if need == "fix":
        return "" if session.doctor.more_fixes else "there is no other fix to copy"
    if session.replay and (
        need in ("lab", "runs") or (session.tab == "lab" and action in ON_LISTS)
    ):
        return NO_LAB
    if need == "lab":
        if action == "lab_stop" and session.training is None:
            return "nothing runs in the Lab"
        elsewhere = "the Lab trains on this machine, but another host is shown: gpuscope --lab"
        return elsewhere if source is not None and away else ""
    if need == "away":
        return (
            session.hosts.why_not_again(session.host)
            if session.hosts is not None and heard
            else NO_SOURCE
        )
    if need == "hosts":
        return "" if session.many else "only one host is connected"
    return ""


def _why_not_ask(session: SessionState, action: str, source: Source | None) -> str:
    if session.replay:
        return ONLY_LIVE
    if source is None:
        return NO_SOURCE
    if not _has_trainers(session):
        return NO_TRAINER
    if action == "look" and not _has_trainers(session, on_gpu=True):
        return NO_TRACE
    return source.capabilities.why_not(action)


def _has_trainers(session: SessionState, on_gpu: bool = False) -> bool:
    host = session.host
    return host is not None and any(
        trainer.gone is None and (trainer.definition.cuda or not on_gpu)
        for trainer in host.trainers
    )
