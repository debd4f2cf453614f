"""Measure what each part of the tracing child is worth, by predicting without it.

``python -m bench.predict.ablate [PART…]`` traces one measured training of each model family, and
one with each value of each toggle, with everything switched on, and again with one part switched
off. It prints how many peaks change, and how far the peaks are then from the measured ones. Each
part is switched off in a process of its own. A part that changes nothing here may still be needed
for other code to run at all, or to run fast: the table says how long the traces took.
"""

# mypy: disable-error-code="method-assign, assignment, misc, return-value, attr-defined"

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import importlib.util
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._dynamo import source  # noqa: F401  # torch asks for it at the first fake tensor

from bench.predict.score import load, request_of
from gpuscope.model.allocator_settings import read as read_settings
from gpuscope.predict.allocator import simulate
from gpuscope.predict.tracing import (
    attention,
    autocast,
    branches,
    checkpointing,
    convolution,
    convolution_rules,
    convolution_scratch,
    data_dependent,
    distributed,
    files,
    flex,
    indexing,
    interface,
    kernels,
    known_values,
    modules,
    normalization,
    op_cache,
    optimizers,
    recurrent,
    reductions,
    steps,
    switches,
    value_statistics,
    workspaces,
)

DATA = Path(__file__).parents[2] / "tests" / "data"
TABLES = ("predict-h200.jsonl", "predict-h200-held-out.jsonl", "predict-h200-blind.jsonl")
LIBRARIES = {"hf_": "transformers", "tv_": "torchvision", "timm_": "timm"}
"""The libraries that a family needs besides torch, by the beginning of its name."""
TOGGLES = (
    "amp", "accumulate", "checkpoint", "foreach", "fused", "set_to_none", "tf32",
    "cudnn_benchmark", "deterministic", "settings",
)  # fmt: skip
"""For each value of these toggles one more training is chosen."""


def _nothing(*_: Any, **__: Any) -> dict[Any, Any]:
    return {}


def _plain(*names: str) -> None:
    """Use torch's own composite operators instead of those of :mod:`.kernels`."""

    class Without(torch.library.Library):
        def impl(self, op_name: Any, fn: Any, dispatch_key: str = "", **options: Any) -> None:
            if dispatch_key != "AutogradCPU" or op_name not in names:
                super().impl(op_name, fn, dispatch_key, **options)

    torch.library.Library = Without


def _attention() -> None:
    attention.AROUND, attention.INSTEAD = {}, {}
    attention.Backward.instead = _nothing
    _plain("scaled_dot_product_attention")


def _convolution_trees() -> None:
    convolution_scratch.TREES.clear()


def _convolution_rules() -> None:
    for direction in convolution_rules.RULES:
        convolution_rules.RULES[direction] = lambda shape: 0


def _convolution_scratch() -> None:
    convolution.scratch_bytes = lambda shape, direction: 0


def _convolution_most() -> None:
    convolution.most_bytes = lambda shape, direction: 0


def _data_dependent() -> None:
    data_dependent.INSTEAD = {}
    _plain("ctc_loss.Tensor")


def _indexing() -> None:
    indexing.AROUND, indexing.INSTEAD = {}, {}


def _known_values() -> None:
    for rule in known_values.RULES:
        known_values.RULES[rule] = lambda *_: None


def _normalization() -> None:
    normalization.AROUND, normalization.INSTEAD = {}, {}
    normalization.Rows.instead = _nothing
    if hasattr(torch.ops.aten, "rms_norm"):
        _plain("rms_norm")


def _recurrent() -> None:
    recurrent.INSTEAD = {}
    recurrent.Cells.instead = _nothing
    _plain(*recurrent.composites())


def _redirected_by(owner: Any) -> Callable[[], None]:
    def switch_off() -> None:
        owner.replaced = lambda self: ()

    return switch_off


def _interface() -> None:
    interface.TYPES.clear()


def _dropout() -> None:
    kernels._OWN.clear()
    _plain("dropout")


def _files() -> None:
    files.install = lambda: None


def _modules() -> None:
    modules.Modules.watched = lambda self: contextlib.nullcontext()
    modules.Modules.current = lambda self: ("", False)


def _switches() -> None:
    switches.set_as = _nothing
    switches.restored_after = contextlib.nullcontext
    switches.imported = contextlib.nullcontext


PARTS: dict[str, Callable[[], None]] = {
    "attention": _attention,
    "autocast": lambda: setattr(autocast, "install", lambda: None),
    "branches": lambda: setattr(branches, "must_be", lambda: None),
    "checkpointing": lambda: setattr(checkpointing, "wrap", _nothing),
    "convolution: all scratch memory": _convolution_scratch,
    "convolution: the rules": _convolution_rules,
    "convolution: the trees": _convolution_trees,
    "convolution: the most it may take": _convolution_most,
    "data_dependent": _data_dependent,
    "distributed": _redirected_by(distributed.Group),
    "files": _files,
    "flex": _redirected_by(flex.Flex),
    "indexing": _indexing,
    "interface": _interface,
    "kernels: dropout": _dropout,
    "kernels: linear": lambda: _plain("linear"),
    "kernels: softmax": lambda: _plain("softmax.int", "log_softmax.int"),
    "known_values": _known_values,
    "modules": _modules,
    "normalization": _normalization,
    "op_cache": lambda: setattr(steps, "Quick", op_cache.Fakes),
    "optimizers: as on CUDA": lambda: setattr(optimizers, "as_on_cuda", contextlib.nullcontext),
    "recurrent": _recurrent,
    "reductions": lambda: setattr(reductions.Reductions, "around", _nothing),
    "repeating": lambda: setattr(steps, "repeat_last_step", lambda *_: False),
    "switches": _switches,
    "value_statistics": lambda: value_statistics.RULES.clear(),
    "workspaces": lambda: setattr(workspaces.Workspaces, "around", _nothing),
}
"""For each part, the function that switches it off in the calling process."""


class Peaks(NamedTuple):
    """The peaks in bytes, digests of the trace, and the doubts' codes.

    Or why there is no prediction.
    """

    trace: str
    owners: str
    """A digest of what each block is for, and of the module that made it."""
    allocated: int
    reserved: int
    doubts: list[str]
    failure: str = ""


class Measured(NamedTuple):
    seconds: float
    peaks: dict[str, Peaks]


def chosen(families: list[str]) -> list[dict[str, Any]]:
    """Choose one training of each family that this machine can make.

    Also choose one with each value of each toggle. It is the one that asks for least of a GPU.
    """
    smallest: dict[tuple[str, Any], dict[str, Any]] = {}
    for row in (row for name in TABLES for row in load(DATA / name)):
        family = str(row["model"]).rpartition(":")[2]
        wanted = not families or family in families
        if row["skipped_steps"] or not wanted or not _can_be_made(family):
            continue
        kinds = [("family", family), *((name, row[name]) for name in TOGGLES if name in row)]
        for kind in kinds:
            known = smallest.get(kind)
            if known is None or row["peak_allocated_bytes"] < known["peak_allocated_bytes"]:
                smallest[kind] = row
    return list({row["name"]: row for row in smallest.values()}.values())


def _can_be_made(family: str) -> bool:
    return all(
        importlib.util.find_spec(library)
        for start, library in LIBRARIES.items()
        if family.startswith(start)
    )


def _import_libraries() -> None:
    """Import libraries before the processes fork, so that not each of them takes seconds for it."""
    for library in LIBRARIES.values():
        if importlib.util.find_spec(library):
            importlib.import_module(library)


def measure(task: tuple[str, list[dict[str, Any]]]) -> Measured:
    """Return the peaks of the rows without a part; "" for none.

    Seconds are processor time.
    """
    part, rows = task
    if part:
        PARTS[part]()
    found: dict[str, Peaks] = {}
    begin = time.process_time()
    for row in rows:
        try:
            traced = steps.trace(request_of(row))
            simulated = simulate(traced.trace, read_settings(row.get("settings") or ""))
            codes = sorted(f"{doubt.code} {doubt.percent:g}" for doubt in traced.doubts)
            told = [traced.trace.sizes, traced.trace.events]
            digest = hashlib.sha256(json.dumps(told).encode()).hexdigest()
            owned = [traced.trace.owners, [asdict(one) for one in traced.trace.owner_table]]
            owners = hashlib.sha256(json.dumps(owned).encode()).hexdigest()
            peaks = simulated.peak_allocated_bytes, simulated.peak_reserved_bytes
            found[row["name"]] = Peaks(digest, owners, *peaks, codes)
        except Exception as error:
            found[row["name"]] = Peaks(
                "", "", 0, 0, [], f"{type(error).__name__}: {str(error)[:80]}"
            )
    return Measured(time.process_time() - begin, found)


def line(part: str, whole: Measured, without: Measured, rows: list[dict[str, Any]]) -> str:
    """A row of the table, in Markdown."""
    pairs = [(row, whole.peaks[row["name"]], without.peaks[row["name"]]) for row in rows]
    pairs = [(row, before, after) for row, before, after in pairs if not before.failure]
    good = [(row, before, after) for row, before, after in pairs if not after.failure]
    cells = [
        f"{sum(getattr(b, name) != getattr(a, name) for _, b, a in good)}"
        for name in Peaks._fields[:5]
    ]
    cells.append(str(len(pairs) - len(good)))
    for name in ("allocated", "reserved"):
        off = [
            100 * abs(getattr(after, name) / row[f"peak_{name}_bytes"] - 1)
            for row, _, after in good
        ]
        cells.append(f"{statistics.mean(off):.2f}, {max(off):.1f}" if off else "")
    return f"| {part or 'nothing'} | " + " | ".join([*cells, f"{without.seconds:.0f}"]) + " |"


HEAD = (
    "| without | traces differ | owners differ | allocated differs | reserved differs "
    "| doubts differ | no prediction | allocated off, %: mean, most | reserved off, %: mean, most "
    "| seconds |\n|---|---|---|---|---|---|---|---|---|---|"
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.predict.ablate", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}")
    parser.add_argument(
        "--families",
        default="",
        help="of models, with commas between them; all where none is named",
    )
    parser.add_argument("--json", type=Path, help="writes each part's peaks there")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    rows = chosen([name for name in arguments.families.split(",") if name])
    torch.set_num_threads(1)
    _import_libraries()
    print(f"{len(rows)} trainings: {', '.join(row['name'] for row in rows)}\n\n{HEAD}", flush=True)
    tasks = [(part, rows) for part in ("", *(arguments.parts or PARTS))]
    whole: Measured | None = None
    kept = {}
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for (part, _), found in zip(tasks, pool.imap(measure, tasks), strict=True):
            whole = whole or found
            kept[part or "nothing"] = found
            print(line(part, whole, found, rows), flush=True)
            if arguments.json:
                arguments.json.write_text(json.dumps(kept))
            for name, peaks in found.peaks.items():
                if peaks.failure and not whole.peaks[name].failure:
                    print(f"  {name}: {peaks.failure}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
