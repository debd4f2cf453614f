"""This module tells a session's alerts: to the log, the notices, the bell and a user's command.

The command is a list of words, started without a shell, with the alert as one line of JSON on
its standard input; it is ended after its time. In a recording nothing is started: what happened
then is no news.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from ...model.alerts import Alert, Alerts
from ...process.child import kill_group
from ...store.view import no_history
from ...text.units import window_text
from ..tasks import Tasks

if TYPE_CHECKING:
    from ...model.alerts_settings import AlertSettings
    from ...store.view import History, HostView
    from .notices import Notices

log = logging.getLogger("gpuscope.tui")

AT_ONCE = 4
"""Commands that run at the same time; more alerts than that are logged, and the command is not
started for them.
"""


class AlertWatch:
    """What tells alerts as they come and go.

    ``live`` says whether what is looked at happens now.
    """

    def __init__(self, settings: AlertSettings, notices: Notices, live: Callable[[], bool]) -> None:
        self._settings, self._notices, self._live = settings, notices, live
        self._alerts = Alerts(settings)
        self._running = Tasks()
        self._ring = False

    @property
    def active(self) -> list[Alert]:
        """What has fired and not cleared."""
        return self._alerts.active

    def look(
        self, hosts: Iterable[HostView], history: Callable[..., History] | None = None
    ) -> None:
        """The picture has changed; ``history`` takes the key of a host before what it asks for."""
        for host in hosts:
            of_host = partial(history, host.key) if history is not None else no_history
            for alert in self._alerts.look(host, of_host):
                self._tell(alert)

    def rings(self) -> bool:
        """Return whether the bell should sound now, once."""
        ring, self._ring = self._ring, False
        return ring

    def _tell(self, alert: Alert) -> None:
        fired = alert.state == "fired"
        self._notices.say(
            f"alert: {alert.text}" if fired else f"over: {alert.text}", "bad" if fired else "ok"
        )
        log.warning("alert %s on %s: %s", alert.state, alert.host, alert.text)
        if not self._live():
            return
        self._ring = self._ring or (fired and self._settings.bell)
        if self._settings.on_alert:
            if len(self._running) >= AT_ONCE:
                self._notices.say(
                    f"on_alert was not started: {AT_ONCE} of them are still running", "warn"
                )
                return
            self._running.begin(self._run(alert))

    async def _run(self, alert: Alert) -> None:
        argv, most = self._settings.on_alert, self._settings.on_alert_seconds
        line = json.dumps(alert.data(), allow_nan=False).encode() + b"\n"
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or str(error)
            self._notices.say(
                f"on_alert: cannot start {argv[0]}: {why}. Next: correct [alerts] on_alert", "warn"
            )
            return
        try:
            await asyncio.wait_for(child.communicate(line), most)
        except (asyncio.TimeoutError, TimeoutError):
            self._notices.say(
                f"on_alert: {argv[0]} did not end within {window_text(most)}, and was stopped",
                "warn",
            )
        else:
            if child.returncode:
                self._notices.say(f"on_alert: {argv[0]} ended with {child.returncode}", "warn")
        finally:
            kill_group(child)

    def close(self) -> None:
        """Nobody waits any more; what still runs is ended."""
        self._running.stop()
