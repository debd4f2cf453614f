"""Watch one test in its own process: its memory on CUDA, its compilations, its synchronising calls.

torch is imported only for what the marker asks for. Memory is that of the current device. Its
stacks are torch's own history of allocations, which is switched on for the test and off after it,
unless somebody else has switched it on.
"""

from __future__ import annotations

import gc
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ..doctor import table
from ..text.units import bytes_text
from ..wire.clean import clean
from ..wire.code_owner import is_own
from .in_tests import SHOWN, Budgets

PITFALLS = {
    "leak": "memory-leak-in-user-list",
    "graph_breaks": "compile-graph-break",
    "recompiles": "dynamic-shapes-recompile",
    "syncs": "host-sync-in-loop",
}
"""The doctor's word for what has broken a budget."""
MOST_ENTRIES = 200_000
MOST_COMPILATIONS = 10_000
_SYNC = "synchronizing CUDA operation"
_RESUMED = re.compile(r"torch_dynamo_resume_in_(.+)_at_(\d+)")


class WatchedTest:
    """Watches one test: :meth:`begin` before it, :meth:`end` after it, then :meth:`message`."""

    def __init__(self, budgets: Budgets) -> None:
        self.budgets = budgets
        self.skipped: list[str] = []
        """The budgets that cannot be checked here."""
        self._problems: list[str] = []
        self._torch: Any = None
        self._cuda = False
        self._recording = False
        self._before_bytes = 0
        self._caught: Any = None
        self._log: list[warnings.WarningMessage] = []
        self._breaks: Counter[str] = Counter()
        self._compiled: list[Any] = []
        self._kept = 0

    def begin(self) -> None:
        import torch

        self._torch = torch
        self._cuda = bool(torch.cuda.is_available())
        if not self._cuda:
            self.skipped = self.budgets.on_cuda
        else:
            self._begin_cuda()
        if self.budgets.graph_breaks is not None or self.budgets.recompiles is not None:
            from torch._dynamo import utils

            self._kept = utils._compilation_metrics.maxlen or 0
            utils.set_compilation_metrics_limit(MOST_COMPILATIONS)
            self._breaks = Counter(utils.counters["graph_break"])
            self._compiled = list(utils.get_compilation_metrics())

    def _begin_cuda(self) -> None:
        cuda, budgets = self._torch.cuda, self.budgets
        if budgets.peak is not None or budgets.leak is not None:
            cuda.synchronize()
            gc.collect()
            self._before_bytes = cuda.memory_allocated()
            cuda.reset_peak_memory_stats()
            self._recording = not cuda.memory._snapshot()["device_traces"][cuda.current_device()]
            if self._recording:
                cuda.memory._record_memory_history(max_entries=MOST_ENTRIES, stacks="python")
        if budgets.syncs is not None:
            self._begin_syncs()

    def end(self) -> None:
        """Read what has happened, and switch everything off again."""
        try:
            if self._cuda:
                self._end_syncs()
                self._end_memory()
        finally:
            if self._recording:
                self._torch.cuda.memory._record_memory_history(enabled=None)
        if self._kept:
            self._end_compilations()

    def message(self) -> str:
        """Return what the test must fail with, "" if it holds its budgets."""
        rows = list(self._problems)
        if self.skipped and self.budgets.strict:
            rows.append(f"{', '.join(self.skipped)}: not checked, because there is no GPU.")
        return "\n".join(f"gpuscope: {row}" for row in rows)

    # ── memory ────────────────────────────────────────────────────────────────────────────────────

    def _end_memory(self) -> None:
        budgets, cuda = self.budgets, self._torch.cuda
        if budgets.peak is None and budgets.leak is None:
            return
        cuda.synchronize()
        peak = cuda.max_memory_allocated()
        snapshot: Any = None
        if budgets.peak is not None and peak > budgets.peak:
            snapshot = cuda.memory._snapshot()
            text = (
                f"its tensors needed {bytes_text(peak)} at their peak, "
                f"{bytes_text(peak - budgets.peak)} more than {bytes_text(budgets.peak)}."
            )
            trace = snapshot["device_traces"][cuda.current_device()]
            self._problems.append("\n".join([text, *_stacks(live_at_peak(trace), "At the peak")]))
        gc.collect()
        left = cuda.memory_allocated() - self._before_bytes
        if budgets.leak is not None and left > budgets.leak:
            trace = cuda.memory._snapshot()["device_traces"][cuda.current_device()]
            text = f"{bytes_text(left)} of tensors are left after it; {_most(budgets.leak)}."
            stacks = _stacks(live_at_end(trace), "What is left")
            self._problems.append("\n".join([text, *stacks, *_advice("leak")]))

    # ── calls that wait for the GPU ───────────────────────────────────────────────────────────────

    def _begin_syncs(self) -> None:
        self._caught = warnings.catch_warnings(record=True)
        self._log = self._caught.__enter__()  # empty, and the only list that gets the warnings
        warnings.filterwarnings("always", message=f".*{_SYNC}.*")
        self._torch.cuda.set_sync_debug_mode("warn")

    def _end_syncs(self) -> None:
        if self._caught is None:
            return
        self._torch.cuda.set_sync_debug_mode("default")
        self._caught.__exit__(None, None, None)
        found: Counter[str] = Counter()
        for one in self._log:
            if _SYNC in str(one.message):
                found[f"{one.filename}:{one.lineno}"] += 1
            else:  # not ours: everybody else gets it as if nobody had listened
                warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
        self._count("syncs", found, "calls waited for the GPU")

    # ── torch.compile ─────────────────────────────────────────────────────────────────────────────

    def _end_compilations(self) -> None:
        from torch._dynamo import utils

        old = {id(one) for one in self._compiled}
        new = [one for one in utils.get_compilation_metrics() if id(one) not in old]
        utils.set_compilation_metrics_limit(self._kept)
        breaks = Counter(utils.counters["graph_break"]) - self._breaks
        self._count("graph_breaks", _named_breaks(breaks, new), "graph breaks")
        self._count("recompiles", recompiles(new), "recompiles")

    def _count(self, key: str, found: Counter[str], what: str) -> None:
        most, many = getattr(self.budgets, key), sum(found.values())
        if most is None or many <= most:
            return
        rows = [f"{many} {what if many > 1 else what.rstrip('s')}; {_most(most)}."]
        rows += [f"  {count} × {clean(name, 300)}" for name, count in found.most_common(SHOWN)]
        self._problems.append("\n".join([*rows, *_advice(key)]))


def recompiles(compilations: Iterable[Any]) -> Counter[str]:
    """Return how often each function was compiled again, with the reason that torch gives."""
    found: Counter[str] = Counter()
    for one in compilations:
        if str(one.compile_id).partition("/")[2].split("_")[0] in ("", "0"):
            continue
        reason = " ".join((one.recompile_reason or "").split("\n")[0].split())
        place = f"{one.co_filename}:{one.co_firstlineno} {one.co_name}"
        found[f"{place}: {reason or 'torch gave no reason'}"] += 1
    return found


def _named_breaks(breaks: Counter[str], compilations: Iterable[Any]) -> Counter[str]:
    """Return the breaks by their reason, with the lines at which execution went on.

    torch's counter names no line; the functions that it makes of the rest do.
    """
    places = []
    for one in compilations:
        resumed = _RESUMED.fullmatch(str(one.co_name))
        if resumed:
            places.append(f"{one.co_filename}:{resumed[2]} in {resumed[1]}")
    found: Counter[str] = Counter()
    known = sorted(set(places))
    for number, (reason, count) in enumerate(breaks.most_common()):
        summary = " ".join(reason.split("\n")[0].split())
        why = re.search(r"Explanation:\s*(.+)", reason)
        where = f" ({', '.join(known[:SHOWN])})" if number == 0 and known else ""
        found[f"{summary}{': ' + why[1].strip() if why else ''}{where}"] += count
    return found


# ── what is said ──────────────────────────────────────────────────────────────────────────────────


def _most(most: int) -> str:
    return f"{bytes_text(most) if most > 1000 else most} may be" if most else "none may be"


def _advice(key: str) -> list[str]:
    """Return the doctor's title and first fix for a broken budget."""
    pitfall = table.load()[PITFALLS[key]]
    return [
        f"  {pitfall.title}. {pitfall.fixes[0].title}.",
        f"  More: gpuscope doctor --explain {pitfall.id}",
    ]


def live_at_peak(trace: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the allocations of a history that are live at its peak, by address."""
    live: dict[int, Mapping[str, Any]] = {}
    best: dict[int, Mapping[str, Any]] = {}
    size = most = 0
    rows = list(trace)
    for find in (True, False):  # first where the peak is, then what is live there
        live, size = {}, 0
        for row in rows:
            size += _step(live, row)
            if find:
                most = max(most, size)
            elif size == most:
                best = dict(live)
                break
    return best


def live_at_end(trace: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the allocations of a history that were never freed, by address."""
    live: dict[int, Mapping[str, Any]] = {}
    for row in trace:
        _step(live, row)
    return live


def _step(live: dict[int, Mapping[str, Any]], row: Mapping[str, Any]) -> int:
    """Follow one entry of the history; returns by how many bytes it changes what is live."""
    if row["action"] == "alloc":
        live[row["addr"]] = row
        return int(row["size"])
    if row["action"] == "free_completed" and row["addr"] in live:
        return -int(live.pop(row["addr"])["size"])
    return 0


def _stacks(live: Mapping[int, Mapping[str, Any]], title: str) -> list[str]:
    """Return the lines that allocated most of what is live."""
    sums: dict[str, int] = {}
    for row in live.values():
        frames = [
            f"{frame['filename']}:{frame['line']} in {frame['name']}"
            for frame in row.get("frames", ())
            if is_own(str(frame.get("filename", "")))
        ]
        key = " < ".join(frames[:3]) or "(no stack)"
        sums[key] = sums.get(key, 0) + int(row["size"])
    rows = sorted(sums.items(), key=lambda item: -item[1])[:SHOWN]
    summary = [f"  {bytes_text(size):>9}  {clean(stack, 600)}" for stack, size in rows]
    return [f"  {title}, by stack:", *summary] if summary else []
