"""Judge how trainers ended: out of memory, by an exception, or without an error message.

The events of a recording or of a black box show this.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from ..model.job_ends import end_text, may_be_out_of_memory
from ..store.view import HostView, JobView, Mark, TrainerView
from ..text.units import bytes_text
from ..wire.frames import Event
from . import postmortem_oom
from .finding import Abstained, Evidence, Finding, Report
from .live_scene import LiveScene, place

RAN_ON_SECONDS = 5.0
"""Readings of the host that were taken more seconds than this after an end do not explain it."""


def examine(host: HostView, jobs: Sequence[JobView]) -> Report:
    """Yield findings on uncaught out-of-memory errors and on unexplained ends.

    A trainer that ended normally gets none.
    """
    findings: list[Finding] = []
    abstained: list[Abstained] = []
    for job in jobs:
        for trainer in job.trainers:
            ooms = list(_uncaught_ooms(host, trainer))
            for mark, device_total in ooms[-1:]:
                findings += postmortem_oom.judge(_oom_facts(host, trainer, mark, device_total))
            if trainer.gone is None or ooms:
                continue
            ended = _exception_event(host, trainer)
            if ended is not None:
                findings += _exception_findings(ended, place(LiveScene(host), trainer))
            elif may_be_out_of_memory(trainer.gone):
                killed = _judge_silent_end(host, trainer)
                if isinstance(killed, Finding):
                    findings.append(killed)
                elif killed is not None:
                    abstained.append(killed)
    return Report(findings=tuple(findings), abstained=tuple(abstained))


def _uncaught_ooms(host: HostView, trainer: TrainerView) -> Iterator[tuple[Mark, float]]:
    ids = {trainer.id, *(allocator.id for allocator in trainer.allocators)}
    for mark in host.marks:
        total = mark.data.get("total_bytes")
        caught = mark.data.get("state") == "withdrawn"
        if mark.kind == "oom" and mark.id in ids and isinstance(total, (int, float)) and not caught:
            yield mark, float(total)


def _oom_facts(
    host: HostView, trainer: TrainerView, mark: Mark, total: float
) -> postmortem_oom.OomFacts:
    allocator = next((one for one in trainer.allocators if one.id == mark.id), None)
    requested, free = mark.data.get("requested_bytes"), mark.data.get("free_bytes")
    number = allocator.number if allocator is not None else lambda _column: None
    return postmortem_oom.OomFacts(
        requested=requested if isinstance(requested, (int, float)) else None,
        free=free if isinstance(free, (int, float)) else None,
        total=total,
        allocated=number("allocated_bytes"),
        reserved=number("reserved_bytes"),
        inactive_split=number("inactive_split_bytes"),
        parameters=number("parameter_bytes"),
        gradients=number("gradient_bytes"),
        optimizer=number("optimizer_state_bytes"),
        settings=trainer.definition.allocator_settings or "",
        where=place(LiveScene(host), trainer, allocator),
        source="record",
    )


def _exception_event(host: HostView, trainer: TrainerView) -> Event | None:
    return next(
        (
            e
            for e in reversed(host.events)
            if e.id == trainer.id and "how" in e.data and "type" in e.data
        ),
        None,
    )


def _exception_findings(event: Event, where: str) -> list[Finding]:
    """Returns what the rules for messages say of the exception that ended a trainer."""
    kind, message = str(event.data.get("type", ""))[:256], str(event.data.get("message", ""))[:2000]
    findings = examine_text(f"{kind}: {message}\n".encode("utf-8", "replace"), "black box").findings
    return [replace(one, where=one.where or where) for one in findings]


def examine_text(text: bytes, name: str) -> Report:
    """Returns what the rules for messages say of a text, which its evidence calls ``name``."""
    import io

    from . import messages

    return replace(messages.report(io.BytesIO(text), name, name), examined=())


def _judge_silent_end(host: HostView, trainer: TrainerView) -> Finding | Abstained | None:
    """Judge by the host's memory whether the kernel killed a trainer that ended without a trace.

    The result is None where enough memory was free, so that nothing suggests this.
    """
    total, free = host.definition.memory_total_bytes, host.number("memory_available_bytes")
    limit, used = host.definition.cgroup_memory_limit_bytes, host.number("cgroup_memory_used_bytes")
    where = place(LiveScene(host), trainer)
    end = trainer.gone.monotonic_seconds if trainer.gone is not None else 0.0
    ran_on = (host.sampled_seconds or end) - end > RAN_ON_SECONDS
    short = bool(total and free is not None and free < 0.05 * total)
    full = bool(limit and used is not None and used >= 0.95 * limit)
    if (short or full) and not ran_on:
        text = (
            f"{bytes_text(free)} of the host's {bytes_text(total)} were left"
            if short and free is not None and total
            else (
                f"{bytes_text(used or 0)} of the {bytes_text(limit or 0)} that the cgroup allows "
                "were in use"
            )
        )
        return postmortem_oom.WORDINGS.finding(
            "end.host_memory",
            where=where,
            evidence=(
                Evidence(text, "recording"),
                Evidence(end_text(trainer.gone) if trainer.gone else ""),
            ),
        )
    if total and free is not None and not short:
        return None
    return postmortem_oom.WORDINGS.abstained("killed")
