"""Training scripts in ``demos/pitfalls`` that contain a common mistake each, and their cures.

``python -m gpuscope.lab.pitfalls`` prints the folder's README, generated from its index. torch is
not needed here, because the scripts are started by another Python.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from .. import checked_rows
from ..checked_rows import TableError
from ..text.units import count_text

INDEX = "index.toml"
EVIDENCE = ("message", "live", "script")
_PACKAGE = Path(__file__).resolve().parent.parent
FOLDERS = (_PACKAGE.parent / "demos" / "pitfalls", _PACKAGE / "demos" / "pitfalls")
"""Where the scripts are in a source tree and in an installed package."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PitfallScripts:
    """One pitfall: a script with the mistake and one without it.

    ``index.toml`` says what each field means.
    """

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
    proves: tuple[str, ...] = ()
    shows_as: Literal["error", "warning", "figures"]
    expect: str
    note: str = ""

    def script(self, cured: bool) -> Path:
        return self.cured if cured else self.faulty

    def needs_gpus(self, cured: bool) -> int:
        """Return how many CUDA devices it needs; 0 if it runs on the CPU as well."""
        return self.gpus if self.gpus_cured is None or not cured else self.gpus_cured

    def processes(self, cured: bool) -> int:
        """Return how many processes torchrun starts; 0 if python starts it."""
        return self.nproc if self.nproc_cured is None or not cured else self.nproc_cured

    def command(
        self, cured: bool, python: str = sys.executable, arguments: Sequence[str] = ()
    ) -> list[str]:
        """Return the words that run it under ``python``, with ``arguments`` for the script."""
        processes = self.processes(cured)
        torchrun = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(processes),
        ]
        return [python, *(torchrun if processes else ()), str(self.script(cured)), *arguments]

    def variables(self) -> dict[str, str]:
        """Return the environment variables to set for either script."""
        return dict(entry.split("=", 1) for entry in self.environment)

    def needs(self, cured: bool = False) -> str:
        """Return what it needs in words: "CPU", "1 GPU", "2 GPUs"."""
        gpus = self.needs_gpus(cured)
        return count_text(gpus, "GPU") if gpus else "CPU"


def folder() -> Path:
    """Return where the scripts are. Raises :class:`TableError` when they are not installed."""
    for path in FOLDERS:
        if (path / INDEX).is_file():
            return path
    raise TableError(
        f"The pitfall scripts are not installed: no {INDEX} in {' or '.join(map(str, FOLDERS))}."
    )


def load(where: Path | None = None) -> list[PitfallScripts]:
    """Return all pitfalls in the order of the index. Raises :class:`TableError`."""
    place = where or folder()
    return list(
        checked_rows.load(place / INDEX, "pitfall", lambda row: _pitfall(row, place)).values()
    )


def find(name: str, pitfalls: Sequence[PitfallScripts]) -> PitfallScripts | None:
    """Return the pitfall of this name, or else the one that reproduces a finding of this name."""
    own = (one for one in pitfalls if one.id == name)
    return next(own, None) or next((one for one in pitfalls if name in one.proves), None)


def _pitfall(row: Any, place: Path) -> PitfallScripts:
    """Return the pitfall of one row of the index. Raises ValueError and TypeError."""
    values = checked_rows.checked(row, PitfallScripts)
    for key in {"faulty", "cured"} & values.keys():
        values[key] = place / values[key]
    pitfall = PitfallScripts(**values)
    if {*pitfall.evidence} - {*EVIDENCE}:
        raise ValueError(f"evidence must be of: {', '.join(EVIDENCE)}")
    if not all("=" in entry for entry in pitfall.environment):
        raise ValueError("environment must be NAME=VALUE")
    return pitfall


_INTRODUCTION = """# Pitfalls

Short trainings with one common mistake each, and the same training cured. Watch them:

```
gpuscope lab pitfall                                    the list
gpuscope lab pitfall slow-input                         train with the mistake, gpuscope's probe inside
gpuscope lab pitfall slow-input --cured                 train without it
gpuscope lab pitfall slow-input --args --seconds 10     --args: everything after it goes to the script
```

The scripts do not use gpuscope and also run by themselves: `python slow_input.py`. A script that needs more GPUs than
the machine has says so and ends with exit code 3. `python -m gpuscope.lab.pitfalls` generates this page from `index.toml`.

| name | what is wrong | cure | runs on | how it shows |
|---|---|---|---|---|
"""  # noqa: E501


def readme(pitfalls: Sequence[PitfallScripts]) -> str:
    """Return the README of the folder, in Markdown."""
    lines = []
    for one in pitfalls:
        name = f"[`{one.id}`]({one.faulty.name}), [cured]({one.cured.name})"
        shown = one.expect if one.shows_as == "figures" else f"{one.shows_as}: `` {one.expect} ``"
        lines.append(f"| {name} | {one.title} | {one.cure} | {_runs_on(one)} | {shown} |")
    lines += ["", "## Where the usual advice is not the whole truth", ""]
    lines += [f"- `{one.id}`: {one.note}" for one in pitfalls if one.note]
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _runs_on(one: PitfallScripts) -> str:
    needs = []
    for cured in (False, True):
        processes = one.processes(cured)
        needs.append(
            one.needs(cured) + (f", torchrun with {processes} processes" if processes else "")
        )
    return needs[0] if needs[0] == needs[1] else f"{needs[0]}; cured: {needs[1]}"


if __name__ == "__main__":
    sys.stdout.write(readme(load()))
