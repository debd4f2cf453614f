"""What is known of a job that has ended as it was then, for a page on which nothing runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...model.allocator_account import on_cpu
from ...model.job_ends import end_of
from ...model.pace import pace_of
from ...model.ranks import name_of
from ...model.step_parts import step_parts
from ...text import styled
from ...text.styled import Line
from ...text.units import duration_text
from ...wire.frames import Unknown
from ..processes.training_text import allocator_lines, amounts
from ..shared.after_end import after_end
from ..shared.fact_lines import fact
from ..shared.job_notes import end_notes
from ..shared.step_split import part_lines

if TYPE_CHECKING:
    from ...store.view import HostView, JobView
    from ..shell.session import Session
    from ..theme import Glyphs


def last_ended(host: HostView) -> JobView | None:
    """Return the training that ended last, None where one runs, or none ever ran with a probe."""
    ended = [(gone, job) for job in host.jobs if job.trainers and (gone := end_of(job)) is not None]
    if not ended or any(one.gone is None for one in host.trainers):
        return None
    return max(ended, key=lambda one: one[0].wall_seconds or 0.0)[1]


def as_it_was(session: Session, host: HostView, glyphs: Glyphs, cells: int) -> list[Line]:
    """Return how the training that ended last stood at its end, nothing while one runs."""
    job = last_ended(host)
    if job is None:
        return []
    return [
        [],
        [(f"{job.title} as it was at its end", "accent")],
        *styled.hang_lines(end_notes(host, job, session.happened.stopped), cells),
        *styled.hang_lines(after_end(session, host, job), cells),
        *_step(session, host, job, glyphs, cells),
        *styled.hang_lines(_memory(job), cells),
    ]


def _step(
    session: Session, host: HostView, job: JobView, glyphs: Glyphs, cells: int
) -> Iterator[Line]:
    """Yield how long a step took, and what of."""
    usual = pace_of(job.trainers).usual_seconds
    if usual:
        yield [("step time: ", "faint"), (f"{duration_text(usual)} in the median", "muted")]
    parts = step_parts(job.trainers, host, session.history)
    if parts is not None:
        yield []
        yield [(f"Where a step went, {parts.basis}", "accent")]
        yield from part_lines(parts, cells, glyphs)


def _memory(job: JobView) -> Iterator[Line]:
    """Yield what the memory of the fullest rank was made of, by its last sample."""
    found = [(allocator, rank) for rank in job.trainers for allocator in rank.allocators]
    if not found:
        return
    allocator, rank = max(found, key=lambda one: one[0].number("reserved_bytes") or 0.0)
    ordinal = allocator.definition.ordinal
    who = f" of {name_of(rank)}" if len(job.trainers) > 1 else ""
    yield []
    yield [(f"Memory{who} by its last sample", "accent")]
    if ordinal >= 0:
        yield from allocator_lines(rank, allocator, f"cuda:{ordinal}")
        return
    known = [part for part in on_cpu(allocator) if not isinstance(part.size, Unknown)]
    if known:
        yield fact("on the CPU", amounts([(part.name, part.known) for part in known]))
    else:
        yield fact("on the CPU", [("not known", "faint")])
