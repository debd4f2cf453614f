"""What the trainer of a finding has done for a minute, below the finding on a large terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model.ranks import subject_of
from ...store.view import by_id, by_pid
from ...text.units import window_text
from ..charts.trends import Trends, wanted_rows
from ..shared.process_trends import process_trends
from ..shared.windows import shortest_window
from ..shell.clock_at import clock_at
from ..widgets.pane import set_title

if TYPE_CHECKING:
    from ...store.view import HostView
    from ..background.finding_history import Case
    from ..shell.session import Session

SECONDS, FRAME, AXIS = 60.0, 2, 2


class FindingCourse(Trends):
    """The readings of a trainer and its process, a line or a few each."""

    _drawn: tuple[object, ...] = ()

    def follow(self, session: Session, host: HostView, case: Case | None, free: int) -> None:
        """Show the trainer that a finding is about, where ``free`` rows suffice for it."""
        trainer = by_pid(host.trainers, case.pid) if case is not None else None
        process = by_id(host.processes, trainer.process) if trainer is not None else None
        if trainer is None or trainer.gone is not None or process is None:
            self.display, self._drawn = False, ()
            return
        now = host.sampled_seconds or 0.0
        clock = clock_at(session, host)
        drawn = trainer.key, int(now / (session.charts_seconds or 0.1)), free, clock is None
        if drawn == self._drawn:
            return
        self._drawn = drawn
        known = session.history(trainer.id, "step", SECONDS).seconds
        window = shortest_window(now - known[0] if known else SECONDS, SECONDS)
        trends = process_trends(host, process, window, session.history)
        self.display = bool(trends) and free >= len(trends) + AXIS + FRAME
        if not self.display:
            return
        self.styles.height = min(free, wanted_rows(trends) + FRAME)
        set_title(self, f"{subject_of(trainer, first=True)} over {window_text(window)}")
        self.show(trends, window, host.sampled_seconds, clock)
