"""The session has what the panels read, and the state of looking.

That is the picture of this moment, its history, and what the source can do. The session owns
the source and the store. It knows no widget: it calls ``changed`` when there is a new picture.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ...config import Settings
from ...store.view import LOCAL
from ...wire.frames import Sample
from ..background.happened import Happened
from ..background.view_state import ViewState
from .action_availability import why_not
from .frozen_view import FrozenView, next_speed, replay_text
from .gathering import Gathering
from .keymap import key_of
from .notices import Notices
from .rates import ask_rate, next_rate
from .selection import Selection
from .self_cpu import OwnLoad

if TYPE_CHECKING:
    from argparse import Namespace

    from ...lab.config import LabConfig
    from ...model.ended_jobs import EndedJob
    from ...store.replay import ReplaySource
    from ...store.source import Source
    from ...store.store import Store
    from ...store.view import History, HostView, Link
    from ...wire.frames import Frame
    from ..background.doctor_watch import DoctorWatch
    from ..background.predictions import Predictions
    from ..background.probe_queries import Asker
    from ..background.sources import Hosts
    from ..runs.runs import LabRuns
    from ..terminal.terminal_rate import TerminalLink
    from .alerts import AlertWatch


log = logging.getLogger("gpuscope.tui")

USUAL_HZ = 1.0
"""Samples a second, as other monitors have: who wants more has a key and a setting for it."""
LOCAL_CHARTS_SECONDS, REMOTE_CHARTS_SECONDS = 2.0, 5.0


def _hosts_of(source: Source | None) -> Hosts | None:
    from ..background.sources import Hosts

    return Hosts([source]) if source is not None else None


class Session:
    """One source that is shown in one terminal.

    The store is made with the first use, after the first frame; ``make_source`` makes the
    source then, off the event loop, for a rate in Hz; ``make_hosts`` makes several.
    ``over_ssh`` makes the defaults lighter. ``remote_options`` are those of ``attach``, for hosts
    that are added later.
    """

    def __init__(
        self,
        store: Store | None = None,
        source: Source | None = None,
        *,
        make_source: Callable[[float], Source] | None = None,
        make_hosts: Callable[[float], Hosts] | None = None,
        replay: ReplaySource | None = None,
        settings: Settings | None = None,
        state: ViewState | None = None,
        over_ssh: bool = False,
        lab: LabConfig | None = None,
        lab_autostart: bool = False,
        remote_options: Namespace | None = None,
    ) -> None:
        self.settings, self.state = settings or Settings(), state or ViewState()
        self.over_ssh, self.remote_options = over_ssh, remote_options
        self._lab_config = lab
        self._labs: LabRuns | None = None  # made with the first use: the first frame needs no lab
        self._predictions: Predictions | None = None
        self._asker: Asker | None = None
        self._doctor: DoctorWatch | None = None
        self._alerts: AlertWatch | None = None
        self._rate_chosen = False
        self.tab = ""
        """The visible tab: on ``fleet`` all hosts are on the screen, not one of them."""
        self.fleet_filter = ""
        self.fleet_heard: Callable[[str], None] = lambda key: None
        """Is called with the key of a host that sends something while all are on the screen."""
        self.lab_autostart = lab_autostart
        self.notices = Notices()
        self.happened = Happened()
        """What happened to the hosts, and what was done here to end processes."""
        self.selection = Selection()
        self.replay = replay
        """The source when it is a recording."""
        self._store, self._source, self._make_source = store, source or replay, make_source
        self._make_hosts, self.hosts = make_hosts, _hosts_of(source or replay)
        """The sources, and which of them is looked at; None before they are made."""
        self.link: TerminalLink | None = None
        """How fast the terminal takes what is drawn; None where nothing is."""
        self.frozen_view = FrozenView()
        """Whether the screen stands still, and at which moment."""
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._gathering = Gathering(self._publish)
        self._link_states: dict[str, str] = {}
        self._changed: Callable[[], None] = lambda: None
        self._load = OwnLoad()

    # ── reading ──

    @property
    def host(self) -> HostView | None:
        """The host that is looked at, None before there is one.

        While the screen is paused, it is the host as it was then. Its shares of the time are those
        of the findings.
        """
        host = self._picture
        return host if host is None or self._doctor is None else self._doctor.in_step(host)

    @property
    def _picture(self) -> HostView | None:
        if self._store is None:
            return None
        frozen = self.frozen_view.frozen
        past = self.frozen_view.past(self._source.key if self._source is not None else None)
        if past is not None:
            return past
        if self.hosts is None or not self.many:
            return (frozen or self._store.view()).host
        return (
            self.hosts.host(frozen)
            if frozen is not None
            else self._store.host(self.hosts.source.key)
        )

    @property
    def many(self) -> bool:
        """Whether several hosts are looked at."""
        return self.hosts is not None and len(self.hosts.sources) > 1

    @property
    def _now(self) -> HostView | None:
        """The host looked at as it is now, also while the screen stands."""
        if self._store is None:
            return None
        return (
            self._store.view().host if self._source is None else self._store.host(self._source.key)
        )

    def host_of(self, key: str) -> HostView | None:
        """The host of a source as it is now, also while the screen is frozen."""
        return self._store.host(key) if self._store is not None else None

    def history(self, entity_id: int, column: str, seconds: float | None = None) -> History:
        """Return a column of the host that is looked at, over the last ``seconds``.

        It ends at the moment that is shown.
        """
        from ...store.view import History

        host = self.host
        if host is None or self._store is None:
            return History()
        now = host.sampled_seconds
        since = None if seconds is None or self.frozen_view.frozen is not None else seconds
        history = self._store.history(host.key, entity_id, column, since)
        if now is None or not len(history):
            return history
        last = bisect_right(history.seconds, now)
        first = bisect_right(history.seconds, now - seconds) if seconds is not None else 0
        seen = history.seen_since
        return History(history.seconds[first:last], history.values[first:last], seen)

    @property
    def known(self) -> Store | None:
        """What all sources have said; None before there is one."""
        return self._store

    @property
    def charts_seconds(self) -> float:
        """The least time between two drawings of a chart; 0 in a replay that is still or fast."""
        if (played := self.replay) is not None and (played.paused or played.ended or played.fast):
            return 0.0
        usual = self.settings.charts_seconds or (
            REMOTE_CHARTS_SECONDS if self.over_ssh else LOCAL_CHARTS_SECONDS
        )
        return usual if self.link is None else self.link.charts_seconds(usual)

    @property
    def wanted_hz(self) -> float:
        """The rate to ask of the source: of several hosts at first one sample a second each."""
        hz = self.state.rate_hz or self.settings.rate_hz or USUAL_HZ
        return min(hz, USUAL_HZ) if self.many and not self._rate_chosen else hz

    @property
    def labs(self) -> LabRuns:
        if self._labs is None:
            from ..runs.runs import LabRuns

            self._labs = LabRuns(
                self._lab_config,
                lambda: self._changed(),
                lambda: self._store.view().host if self._store is not None else None,
            )
        return self._labs

    @property
    def training(self) -> LabRuns | None:
        """The lab's runs while one or a search is in progress, which quitting would end."""
        labs = self._labs
        return labs if labs is not None and labs.ends_something else None

    @property
    def predictions(self) -> Predictions:
        """What the lab's model would need on a GPU."""
        if self._predictions is None:
            from ..background.predictions import Predictions

            self._predictions = Predictions(lambda: self._changed())
        return self._predictions

    @property
    def asker(self) -> Asker:
        """What can be asked of a trainer's probe."""
        if self._asker is None:
            from ..background.probe_queries import Asker

            self._asker = Asker(
                lambda: (self._store, self._source) if self._store and self._source else None,
                self._gather,
            )
        return self._asker

    @property
    def doctor(self) -> DoctorWatch:
        """The doctor's findings on the selected host."""
        if self._doctor is None:
            from ..background.doctor_watch import DoctorWatch

            self._doctor = DoctorWatch(
                *(lambda: self._changed(), lambda: self.local, self.replay),
                *(self.state, self.happened.stopped),
            )
        return self._doctor

    @property
    def alerts(self) -> AlertWatch | None:
        """The alerts of the config file; None where it names none."""
        if self._alerts is None and self.settings.alerts.any:
            from .alerts import AlertWatch

            self._alerts = AlertWatch(
                self.settings.alerts, self.notices, lambda: self.replay is None
            )
        return self._alerts

    @property
    def found(self) -> tuple[int, int, tuple[EndedJob, ...], bool]:
        """Open problems and warnings, the jobs that ended badly, and whether that is news."""
        return (0, 0, (), False) if self._doctor is None else self._doctor.counts()

    @property
    def hangs(self) -> bool:
        """Whether the doctor sees a job that stands still."""
        return self._doctor is not None and self._doctor.sees_a_hang

    @property
    def local(self) -> bool:
        """Whether this machine is looked at, as it is now."""
        return self.replay is None and self._source is not None and self._source.key == LOCAL

    def judge(self) -> bool:
        """Let the doctor look at the picture where it is time to, and return whether it did.

        A frozen picture is not judged again.
        """
        if self.frozen_view.seconds is not None:
            return False
        host = self._picture
        if host is not None and (host.trainers or host.devices):
            self.asker.look_back(host)
        doctor = self.doctor
        judged = doctor.look(host, self.history)
        if host is not None:
            judged |= self.happened.look(host, doctor.cases, self._labs, doctor.told)
            self.notices.shown_seconds = host.wall_seconds if self.replay is not None else None
        return judged

    def why_not(self, action: str) -> str:
        """Return why the session cannot carry out an action of the registry, "" when it can."""
        away = self._make_hosts is not None or (
            self.many and self._source is not None and self._source.key != LOCAL
        )
        return why_not(self, action, self._source, away, self._store is not None)

    def cpu_percent(self) -> float | None:
        """Return the viewer's own load in percent of one core, over the last seconds.

        It is None before it was measured.
        """
        return self._load.percent()

    # ── running ──

    def start(self, changed: Callable[[], None]) -> None:
        """Begin to listen, in the running event loop.

        ``changed`` is called once for frames that come together.
        """
        self._changed = changed
        self._load.begin()
        if self._task is None and (self._source or self._make_source or self._make_hosts):
            self._task = asyncio.get_running_loop().create_task(self._listen())
        if self.lab_autostart and not self.why_not("lab_run"):
            self.labs.start_when_known()

    async def _listen(self) -> None:
        try:
            if self._source is None and self._make_hosts is not None:
                self.hosts = await asyncio.to_thread(self._make_hosts, self.wanted_hz)
                self._source = self.hosts.source
            elif self._source is None and self._make_source is not None:
                self._source = await asyncio.to_thread(self._make_source, self.wanted_hz)
                self.hosts = _hosts_of(self._source)
            assert self.hosts is not None
            if self._store is None:
                from ...store.store import Store

                self._store = Store()
            await self.hosts.run(self._store, self._hear, self._hear_link)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            log.exception("the source failed")
            self.notices.say(f"The source failed: {error!r}. The last screen is kept.", "bad")
        self._publish()

    def _hear(self, key: str, frame: Frame, received_seconds: float) -> None:
        assert self._store is not None
        self._store.apply(key, frame, received_seconds)
        if self.tab == "fleet" and self.frozen_view.frozen is None:
            self.fleet_heard(key)
        self._gather(key, isinstance(frame, Sample))

    def _hear_link(self, key: str, link: Link) -> None:
        if link.state == "ended" and key_of("connect_again") not in link.text:
            link = replace(link, text=link.text + self._how_again(key))
        if (
            link.state != self._link_states.get(key)
            and link.state in ("stale", "ended")
            and link.text
        ):
            who = f"{key}: " if self.many else ""
            who = "" if link.text.startswith(key) else who
            text, quiet = f"{link.state}: {who}{link.text}", self.tab == "fleet"
            self.notices.say(text, "warn", only_log=quiet, kind="link")
        self._link_states[key] = link.state
        assert self._store is not None
        self._store.set_link(key, link)
        self._gather(key)

    def _how_again(self, key: str) -> str:
        from ..background.sources import Reconnecting

        sources = self.hosts.sources if self.hosts is not None else ()
        source = next((one for one in sources if one.key == key), None)
        again = isinstance(source, Reconnecting)
        return f". {key_of('connect_again')}: connect again" if again else ""

    def next_host(self, by: int) -> None:
        """Look at the next of several hosts."""
        if self.hosts is not None:
            self._source = self.hosts.step(by)
            self._changed()

    def look_at(self, key: str) -> None:
        """Look at the host with this key from now on."""
        if self.hosts is not None:
            self._source = self.hosts.look_at(key)

    def connect_again(self) -> None:
        """Connect again to the selected host, whose connection has ended or waits."""
        if self.hosts is not None:
            self.hosts.connect_again()

    def sought(self) -> tuple[HostView, int] | None:
        """Return the host and pid of a process that somebody came for, once, when it is seen.

        It is looked at from then on.
        """
        if self.hosts is None or not self.hosts.wanted or self._store is None:
            return None
        found = self.hosts.sought(self._store.host)
        self._source = self.hosts.source if found is not None else self._source
        return found

    def _gather(self, key: str = "", whole: bool = False) -> None:
        """Make a picture soon, unless it shows nothing of the source ``key``."""
        other = self._source is not None and key not in ("", self._source.key)
        if other and self.tab != "fleet" and not (self.hosts and self.hosts.wanted):
            return
        self._gathering.heard(self.tab == "fleet" and self.many, whole)

    def _publish(self) -> None:
        if self.alerts is not None and self._store is not None:
            self.alerts.look(self._store.view().hosts, self._store.history)
        self._changed()

    def close(self) -> None:
        """Stop at once.

        A live source that is cancelled kills its agent, which may be inside a driver call
        without end.
        """
        self._gathering.stop()
        if self._labs is not None:
            self._labs.let_go()
        for part in (self._predictions, self._asker, self._doctor, self._alerts):
            if part is not None:
                part.close()
        if self._task is not None:
            self._task.cancel()

    # ── looking ──

    @property
    def paused_seconds(self) -> float | None:
        """How long the screen has been frozen, None when it is not."""
        return self.frozen_view.seconds

    @property
    def ago_seconds(self) -> float:
        """How long before now the moment shown was; 0 while the screen goes on."""
        now = self._now
        return self.frozen_view.ago_seconds(now) or self._silent_seconds(now)

    def _silent_seconds(self, host: HostView | None) -> float:
        """Return for how long a host has sent nothing that is stale or unreachable."""
        if host is None or host.link.state != "stale" or self._store is None:
            return 0.0
        received = self._store.received_seconds(host.key)
        return 0.0 if received is None else max(0.0, time.monotonic() - received)

    def frozen_text(self) -> str:
        """Return for how long, or since when, the screen is frozen; "" while it is live."""
        return self.frozen_view.text(self._now)

    def toggle_pause(self) -> None:
        """Freeze the screen or let it go on; a replay stops playing."""
        if self.replay is not None:
            self.replay.toggle_pause()
        elif self.frozen_view.seconds is None and self._store is not None:
            self.frozen_view.stop(self._store.view())
        else:
            self.frozen_view.go_on()
        self._changed()

    def change_rate(self, faster: bool) -> None:
        """Choose the next rate, and ask the sources for it."""
        now = self.wanted_hz
        hz = next_rate(now, faster)
        if hz is None:
            self.notices.say(f"{now:g} Hz is the {'fastest' if faster else 'slowest'} rate")
            return
        self.state.rate_hz, self._rate_chosen = hz, True
        if self.hosts is not None:
            self._asking = asyncio.get_running_loop().create_task(self._ask_rate(self.hosts, hz))

    async def _ask_rate(self, hosts: Hosts, hz: float) -> None:
        await ask_rate(hosts, hz, self.notices)
        self._changed()

    def change_speed(self, faster: bool) -> None:
        """Replay at the next speed."""
        if self.replay is not None and next_speed(self.replay, faster):
            self._changed()

    def seek(self, seconds: float) -> None:
        """Move a replay by ``seconds``.

        In a live session the screen stops and shows what was then, while data keeps coming.
        """
        if (replay := self.replay) is not None:
            replay.seek_by(seconds)
        elif self._store is not None and (now := self._now) is not None:
            self.frozen_view.move(self._store, now.key, seconds)
        self._changed()

    def replay_text(self) -> str:
        """Return the place in a replay, as ``▶ 00:12 / 01:30 ×2``, "" when it is no replay."""
        until = self._doctor.judged_until if self._doctor is not None else None
        return replay_text(self.replay, until) if self.replay is not None else ""
