"""This module says what a process trains and how its memory is made up, for a panel beside others.

It knows no widget and asks nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...model.allocator_account import inside_torch
from ...model.job_state import broken_below
from ...model.lost_loss import loss_of
from ...model.pace import counts_of, pace_of, seconds_left
from ...model.ranks import running
from ...model.stalls import is_stalled, stalled_ranks
from ...model.step_parts import step_parts
from ...model.step_time import input_share
from ...store.view import AllocView, HostView, ProcView, TrainerView
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, duration_text, left_text, percent_text
from ..shared.fact_lines import fact
from ..shared.job_rows import loss_piece
from ..shared.process_trends import living_uses, trainer_in
from ..shared.step_split import split_pieces
from ..shell.keymap import key_of
from ..theme import UNICODE, Glyphs
from .idle import Idle
from .state_text import memory_bar, state_words

MOST_PARTS = 4
"""The largest parts of what torch has allocated; the Memory tab has all."""


def training_lines(
    host: HostView, process: ProcView, idle: Idle, cells: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """Return what it does, and with a probe the course of its training."""
    trainer = trainer_in(host, process)
    lines: list[Line] = []
    broken = broken_below(host, process, trainer)
    more = trainer is not None and _says_more(trainer)
    lost = loss_of(host, trainer or process)
    if broken is not None or lost is not None or more or (trainer is None and not idle):
        uses, stalled = living_uses(process), _stalled(host, trainer)
        of_job = (stalled, broken)
        words = state_words(process, uses, trainer, idle, glyphs, *of_job, lost=lost)
        lines = [fact("state", words)]
    if trainer is not None:
        lines += _course(host, trainer)
    elif process.gone is None and host.link.state != "replay":
        hint = " on the tabs attaches one without a restart, where the system allows it"
        lines.append(
            fact("probe", [("none; ", "muted"), (key_of("attach"), "accent"), (hint, "muted")])
        )
    return styled.hang_lines(lines, cells)


def _stalled(host: HostView, trainer: TrainerView | None) -> str:
    """Return how grave it is that the job of a trainer hangs, "" where it does not."""
    job = host.job_of(trainer)
    return stalled_ranks(job).get(trainer.key, "") if job is not None and trainer else ""


def _says_more(trainer: TrainerView) -> bool:
    """Return whether the state says more than the step that stands below it."""
    return is_stalled(trainer) or trainer.number("step") is None


def _course(host: HostView, trainer: TrainerView) -> list[Line]:
    n, pace = trainer.number, pace_of([trainer])
    lines: list[Line] = []
    job, total = host.job_of(trainer), n("progress_total")
    ranks = running(job.trainers) if job is not None else [trainer]
    step = counts_of(ranks).get(trainer.key, n("step"))
    eta = seconds_left(trainer) if not pace.stopped else None
    loss = loss_piece(host, [trainer])
    if step is not None:
        of = f" of {total:,.0f}" if total else ""
        left = f" · {left_text(eta)} left" if eta is not None else ""
        words: Line = [(f"{step:,.0f}{of}", "text"), (left, "muted")]
        words += [(" · loss ", "muted"), loss] if loss is not None else []
        lines.append(fact("step", words))
    elif loss is not None:
        lines.append(fact("loss", [loss]))
    parts = step_parts([trainer]) if not pace.stopped else None
    share = input_share(trainer) if not pace.stopped and parts is None else None
    waits: Line = []
    if share is not None:
        waits = [(" · input ", "muted"), (percent_text(share), "text")]
    slow = n("step_seconds_p95")
    if pace.seconds is not None:
        p95 = f" · p95 {duration_text(slow)}" if slow is not None else ""
        median = f"{duration_text(pace.seconds)} median"
        lines.append(fact("step time", [(median, "text"), (p95, "muted"), *waits]))
    elif pace.text:
        lines.append(fact("step time", [(pace.text_with_past, "warn")]))
    if parts is not None:
        lines.append(fact("time spent", split_pieces(parts, 60)))
    return lines


def memory_lines(host: HostView, process: ProcView, cells: int, glyphs: Glyphs) -> list[Line]:
    """Return the account of its memory in short; none without a probe."""
    trainer, uses = trainer_in(host, process), living_uses(process)
    gpus = {use.gpu for use in uses}
    devices = [device for device in host.devices if device.id in gpus]
    lines: list[Line] = []
    if (bar := memory_bar(uses, devices, trainer)) is not None:
        whole = sum(device.definition.total_bytes or 0 for device in devices)
        track = bar.draw(max(8, min(32, cells - 30)), glyphs)
        lines.append(fact("memory", [*track, (f"  of {bytes_text(whole)}", "muted")]))
    for allocator in trainer.allocators if trainer is not None else ():
        if allocator.gpu not in gpus:
            continue
        lines += allocator_lines(trainer, allocator, "torch now")
    return styled.hang_lines(lines, cells)


def allocator_lines(
    trainer: TrainerView | None, allocator: AllocView, label: str
) -> Iterable[Line]:
    """Yield what torch holds on a device by its last sample, what that is made of, and its peak."""
    parts, _ = inside_torch(trainer, allocator)
    outer = [part for part in parts if not part.inside]
    yield fact(label, amounts([(part.name, part.known) for part in outer]))
    inner = sorted(
        (part for part in parts if part.inside == "allocated"), key=lambda part: -part.known
    )
    if inner:
        yield fact("allocated", amounts([(part.name, part.known) for part in inner[:MOST_PARTS]]))
    peak = allocator.number("peak_allocated_bytes")
    if peak is not None:
        retries, ooms = allocator.number("alloc_retries"), allocator.number("ooms")
        again = "retry" if retries == 1 else "retries"
        more = f" · {retries:,.0f} cudaMalloc {again}" if retries else ""
        more += f" · {ooms:.0f} out of memory" if ooms else ""
        token = "warn" if ooms else "muted"
        yield fact("peak", [(f"{bytes_text(peak)} since the start", "text"), (more, token)])


def amounts(parts: Sequence[tuple[str, float]]) -> Line:
    """Return sizes with their names, one after the other."""
    out: Line = []
    for name, size in parts:
        out += [(" · ", "muted")] if out else []
        out += [(f"{name} ", "muted"), (bytes_text(size), "text")]
    return out
