"""This module says which actions a session can carry out, and why not the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from .actions import ACTIONS, BY_NAME

if TYPE_CHECKING:
    from ...config import Settings
    from ...store.replay import ReplaySource
    from ...store.source import Source
    from ...store.view import HostView
    from ..doctor.watch import Watch
    from ..hosts.sources import Hosts

GREYED = ("asked",)
"""Needs of actions that keep their place at the bottom while they are not possible."""
ACTING = ("trainer", "inject", "signal")
"""Needs of actions that touch somebody's process."""
READONLY = (
    "gpuscope runs with --readonly (or readonly = true in its config file): no signals, no "
    "requests to trainers"
)
NO_SOURCE = "no source yet"
NO_TRAINER = "no trainer with a probe is here"
NOT_RECORDED = {
    "inject": "a recording cannot be attached to",
    "signal": "a recording takes no signals",
}


def offered(why_not: Callable[[str], str]) -> tuple[list[str], list[str]]:
    """Return the actions of the footer that are possible, and those that stand there greyed."""
    in_line = [action for action in ACTIONS if action.footer]
    possible = [a.name for a in in_line if not why_not(a.name)]
    return possible, [a.name for a in in_line if a.needs in GREYED and a.name not in possible]


class Situation(Protocol):
    """What decides which actions are possible: a session, as far as this file knows it."""

    settings: Settings
    replay: ReplaySource | None
    hosts: Hosts | None

    @property
    def host(self) -> HostView | None:
        """The host that is looked at."""

    @property
    def many(self) -> bool:
        """Whether several hosts are looked at."""

    @property
    def doctor(self) -> Watch:
        """What is found wrong."""


def why_not(session: Situation, action: str, source: Source | None, away: bool, heard: bool) -> str:
    """Return why an action is not possible, "" when it is.

    ``away`` says that other hosts may be looked at, ``heard`` that there is a store.
    """
    need = BY_NAME[action].needs
    if need in ACTING and session.settings.readonly:
        return READONLY
    if need == "replay":
        return "" if session.replay else "only in a replay"
    if need == "time":
        return "" if session.replay or heard else NO_SOURCE
    if need == "rate":
        if session.replay:
            return "a replay keeps the rate of its recording"
        return source.capabilities.why_not("rate") if source else NO_SOURCE
    if need == "asked":
        if session.replay:
            return "a recording keeps no answers of the trainer"
        return "" if _has_trainers(session) else NO_TRAINER
    if need == "trainer":
        return _why_not_ask(session, action, source)
    if need in NOT_RECORDED:
        if session.replay:
            return NOT_RECORDED[need]
        return NO_SOURCE if source is None else source.capabilities.why_not(need)
    if need == "proof":
        return why_not(session, "lab_run", source, away, heard) or session.doctor.why_no_proof
    if need == "fix":
        return "" if session.doctor.more_fixes else "there is no other fix to copy"
    if need == "lab":
        if session.replay:
            return "the lab needs a live session"
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


def _why_not_ask(session: Situation, action: str, source: Source | None) -> str:
    if session.replay:
        return "a recording cannot be asked"
    if source is None:
        return NO_SOURCE
    if not _has_trainers(session):
        return NO_TRAINER
    return source.capabilities.why_not(action)


def _has_trainers(session: Situation) -> bool:
    host = session.host
    return host is not None and any(trainer.gone is None for trainer in host.trainers)
