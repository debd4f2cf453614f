"""Reads which trainings the gym has: ``subjects.toml``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope import checked_rows
from gpuscope.checked_rows import checked
from gpuscope.lab import pitfalls

HERE = Path(__file__).parent
INDEX, SCRIPTS = HERE / "subjects.toml", HERE / "subjects"


@dataclass(frozen=True, slots=True)
class Subject:
    """A training of the index.

    ``script`` is a file of ``subjects`` that has a function of its name; "" for a pair of
    ``demos/pitfalls``. ``names`` are the causes that are right to be named first; none: it is
    healthy. ``cure`` says what the cured variant does instead.
    """

    id: str
    title: str
    script: str = ""
    names: tuple[str, ...] = ()
    cure: str = ""
    imports: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    """Variables of the faulty variant, ``NAME=VALUE``."""
    single: bool = True
    """Whether the cure takes away what is named and nothing else, so that gains can be compared."""
    quiet: bool = True
    """Whether nothing is worth curing in the cured variant. The trainings of ``demos`` are so small
    that the host is slower than the GPU."""
    gpu: bool = False
    """Whether the training needs CUDA."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A subject as it is run: with its fault, or cured. What is healthy has one variant."""

    subject: Subject
    cured: bool

    @property
    def name(self) -> str:
        return self.subject.id + (" cured" if self.cured else "")

    @property
    def faulty(self) -> bool:
        return bool(self.subject.names) and not self.cured

    def command(self, device: str) -> list[str]:
        """Return the command that starts it; it then waits for a line on its standard input."""
        gate = [sys.executable, "-m", "bench.time_gym.gate"]
        gate += [word for module in self.subject.imports for word in ("--import", module)]
        if not self.subject.script:
            pair = next(one for one in pitfalls.load() if one.id == self.subject.id)
            return [*gate, str(pair.script(self.cured)), "--seconds", "120", *_more(pair.id)]
        words = [str(SCRIPTS / self.subject.script), self.subject.id, "--device", device]
        return [*gate, *words, *(["--cured"] if self.cured else [])]

    def variables(self) -> dict[str, str]:
        if self.cured:
            return {}
        return dict(entry.split("=", 1) for entry in self.subject.environment)


def _more(pitfall: str) -> list[str]:
    return ["--backend", "aot_eager"] if pitfall == "recompiles" else []


def load() -> list[Subject]:
    """Return all subjects in the order of the index. Raises TableError."""
    return list(checked_rows.load(INDEX, "subject", _subject).values())


def _subject(row: Any) -> Subject:
    found = Subject(**checked(row, Subject))
    if found.script and not (SCRIPTS / found.script).is_file():
        raise ValueError(f"there is no {SCRIPTS / found.script}")
    if bool(found.names) != bool(found.cure or not found.script):
        raise ValueError("a fault has a cure, and what is healthy has none")
    return found


def variants(only: Sequence[str] = (), part: tuple[int, int] = (1, 1)) -> list[Variant]:
    """Return what is to be run, the healthy ones first.

    ``only`` those whose names begin so. Of several parts each takes every so-manieth of the healthy
    subjects, and of the others.
    """
    chosen = [one for one in load() if not only or one.id.startswith(tuple(only))]
    number, parts = part
    healthy = [one for one in chosen if not one.names][number - 1 :: parts]
    faulty = [one for one in chosen if one.names][number - 1 :: parts]
    return [
        *(Variant(subject, False) for subject in healthy),
        *(Variant(subject, cured) for subject in faulty for cured in (False, True)),
    ]
