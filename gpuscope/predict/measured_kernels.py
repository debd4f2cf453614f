"""Know with which torch the rules for kernels were measured, and doubt them for another one.

Shapes, types and what autograd keeps come from the torch that traces. What libraries take besides
(cuBLAS, cuDNN, reductions, sorting) follows rules that were measured with one version. Another
version may take none of this scratch memory, or as much again: so the error widens by its share of
the peak. There are no measurements of a second version yet that could narrow this.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from . import tables
from .request import Doubt
from .trace import Trace

PATH: Final = tables.FOLDER / "measured.json"
CHECKS: Final = dict.fromkeys(("torch", "cuda", "cudnn", "gpu"), tables.matches(".+"))


@dataclass(frozen=True, slots=True)
class Measured:
    """``torch`` is the beginning of a version: "2.11"."""

    torch: str
    cuda: str
    cudnn: str
    gpu: str


@cache
def measured(path: Path = PATH) -> Measured:
    """Return what the rules were measured with. Raises :class:`TableError`."""
    return Measured(**tables.read(path, CHECKS)[0])


def minor_version(torch: str) -> str:
    """Return "2.13" for "2.13.0+cpu"."""
    return ".".join(torch.split("+")[0].split(".")[:2])


def doubts(torch: str, trace: Trace) -> list[Doubt]:
    """Return the doubt about a prediction for ``torch``, if the rules are of another one."""
    known = measured()
    if minor_version(torch) == known.torch:
        return []
    text = (
        f"The kernels' scratch memory was measured with torch {known.torch} on an {known.gpu}, not "
        f"with torch {minor_version(torch) or 'of an unknown version'}, which may take none of it "
        "or twice as much."
    )
    return [Doubt("version", text, "torch", scratch_percent(trace))]


def scratch_percent(trace: Trace) -> float:
    """Return which part of the peak is scratch memory of libraries."""
    ours = [owner.category == "workspace" for owner in trace.owner_table]
    live = scratch = most = at_most = 0
    for event in trace.events:
        block = event if event >= 0 else ~event
        size = trace.sizes[block] if event >= 0 else -trace.sizes[block]
        live += size
        if ours[trace.owners[block]]:
            scratch += size
        if live > most:
            most, at_most = live, scratch
    return round(100 * at_most / most, 1) if most else 0.0
