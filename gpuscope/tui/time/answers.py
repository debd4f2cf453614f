"""What trainers have answered to looks and counts, read once for each answer."""

from __future__ import annotations

from ...model.look import Look
from ...model.look import read as read_look
from ...model.useful_work import UsefulWork, of_trainer
from ...store.view import HostView, TrainerView
from ..shell.session import Session


class Answers:
    """The last look and the last count of the trainer that is shown."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._look: tuple[object, Look | None] = (None, None)
        self._work: tuple[object, UsefulWork | None] = (None, None)

    def look(self, trainer: TrainerView) -> tuple[Look | None, float | None]:
        """Return the last look at the GPU of a trainer that uses one, and its age in seconds."""
        if not trainer.definition.cuda:
            return None, None
        if trainer.look is not self._look[0]:
            self._look = (trainer.look, read_look(trainer.look) if trainer.look else None)
        look, host = self._look[1], self._session.host
        wall = host.wall_seconds if host is not None else None
        return look, look.age_seconds(wall) if look is not None else None

    def work(self, trainer: TrainerView, host: HostView) -> UsefulWork | None:
        """Return what a step of a trainer computes, None while none was counted."""
        value = self._session.asker.seen(trainer, "work").value
        if value is not self._work[0]:
            self._work = (value, of_trainer(value, trainer, host) if value else None)
        return self._work[1]
