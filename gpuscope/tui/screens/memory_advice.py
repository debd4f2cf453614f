"""What stands below the waterfall: what kind of process it is, what can be freed, and what is not exact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...store.view import HostView
from ..cells import bytes_text
from ..parts import Account, largest_freeable
from ..subjects import Subject
from ..widgets.text import hang

if TYPE_CHECKING:
    from ..recognise import Finding

Line = list[tuple[str, str]]
TOKENS = {"spill": "bad", "kept": "warn"}


def advice(host: HostView, subject: Subject, found: Account, finding: Finding | None) -> list[Line]:
    """Lines, the most important first; they may be longer than the screen is wide."""
    if subject.trainer is not None and subject.trainer.gone:
        return [[("ended: ", "warn"), (f"{subject.trainer.gone.reason}; the last state is shown", "muted")]]
    if subject.device is None:
        return _on_cpu(host, subject)
    lines = _recognised(finding) if finding else []
    if subject.allocator is None:
        lines.append([("inside: ", "muted"), ("no probe here. Next run: ", "muted"),
                      ("gpuscope run python train.py", "accent")])  # fmt: skip
    else:
        lines += _to_free(found)
    notes = found.notes
    if finding is not None and finding.kind == "async":  # it says so already
        notes = [note for note in notes if not note.startswith("cudaMallocAsync")]
    return lines + [[("≈ ", "faint"), (note, "faint")] for note in notes]


def _recognised(finding: Finding) -> list[Line]:
    lines: list[Line] = [[("seen: ", "muted"), (finding.says, TOKENS.get(finding.kind, "text"))]]
    lines.append([("why: ", "muted"), (finding.ground, "muted")])
    if finding.advice:
        lines.append([("try: ", "muted"), (finding.advice, "accent")])
    return lines


def _to_free(found: Account) -> list[Line]:
    largest = largest_freeable(found.parts)
    if largest is None:
        return [[("Nothing of 64 MiB or more to free.", "muted")]]
    lines: list[Line] = [
        [("largest to free: ", "muted"), (f"{largest.name}, {bytes_text(largest.known)}", "text")],
        [("how: ", "muted"), (largest.free_by, "accent")],
    ]
    at_once = None if largest.now else largest_freeable(found.parts, now=True)
    if at_once is not None:
        lines.append([("at once: ", "muted"), (f"{at_once.name}, {bytes_text(at_once.known)}: ", "text"),
                      (at_once.free_by, "accent")])  # fmt: skip
    return lines


def _on_cpu(host: HostView, subject: Subject) -> list[Line]:
    process = next((p for p in host.processes if subject.trainer and p.id == subject.trainer.process), None)
    rss = process.number("rss_bytes") if process else None
    resident = f" The process holds {bytes_text(rss)} in all (resident)." if rss is not None else ""
    return [
        [("On a CPU torch keeps no allocator statistics:", "muted")],
        [(f"allocated, cached, outside torch are unknown.{resident}", "muted")],
    ]


LEAST_ROWS = 2


def fitting(lines: Sequence[Line], width: int, rows: int) -> list[Line]:
    """As many whole lines, broken to ``width``, as there are ``rows``; the first ``LEAST_ROWS`` in any case."""
    out: list[Line] = []
    for number, line in enumerate(lines):
        broken = hang(line, width)
        if number >= LEAST_ROWS and len(out) + len(broken) > rows:
            break
        out += broken
    return out
