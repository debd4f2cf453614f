"""Read and write the committed baseline, ``gpuscope-check.lock``.

The file is TOML that people read in a diff: sorted, a figure per line, each size with its unit in a
comment. A change of the training changes only the lines of what changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import __version__, toml
from ..checked_rows import checked
from ..errors import UserError, other_format
from ..process import atomic_file
from ..text.units import MIB, bytes_text
from ..wire.clean import clean
from .predicted import Predicted
from .settings import CheckedTraining

NAME = "gpuscope-check.lock"
FORMAT = 1
LEAST_BYTES = MIB
"""Modules with less at the peak are joined into one line, so that the file stays short."""
OTHERS = "(others)"
OUTSIDE = "(outside modules)"
MAX_FILE_BYTES = 8 << 20
_HEAD = f"""\
# Made by `gpuscope check --update`: what each training needs at its peak, as predicted.
# Commit this file. `gpuscope check` compares with it, and a review shows what a change costs.
format = {FORMAT}
"""


@dataclass(frozen=True, slots=True)
class Timed:
    """The time of a step on one machine: the medians of several runs."""

    torch: str
    steps: int
    runs_seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Baseline:
    """The entry of one training in the lock."""

    training: str
    """The model and its switches, in words."""
    gpuscope: str
    torch: str
    allocated_bytes: int
    reserved_bytes: int
    modules: Mapping[str, int]
    times: Mapping[str, Timed] = field(default_factory=dict)
    """The times by machine, each in a table ``time`` of the file."""


def baseline(
    training: CheckedTraining, found: Predicted, times: Mapping[str, Timed] | None = None
) -> Baseline:
    """Return the baseline that a prediction makes."""
    prediction = found.answer.prediction
    named: dict[str, int] = {}
    for module, size in found.modules.items():
        key = (clean(module) or OUTSIDE) if size >= LEAST_BYTES else OTHERS
        named[key] = named.get(key, 0) + size
    return Baseline(
        training.words(),
        __version__,
        version(found.torch),
        prediction.allocated.bytes,
        prediction.reserved.bytes,
        named,
        times or {},
    )


def version(torch: str) -> str:
    """Return torch's version without the part after ``+``, which names the build's device.

    A prediction is the same with all builds of a version.
    """
    return torch.partition("+")[0]


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def read(file: Path) -> dict[str, Baseline]:
    """Return the baselines by the name of their training; none where there is no file.

    Raises :class:`UserError` for a file that is damaged or has another format.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_FILE_BYTES)
        whole = toml.loads(data.decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, toml.TOMLDecodeError) as error:
        raise _unreadable(file, str(error)) from None
    form = whole.get("format")
    if type(form) is not int:
        raise _unreadable(file, "it does not say its format")
    if form != FORMAT:
        again = "make the baseline again: gpuscope check --update"
        raise other_format(file.name, form, FORMAT, instead=again)
    rows = whole.get("training", {})
    if not isinstance(rows, dict):
        raise _unreadable(file, "[training] is no table")
    return {name: _baseline(file, name, row) for name, row in rows.items()}


def _baseline(file: Path, name: str, row: Any) -> Baseline:
    try:
        values = checked(row, Baseline, {"time": "times"})
        times = {
            machine: Timed(**checked(timed, Timed))
            for machine, timed in values.pop("times", {}).items()
        }
        if any(type(size) is not int for size in values.get("modules", {}).values()):
            raise ValueError("modules takes whole numbers")
        for timed in times.values():
            if not all(type(one) is float and one > 0 for one in timed.runs_seconds):
                raise ValueError("runs_seconds takes numbers above 0")
        return Baseline(**values, times=times)
    except (TypeError, ValueError) as error:
        raise _unreadable(file, f"training.{name}: {error}") from None


def _unreadable(file: Path, why: str) -> UserError:
    return UserError(
        f"{file.name} cannot be read.",
        clean(why, 300),
        f"git checkout -- {file.name}; or make it again: gpuscope check --update",
        "bad_lock",
    )


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


def write(file: Path, baselines: Mapping[str, Baseline]) -> bool:
    """Write the file, and say whether its content has changed."""
    text = "\n".join([_HEAD, *(_section(name, baselines[name]) for name in sorted(baselines))])
    try:
        if file.read_text(encoding="utf-8") == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    try:
        atomic_file.write(file, text.encode(), 0o644)
    except OSError as error:
        raise UserError(
            f"{file.name} could not be written.", str(error.strerror or error), "df -h ."
        ) from None
    return True


def merged(known: Mapping[str, Baseline], new: Mapping[str, Baseline]) -> dict[str, Baseline]:
    """Return the baselines with ``new`` ones; times on machines that were not measured stay."""
    found = dict(known)
    for name, one in new.items():
        before = known[name].times if name in known else {}
        found[name] = replace(one, times={**before, **one.times})
    return found


def _section(name: str, one: Baseline) -> str:
    head = f"training.{_key(name)}"
    return "\n".join([f"[{head}]", *_figures(one), *_tables(head, one), ""])


def _figures(one: Baseline) -> Iterator[str]:
    for key in ("training", "gpuscope", "torch"):
        yield f"{key} = {_string(getattr(one, key))}"
    for key in ("allocated_bytes", "reserved_bytes"):
        yield f"{key} = {_size(getattr(one, key))}"


def _tables(head: str, one: Baseline) -> Iterator[str]:
    yield f"\n[{head}.modules]"
    for module in sorted(one.modules):
        yield f"{_string(module)} = {_size(one.modules[module])}"
    for machine in sorted(one.times):
        timed = one.times[machine]
        yield f"\n[{head}.time.{_string(machine)}]"
        yield f"torch = {_string(timed.torch)}"
        yield f"steps = {timed.steps}"
        runs = ", ".join(f"{seconds:.6f}" for seconds in timed.runs_seconds)
        yield f"runs_seconds = [{runs}]"


def _size(size: int) -> str:
    return f"{size}  # {bytes_text(size)}"


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if plain else _string(name)


def _string(text: str) -> str:
    """Return a TOML string. JSON writes the same, except that TOML has no surrogates."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)
