"""Find the ``DataLoader(…)`` of a running trainer in its script, for a fix that can be pasted.

It is read only where the trainer runs on this host, its script has not changed since the start,
and one call is clearly the one that trains.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from ..process.procfs import start_ticks
from ..store.view import TrainerView

MOST_BYTES = 1 << 20
MOST_CELLS = 200
"""A longer call is no line to paste."""
NAMES = frozenset(("DataLoader", "StatefulDataLoader"))


@dataclass(frozen=True, slots=True)
class LoaderLine:
    """The call in a script: ``place`` is ``train.py:12``, ``workers`` its ``num_workers``.

    ``workers`` is None where the call has something else than a number there.
    """

    place: str
    code: str
    workers: int | None

    def with_workers(self, number: int, pinned: bool) -> str:
        """Return the call with so many workers, and with pinned memory where that is wanted."""
        call = ast.parse(self.code, mode="eval").body
        assert isinstance(call, ast.Call)
        wanted: dict[str, bool | int] = {"num_workers": number}
        wanted |= {"pin_memory": True} if pinned else {}
        wanted |= {"persistent_workers": True}
        kept = [one for one in call.keywords if one.arg not in wanted]
        added = [ast.keyword(name, ast.Constant(value)) for name, value in wanted.items()]
        return ast.unparse(ast.Call(call.func, call.args, [*kept, *added]))


def script_of(trainer: TrainerView) -> Path | None:
    """Return the path of a trainer's script, resolved against the trainer's working directory.

    None for anything that is not a Python file that can be read here.
    """
    definition = trainer.definition
    name = definition.script
    if not name or not name.endswith(".py"):
        return None
    try:
        path = Path(os.readlink(f"/proc/{definition.pid}/cwd")) / name
        return path if path.is_file() and os.access(path, os.R_OK) else None
    except (OSError, ValueError):
        return None


def has_changed(path: Path, trainers: Sequence[TrainerView]) -> bool:
    """Return whether a script was written after a trainer that runs it was started."""
    try:
        written = path.stat().st_mtime
        booted = time.time() - float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return True
    ticks = os.sysconf("SC_CLK_TCK")
    return any(written > booted + (one.definition.start or 0) / ticks + 1.0 for one in trainers)


def loader_of(trainer: TrainerView) -> LoaderLine | None:
    """Return the loader of a trainer's script, None where it is not known."""
    start = trainer.definition.start
    if trainer.gone is not None or not start or start_ticks(trainer.definition.pid) != start:
        return None  # it runs on another host, or not any more
    path = script_of(trainer)
    if path is None or has_changed(path, [trainer]):
        return None
    return _read(path, path.stat().st_mtime)


@lru_cache(maxsize=64)
def _read(path: Path, _written: float) -> LoaderLine | None:
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        tree = ast.parse(path.read_text())
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and _is_loader(one)]
    if len(calls) > 1:  # of several, the one that trains shuffles
        calls = [one for one in calls if _of(one, "shuffle") or _has_sampler(one)]
    if len(calls) != 1 or len(calls[0].args) > 2:
        return None
    call = calls[0]
    if any(one.arg is None for one in call.keywords):
        return None  # **settings: what they hold is not known
    code = ast.unparse(call)
    workers = _of(call, "num_workers") if _has(call, "num_workers") else 0
    number = workers if isinstance(workers, int) else None
    place = f"{path.name}:{call.lineno}"
    return LoaderLine(place, code, number) if len(code) <= MOST_CELLS else None


def _is_loader(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else None
    name = call.func.id if isinstance(call.func, ast.Name) else name
    return name in NAMES


def _has(call: ast.Call, name: str) -> bool:
    return any(one.arg == name for one in call.keywords)


def _has_sampler(call: ast.Call) -> bool:
    return _has(call, "sampler") or _has(call, "batch_sampler")


def _of(call: ast.Call, name: str) -> object:
    """Return the constant that a call has for a keyword, None where it is no constant."""
    values = [one.value for one in call.keywords if one.arg == name]
    return values[0].value if values and isinstance(values[0], ast.Constant) else None
