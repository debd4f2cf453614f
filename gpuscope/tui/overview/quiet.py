"""The panels of the Overview of a host on which nothing trains and no GPU works.

They say what ran here before, and what can run here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.app import ComposeResult
from textual.containers import Horizontal

from ...wire.frames import NOT_INITIALISED
from ..widgets.program import program
from ..widgets.text import Lines

if TYPE_CHECKING:
    from ...lab.ledger import Entry
    from ...store.view import HostView
    from ..shell.session import Session

QUIET_SECONDS = 60.0
"""A host is quiet once its GPUs have done nothing for so long."""
BUSY_PERCENT = 1.0
STACKED_ROWS = 13
"""With fewer rows the panels are not worth to stand below one another."""
WANTED_ROWS, LEAST_WANTED_ROWS = 21, 8
"""Lines that these panels can use, without their frame: here, and of another machine."""


def deviceless(host: HostView | None) -> bool:
    """Return whether it is known that there are no devices to look at."""
    return (
        host is not None
        and not host.devices
        and host.nvml is not None
        and host.nvml.code != NOT_INITIALISED
    )


class Quiet:
    """Tells whether a host is quiet, and remembers when its GPUs worked last."""

    def __init__(self) -> None:
        self._busy: dict[str, float] = {}

    def rows(self, host: HostView | None, local: bool) -> int:
        """Return how many lines there are to say of a host, 0 unless it is quiet."""
        if host is None or not self.of(host):
            return 0
        return WANTED_ROWS if local else LEAST_WANTED_ROWS

    def of(self, host: HostView) -> bool:
        """Return whether nothing trains and no GPU has worked for a minute, as far as was seen.

        A recording is never quiet: what it shows is over, and nothing can be started there.
        """
        now = host.sampled_seconds
        if now is None or host.link.state == "replay":
            return False
        if any(trainer.gone is None for trainer in host.trainers):
            return False
        if any((d.number("utilization_percent") or 0.0) >= BUSY_PERCENT for d in host.devices):
            self._busy[host.key] = now
        last = self._busy.get(host.key)
        return last is None or not 0 <= now - last <= QUIET_SECONDS


class QuietPanels(Horizontal):
    """What can run here, what ran here before, and the host where no other panel shows it."""

    DEFAULT_CSS = """
    QuietPanels { display: none; }
    QuietPanels > * { width: 1fr; height: 1fr; }
    QuietPanels > #quiet-host { width: 58; }
    """

    def __init__(self, session: Session, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.session = session
        self._earlier = Lines(id="earlier", classes="panel")
        self._ideas = Lines(id="ideas", classes="panel")
        self._host = Lines(id="quiet-host", classes="panel")
        self._names: list[str] | None = None
        """The hosts of the ssh configuration, once it was read."""
        self._stacked = False
        """Whether the panels stand below one another, where they have no room side by side."""

    def compose(self) -> ComposeResult:
        self._earlier.border_title = "Here before"
        self._ideas.border_title = "What you can do here"
        self._host.border_title = "Host"
        yield self._ideas
        yield self._earlier
        yield self._host

    def give(self, rows: int, with_host: bool) -> None:
        """Take ``rows`` of the terminal, 0 to be hidden."""
        self.display = rows > 0
        self._host.display = with_host
        self.styles.height = rows
        self._stacked = not with_host and self.session.local and rows > STACKED_ROWS
        self.styles.layout = "vertical" if self._stacked else "horizontal"
        self._ideas.styles.height = "auto" if self._stacked else "1fr"

    def show(self, host: HostView) -> None:
        """Bring what is on the screen up to date."""
        if not self.display or not self.is_mounted:
            return
        from .quiet_text import earlier_lines, idea_lines, ideas

        local = self.session.local
        if self._earlier.display != local:
            self._earlier.display = local
            self.call_after_refresh(self.show, host)  # the other has more room then
        width, rows = self._ideas.size
        rows = 0 if self._stacked else rows  # a line for each, and as high as they are
        names = self._ssh_names() if not host.devices else []
        self._ideas.show(idea_lines(ideas(host), names, max(width, 30), rows))
        if local:
            width, rows = self._earlier.size
            doctor = self.session.doctor
            deaths = doctor.deaths if doctor.environment is not None else None
            found = earlier_lines(deaths, self._runs(), max(width, 30), rows, doctor.ended_here)
            self._earlier.show(found)

        if self._host.display:
            from ..shared.host_text import host_lines

            width, rows = self._host.size
            glyphs, history = self._host.tokens.glyphs, self.session.history
            self._host.show(host_lines(host, history, max(width, 30), glyphs, rows, True))

    def _ssh_names(self) -> list[str]:
        if self._names is None:
            self._names = program(self._host.app).ssh_names()
        return self._names

    def _runs(self) -> tuple[Entry, ...] | None:
        """Return the runs of the Lab, None while they are being read."""
        from ...lab.ledger import default_path

        if not default_path().exists():
            return ()
        book = self.session.labs.book
        if book.entries is None and not book.problem:
            book.open()
        return book.entries
