"""The training scripts of ``demos/pitfalls``, which commit a common mistake each, and the same scripts cured.

``python -m gpuscope.lab.pitfalls`` prints the folder's README, made of its index. No torch here: the scripts are
started by another Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from .. import toml
from ..errors import UserError

INDEX = "index.toml"
EVIDENCE = ("message", "live", "script")
SHOWS_AS = ("error", "warning", "figures")
_PACKAGE = Path(__file__).resolve().parent.parent
FOLDERS = (_PACKAGE.parent / "demos" / "pitfalls", _PACKAGE / "demos" / "pitfalls")
"""Where they are in a source tree and in an installed package."""


class PitfallError(UserError):
    """The scripts are not here, or their index is not as it should be. The text says what and where."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pitfall:
    """One pitfall: a script that commits it and one that does not. ``index.toml`` says what each field means."""

    id: str
    title: str
    cure: str
    faulty: Path
    cured: Path
    gpus: int = 0
    gpus_cured: int | None = None
    nproc: int = 0
    nproc_cured: int | None = None
    environment: tuple[str, ...] = ()
    evidence: tuple[str, ...]
    named: str
    shows_as: str
    expect: str
    note: str = ""

    def script(self, cured: bool) -> Path:
        return self.cured if cured else self.faulty

    def needs_gpus(self, cured: bool) -> int:
        """How many CUDA devices it takes; 0: it runs on the CPU as well."""
        return self.gpus if self.gpus_cured is None or not cured else self.gpus_cured

    def processes(self, cured: bool) -> int:
        """How many torchrun starts; 0: none, it is started by python."""
        return self.nproc if self.nproc_cured is None or not cured else self.nproc_cured

    def command(self, cured: bool, python: str = sys.executable, arguments: Sequence[str] = ()) -> list[str]:
        """The argument list that runs it under ``python``, with ``arguments`` for the script."""
        processes = self.processes(cured)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        return [python, *(torchrun if processes else ()), str(self.script(cured)), *arguments]

    def variables(self) -> dict[str, str]:
        """What to set in the environment of either script."""
        return dict(entry.split("=", 1) for entry in self.environment)

    def needs(self, cured: bool = False) -> str:
        """What it needs in words: "CPU", "1 GPU", "2 GPUs"."""
        gpus = self.needs_gpus(cured)
        return f"{gpus} GPU{'s' if gpus > 1 else ''}" if gpus else "CPU"


def folder() -> Path:
    """Where the scripts are. Raises :class:`PitfallError` when they are not installed."""
    for path in FOLDERS:
        if (path / INDEX).is_file():
            return path
    raise PitfallError(f"The pitfall scripts are not installed: no {INDEX} in {' or '.join(map(str, FOLDERS))}.")


def load(where: Path | None = None) -> list[Pitfall]:
    """All pitfalls in the order of the index. Raises :class:`PitfallError`."""
    path = (where or folder()) / INDEX
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PitfallError(f"{path} cannot be read: {error}") from None
    try:
        tables = toml.loads(text).get("pitfall")
    except toml.TOMLDecodeError as error:
        raise PitfallError(f"{path}: {error}") from None
    if not isinstance(tables, list):
        raise PitfallError(f"{path}: there is no [[pitfall]]")
    pitfalls: dict[str, Pitfall] = {}
    for number, table in enumerate(tables, 1):
        try:
            pitfall = _pitfall(table, path.parent)
        except ValueError as error:
            raise PitfallError(f"{path}: [[pitfall]] {number}: {error}") from None
        if pitfall.id in pitfalls:
            raise PitfallError(f"{path}: [[pitfall]] {number}: there are two of {pitfall.id}")
        pitfalls[pitfall.id] = pitfall
    return list(pitfalls.values())


_KINDS: dict[str, type] = {
    "str": str, "Path": str, "int": int, "int | None": int, "tuple[str, ...]": list,
}  # fmt: skip


def _pitfall(table: object, where: Path) -> Pitfall:
    """Raises :class:`ValueError` with what is wrong."""
    if not isinstance(table, dict):
        raise ValueError("it is no table")
    known = {field.name: str(field.type) for field in fields(Pitfall)}
    values: dict[str, Any] = {}
    for key, value in table.items():
        kind = known.get(key)
        if kind is None:
            raise ValueError(f"no such key: {key}. There are: {', '.join(known)}")
        if type(value) is not _KINDS[kind] or (isinstance(value, list) and {*map(type, value)} - {str}):
            raise ValueError(f"{key} cannot be {value!r}")
        values[key] = where / str(value) if kind == "Path" else tuple(value) if isinstance(value, list) else value
    required = ("id", "title", "cure", "faulty", "cured", "evidence", "named", "shows_as", "expect")
    missing = [key for key in required if not values.get(key)]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    if values["shows_as"] not in SHOWS_AS or {*values["evidence"]} - {*EVIDENCE}:
        raise ValueError(f"evidence is of {', '.join(EVIDENCE)}, and shows_as one of {', '.join(SHOWS_AS)}")
    if not all("=" in entry for entry in values.get("environment", ())):
        raise ValueError("environment is of NAME=VALUE")
    return Pitfall(**values)


_INTRODUCTION = """# Pitfalls

Short trainings, each with one common mistake, beside the same training cured. They are there to be watched:

```
gpuscope lab pitfall                                    the list
gpuscope lab pitfall slow-input                         train with the mistake, gpuscope's probe inside
gpuscope lab pitfall slow-input --cured                 train without it
gpuscope lab pitfall slow-input --args --seconds 10     --args: all that follows is for the script
```

They know nothing of gpuscope and run by themselves: `python slow_input.py`. Where the GPUs that one needs are not there
it says so and ends with exit code 3. This page is made of `index.toml` by `python -m gpuscope.lab.pitfalls`.

| name | what is wrong | cure | runs on | how it shows |
|---|---|---|---|---|
"""


def readme(pitfalls: Sequence[Pitfall]) -> str:
    """The README of the folder, in Markdown."""
    lines = []
    for one in pitfalls:
        name = f"[`{one.id}`]({one.faulty.name}), [cured]({one.cured.name})"
        shown = one.expect if one.shows_as == "figures" else f"{one.shows_as}: `` {one.expect} ``"
        lines.append(f"| {name} | {one.title} | {one.cure} | {_runs_on(one)} | {shown} |")
    lines += ["", "## Where the usual advice is not the whole truth", ""]
    lines += [f"- `{one.id}`: {one.note}" for one in pitfalls if one.note]
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _runs_on(one: Pitfall) -> str:
    said = []
    for cured in (False, True):
        processes = one.processes(cured)
        said.append(one.needs(cured) + (f", torchrun with {processes} processes" if processes else ""))
    return said[0] if said[0] == said[1] else f"{said[0]}; cured: {said[1]}"


if __name__ == "__main__":
    sys.stdout.write(readme(load()))
