"""This module says which trainers have curves in charts where not all of them have room."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...model.lost_loss import told_loss
from ...model.ranks import of_one_job
from ...model.stalls import is_stalled
from ...model.step_time import input_share

if TYPE_CHECKING:
    from ...store.view import HostView, TrainerView


def worst_first(
    host: HostView, order: Sequence[str], most: int, seconds: float
) -> list[TrainerView]:
    """Return the living trainers; of more than ``most``, those to look at come first.

    ``order`` are keys of jobs. One rank of each job comes before the next ranks, and last what had
    no step in the last ``seconds``: it has no curve.
    """
    living = [t for t in host.trainers if t.gone is None]
    if len(living) <= most:
        return living
    place: dict[str, int] = {}
    for key in order:
        place.setdefault(key, len(place))
    keys = {t.id: job.key for job in host.jobs for t in job.trainers}
    seen: dict[str, int] = {}
    ranked: list[tuple[bool, int, int, int]] = []
    for at, one in enumerate(living):
        key = keys.get(one.id, "")
        seen[key] = seen.get(key, 0) + 1
        ranked.append((_is_silent(one, seconds), seen[key], place.get(key, len(place)), at))
    return [living[at] for *_, at in sorted(ranked)]


def drawn_trainers(
    living: Sequence[TrainerView], most: int, seconds: float, column: str = ""
) -> list[TrainerView]:
    """Return the trainers that have a curve each: the first, and of one job the rank to look at.

    Of more than have room, those without a value have no place in its chart.
    """
    if len(living) > most and column in ("loss", "input"):
        values = [input_share(t) if column == "input" else t.number(column) for t in living]
        known = [t for t, value in zip(living, values, strict=True) if value is not None]
        living = known or living
    shown = [*living[:most]]
    others = [t for t in living if not _is_silent(t, seconds)]
    if len(living) > len(shown) and others and of_one_job(living):
        odd = max(others, key=lambda t: (is_stalled(t), input_share(t) or 0.0))
        if odd not in shown:
            shown[-1] = odd
    return shown


def tells_loss(host: HostView, trainer: TrainerView) -> bool:
    """Return whether a trainer tells its loss by itself, also one that is NaN by now."""
    told = told_loss(host, trainer)
    return trainer.number("loss") is not None or (told is not None and told[0] == "loss")


def _is_silent(trainer: TrainerView, seconds: float) -> bool:
    return (trainer.number("step_age_seconds") or 0.0) > seconds
