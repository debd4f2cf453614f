"""Count what ``torch.compile`` made of a model: graphs, graph breaks and recompiles.

torch writes places and reasons to two loggers, whose names are the same since 2.1. They are read
here and not printed. Graphs are counted by ``torch._dynamo.utils.counters``. Values that a version
of torch does not report are None.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

MOST_NAMED = 50
"""Limit of the different breaks and recompiles that are kept by name; a model can have thousands.
"""
MOST_CHARACTERS = 300

_PLACE = re.compile(r"in user code at ([^\n]+?):(\d+)")
_REASON = re.compile(
    r"(?:Graph Break )?Reason: *(?:Encountered graph break when[^\n]*\s+)?([^\n]+)"
)
"""Newer versions of torch name the instruction in the first line and the problem in the next one.
"""
_EXPLANATION = re.compile(r"^ *Explanation: *([^\n]+)", re.MULTILINE)
_RECOMPILED = re.compile(r"Recompiling function (\S+) in ([^\n]+)")
_GUARD = re.compile(r"^ *- *(?:\d+/\d+: *)?([^\n]+)", re.MULTILINE)
_BREAKS = "graph_breaks"
_RECOMPILES = "recompiles"


def compiled(call: Callable[..., Any], mode: str, fullgraph: bool) -> Callable[..., Any]:
    """Return a module or function under ``torch.compile`` in this mode of the toggle."""
    return torch.compile(call, mode=mode, fullgraph=fullgraph)  # type: ignore[no-any-return]


class Compilation:
    """Listens to torch's loggers from its creation on. A process may have only one at a time."""

    def __init__(self, mode: str, fullgraph: bool):
        self.mode, self.fullgraph = mode, fullgraph
        self.first_step_seconds: float | None = None
        self._breaks: Counter[tuple[str, str]] = Counter()
        self._recompiles: Counter[tuple[str, str]] = Counter()
        self._before = self._graph_count()
        _listen(self._count_log_line)

    @property
    def events(self) -> int:
        """Return the number of graphs, breaks and recompiles so far.

        While it grows, compilation goes on.
        """
        return (
            (self._graph_count() or 0) + sum(self._breaks.values()) + sum(self._recompiles.values())
        )

    @property
    def replays(self) -> bool:
        """Whether this mode replays CUDA graphs, whose next replay overwrites its outputs."""
        return self.mode in ("reduce-overhead", "max-autotune")

    def summary(self) -> dict[str, Any]:
        """Return what the document says under ``compile``."""
        counted = self._graph_count()
        return {
            "mode": self.mode,
            "fullgraph": self.fullgraph,
            "first_step_seconds": self.first_step_seconds,
            "graphs": None if counted is None else counted - (self._before or 0),
            "graph_breaks": [
                {"where": where, "reason": reason, "count": count}
                for (where, reason), count in self._breaks.most_common()
            ],
            "recompiles": [
                {"function": function, "reason": reason, "count": count}
                for (function, reason), count in self._recompiles.most_common()
            ],
        }

    def _graph_count(self) -> int | None:
        """Return how many graphs this process has compiled."""
        try:
            from torch._dynamo.utils import counters

            return int(counters["stats"].get("unique_graphs", 0))
        except (ImportError, AttributeError, KeyError, TypeError, ValueError):
            return None

    def _count_log_line(self, kind: str, text: str) -> None:
        counter, named = (
            (self._breaks, a_break) if kind == _BREAKS else (self._recompiles, a_recompile)
        )
        key = named(text)
        if key is not None:
            if key not in counter and len(counter) >= MOST_NAMED:
                key = ("others", f"beyond the first {MOST_NAMED}")
            counter[key] += 1


# Paths are resolved: the worker finds this package through a link in a temporary folder.


def a_break(text: str) -> tuple[str, str] | None:
    """Return place and reason of a graph break, from a line that torch logs about it.

    None for a line that names no break.
    """
    place, reason, explanation = (
        _PLACE.search(text),
        _REASON.search(text),
        _EXPLANATION.search(text),
    )
    if place is None:
        return None
    why = ": ".join(found[1].strip() for found in (reason, explanation) if found)
    return f"{os.path.realpath(place[1])}:{place[2]}"[-MOST_CHARACTERS:], why[
        :MOST_CHARACTERS
    ] or "torch gave no reason"


def a_recompile(text: str) -> tuple[str, str] | None:
    """Return function and reason of a recompile, from a line that torch logs about it.

    Of several failed guards it is the first one, which belongs to the newest graph.
    """
    function, reason = _RECOMPILED.search(text), _GUARD.search(text)
    if function is None:
        return None
    path, colon, line = function[2].strip().rpartition(":")
    name = f"{function[1]} ({os.path.realpath(path) if path else ''}{colon}{line})"
    return name[:MOST_CHARACTERS], reason[1].strip()[
        :MOST_CHARACTERS
    ] if reason else "torch gave no reason"


class _Listener(logging.Handler):
    def __init__(self, kind: str, report: Callable[[str, str], None]):
        super().__init__(logging.DEBUG)
        self._kind, self._count_log_line = kind, report

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._count_log_line(self._kind, record.getMessage())
        except Exception:  # no log line, whatever it contains, may end a training
            self.handleError(record)


def _listen(report: Callable[[str, str], None]) -> None:
    """Make torch report every break and recompile to ``heard`` instead of stderr."""
    import torch._dynamo  # makes the loggers

    set_logs = getattr(getattr(torch, "_logging", None), "set_logs", None)
    if set_logs is None:
        return
    set_logs(graph_breaks=True, recompiles=True)
    for name in list(logging.root.manager.loggerDict):
        for kind in (_BREAKS, _RECOMPILES):
            if name.startswith("torch.") and name.endswith(f".__{kind}"):
                logger = logging.getLogger(name)
                logger.handlers = [_Listener(kind, report)]
                logger.propagate = False
                logger.setLevel(logging.DEBUG)
