"""This module adds a host to a session that runs: what is typed goes the way of ``attach``."""

from __future__ import annotations

import argparse
import asyncio
from typing import TYPE_CHECKING, Any

from textual.app import App

from ...errors import UsageError
from ..tasks import Tasks
from ..widgets.program import program
from .ssh_dialog import Prompts

if TYPE_CHECKING:
    from ...cli.remote import Ways
    from ...store.source import Source
    from ..shell.session import Session

PLAIN = argparse.Namespace(via="", ssh_command="ssh", remote_python="")
"""The options of ``attach`` that apply if the user gave none."""


def why_not(session: Session) -> str:
    """Return why no further host can be shown, "" where one can."""
    from ...attach.targets import MAX_TARGETS

    if session.replay is not None:
        return "a replay cannot connect to a host. In another terminal: gpuscope attach USER@HOST"
    if session.hosts is None or not session.hosts.running:
        return "nothing is connected yet, or everything has ended"
    if len(session.hosts.sources) >= MAX_TARGETS:
        return f"{MAX_TARGETS} hosts are the most that one screen shows"
    return ""


def names_of_ssh(session: Session) -> list[str]:
    """Return the hosts of the user's ssh configuration that are not shown yet."""
    from ...attach.ssh_aliases import aliases
    from ...attach.targets import prefix_words

    there = {source.key for source in session.hosts.sources} if session.hosts is not None else ()
    command = (session.remote_options or PLAIN).ssh_command
    return [name for name in aliases(prefix_words(command)) if name not in there]


class Connector:
    """Makes sources for targets, and asks in the app what ssh asks on the way."""

    def __init__(self, app: App[Any], options: argparse.Namespace | None = None) -> None:
        self._app, self._options = program(app), options or PLAIN
        self._prompts = Prompts()
        self._prompts.app = app
        self._ways: Ways | None = None
        self._work = Tasks()

    def begin(self, text: str) -> None:
        """Connect to a target in the background, and report the result as a notice."""
        self._work.begin(self._connect(text))

    def close(self) -> None:
        """Stop asking the user, because the app is closing."""
        self._work.stop()
        if self._ways is not None:
            self._ways.close()

    async def _connect(self, text: str) -> None:
        app, session = self._app, self._app.session
        app.say(f"looking for {text}")
        try:
            found = await asyncio.to_thread(self._sources, text, session.wanted_hz)
        except (UsageError, OSError) as error:
            app.say(f"{text}: {error}", "warn")
            return
        for source, pid in found:
            join(session, source, pid)
        app.hosts_changed()
        app.say(f"connecting to {', '.join(source.label for source, _ in found)}")

    def _sources(self, text: str, hz: float) -> list[tuple[Source, int | None]]:
        """Return a source for each place. Raises ``BadTarget``."""
        from ...attach import bootstrap
        from ...cli import remote
        from ..shell.session import USUAL_HZ

        settings = self._app.session.settings
        if self._ways is None:
            self._ways = remote.Ways(self._options, self._prompts.answer, settings.redact)
        bootstrap.prepare()
        found: list[tuple[Source, int | None]] = []
        for place in remote.places(self._options, [text]):
            if place.is_remote:
                found.append((self._ways.source(place, min(hz, USUAL_HZ)), place.pid))
            else:
                raise UsageError(f"this is not another host. Next: gpuscope attach {text}")
        return found


def join(session: Session, source: Source, pid: int | None) -> None:
    """Select a source. It is added to the session unless it is there already."""
    hosts = session.hosts
    assert hosts is not None
    if all(one.key != source.key for one in hosts.sources):
        hosts.add(source)
    if pid is not None:
        hosts.wanted.append((source.key, pid))
    session.look_at(source.key)
