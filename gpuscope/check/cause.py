"""Find which module and which changed line brought the bytes.

The module follows from the two predictions: what is live at the peak of each, by module. The line
is found in two ways. A changed line that was running when blocks were allocated is a candidate, and
the more of the growth lies in those blocks the better. But a line far away may be the cause, such
as one that switches checkpointing off. So if there is more than one place to choose from, each
place is applied alone to the files of the older revision, and the training is predicted again: the
place that brings the bytes by itself is the cause. No word in the code is interpreted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Literal

from ..predict.report import joined
from ..predict.request import CannotPredict
from ..text.units import MIB
from .predicted import Predicted
from .revision import Hunk, RevisionDifference, applied

Proof = Literal["alone", "only", "running", "together"]
"""How a cause is known. ``alone``: applied to the older revision by itself, the change brings the
bytes. ``only``: there is no other change. ``running``: the line was running when the blocks were
allocated. ``together``: all changes of the file bring them together.
"""
ENOUGH = 0.8
"""Share of the growth that a change must bring by itself to end the search."""
MENTIONED = 0.2
"""Share from which a change is mentioned at all."""
MOST_TRIALS = 10
MOST_CAUSES = 3
LEAST_BYTES = MIB
_NO_CODE = (".md", ".rst", ".txt", ".svg", ".png", ".lock", ".gitignore", ".ipynb")


@dataclass(frozen=True, slots=True)
class ModuleChange:
    """A module that needs more or less at the peak than before."""

    module: str
    category: str
    before_bytes: int
    after_bytes: int

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


@dataclass(frozen=True, slots=True)
class CostlyLine:
    """A changed line that added bytes.

    ``line`` is in the working tree. ``text`` is the line, "" if lines were only removed; ``was`` is
    what was there before, "" if lines were only added.
    """

    file: str
    line: int
    text: str
    was: str
    bytes: int
    proof: Proof


Trial = Callable[[], Predicted]
"""Predicts the training with the older revision's files as they are now."""


def parts(before: Predicted, after: Predicted) -> list[ModuleChange]:
    """Return what has changed by module and category, the largest change first."""
    old, new = before.parts, after.parts
    rows = [
        ModuleChange(
            module, category, old.get((module, category), 0), new.get((module, category), 0)
        )
        for module, category in {**old, **new}
    ]
    return _largest([row for row in rows if abs(row.change_bytes) >= LEAST_BYTES])


def parts_of_modules(before: Mapping[str, int], after: Mapping[str, int]) -> list[ModuleChange]:
    """Return what has changed by module, if the categories are not known."""
    rows = [
        ModuleChange(name, "", before.get(name, 0), after.get(name, 0))
        for name in {**before, **after}
    ]
    return _largest([row for row in rows if abs(row.change_bytes) >= LEAST_BYTES])


def _largest(rows: list[ModuleChange]) -> list[ModuleChange]:
    return sorted(rows, key=lambda row: (-abs(row.change_bytes), row.module, row.category))


def causes(
    before: Predicted,
    after: Predicted,
    changes: RevisionDifference,
    files: Path,
    trial: Trial,
    ends: float,
    copy: Callable[[Sequence[str]], None],
) -> list[CostlyLine]:
    """Return the changed lines that brought the growth, those that brought most first.

    ``files`` is the folder with the older revision, and ``copy`` puts new files into it. ``ends``
    is the time of ``time.monotonic()`` after which no other trial begins.
    """
    growth = after.allocated_bytes - before.allocated_bytes
    if growth < LEAST_BYTES:
        return []
    running = _running(before, after)
    hunks = _ordered(changes, running, after)
    if not hunks:
        return _of_new_files(changes, running)
    if len(hunks) == 1:
        return [_cause(hunks[0], growth, "only", running)]
    copy(changes.new_files)
    found = _alone(hunks, before, growth, files, trial, ends, running)
    if found:
        return found
    best = [hunk for hunk in hunks if _score(hunk, running) >= MENTIONED * growth]
    return [
        _cause(hunk, min(growth, _score(hunk, running)), "running", running)
        for hunk in best[:MOST_CAUSES]
    ] or _of_new_files(changes, running)


def _alone(
    hunks: Sequence[Hunk],
    before: Predicted,
    growth: int,
    files: Path,
    trial: Trial,
    ends: float,
    running: Mapping[str, int],
) -> list[CostlyLine]:
    """Return the changes that bring a good part of the growth by themselves."""
    found: list[CostlyLine] = []
    by_file: dict[str, list[Hunk]] = {}
    for hunk in hunks:
        by_file.setdefault(hunk.file, []).append(hunk)
    tries: list[tuple[list[Hunk], Proof]] = [([hunk], "alone") for hunk in hunks]
    tries += [(group, "together") for group in by_file.values() if len(group) > 1]
    for group, proof in tries[:MOST_TRIALS]:
        if time.monotonic() > ends or (found and proof == "together"):
            break
        with applied(files, group) as fitted:
            if not fitted:
                continue
            try:
                added = trial().allocated_bytes - before.allocated_bytes
            except CannotPredict:
                continue  # the change does not run without the others
        if added >= max(LEAST_BYTES, MENTIONED * growth):
            most = max(group, key=lambda hunk: _score(hunk, running))
            found.append(_cause(most, added, proof, running))
        if added >= ENOUGH * growth:
            break
    return sorted(found, key=lambda one: -one.bytes)[:MOST_CAUSES]


def _running(before: Predicted, after: Predicted) -> dict[str, int]:
    """Return by ``file:line`` how much of the growth was allocated while the line was running.

    The growth of a module and category is shared among the lines that ran for its blocks, by their
    bytes. What a line has to do with it is an estimate.
    """
    old, new = before.parts, after.parts
    lines: dict[str, float] = {}
    for owner, size in after.owners:
        key = joined(owner.module), owner.category
        grown = new[key] - old.get(key, 0)
        if grown > 0:
            for line in set(owner.stack):
                lines[line] = lines.get(line, 0.0) + size * grown / new[key]
    return {line: int(size) for line, size in lines.items()}


def _score(hunk: Hunk, running: Mapping[str, int]) -> int:
    return max((running.get(f"{hunk.file}:{line}", 0) for line in hunk.added), default=0)


def _ordered(
    changes: RevisionDifference, running: Mapping[str, int], after: Predicted
) -> list[Hunk]:
    """Return the places that may be a cause, the likeliest first."""
    seen = {line.rpartition(":")[0] for line in running}
    seen |= {line.rpartition(":")[0] for owner, _ in after.owners for line in owner.stack}
    new = set(changes.new_files)
    hunks = [
        hunk
        for hunk in changes.hunks
        if hunk.file not in new and not hunk.file.lower().endswith(_NO_CODE) and _matters(hunk)
    ]
    return sorted(hunks, key=lambda hunk: (-_score(hunk, running), hunk.file not in seen))


def _matters(hunk: Hunk) -> bool:
    """Say whether more than empty lines and comments were changed."""
    mark = "#"
    if not hunk.file.endswith((".py", ".toml", ".yaml", ".yml")):
        mark = "\n"
    lines = [*hunk.added.values(), *hunk.removed.values()]
    return any(line.strip() and not line.strip().startswith(mark) for line in lines)


def _cause(hunk: Hunk, size: int, proof: Proof, running: Mapping[str, int]) -> CostlyLine:
    """Return the cause with the line of the place that tells most."""
    removed = [text.strip() for text in hunk.removed.values() if text.strip()]
    telling = {line: text for line, text in hunk.added.items() if text.strip()}
    if not telling:
        line = max(hunk.new_start, min(_after(hunk), hunk.new_start + len(hunk.new) - 1))
        return CostlyLine(hunk.file, line, "", removed[0] if removed else "", size, proof)
    line = max(telling, key=lambda one: (running.get(f"{hunk.file}:{one}", 0), -one))
    text = telling[line].strip()
    return CostlyLine(hunk.file, line, text, _nearest(text, removed), size, proof)


def _after(hunk: Hunk) -> int:
    """Return the line of the new file at the place where lines were removed."""
    first = min(hunk.removed, default=hunk.old_start)
    return hunk.new_start + first - hunk.old_start


def _nearest(text: str, removed: Sequence[str]) -> str:
    return max(
        removed, key=lambda line: SequenceMatcher(None, line, text, False).ratio(), default=""
    )


def _of_new_files(changes: RevisionDifference, running: Mapping[str, int]) -> list[CostlyLine]:
    """Return the lines of new files that were running, if nothing else has changed."""
    new = set(changes.new_files)
    rows = [
        (size, *line.rpartition(":")[::2])
        for line, size in running.items()
        if line.rpartition(":")[0] in new and size >= LEAST_BYTES
    ]
    best = sorted(rows, key=lambda row: -row[0])[:1]
    return [CostlyLine(file, int(line), "", "", size, "running") for size, file, line in best]
