"""A library that answers from what ``demos/nvml_dump.py`` wrote down.

A driver's bytes are under the wrappers.
"""

from __future__ import annotations

import ctypes
from collections import defaultdict
from typing import Any

from .nvml_library import NvmlLibrary
from .nvml_state import NOT_SUPPORTED


class ReplayNvml(NvmlLibrary):
    """Answer each call with what was recorded for it, in turn.

    The last answer comes again when there are no more. Calls with different numbers among their
    arguments (a clock, a link) are kept apart.
    """

    def __init__(self, dump: dict[str, Any]) -> None:
        super().__init__()
        self._answers: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
        for row in dump["calls"]:
            self._answers[_key(row["call"], row["given"])].append(row)
        self._symbols = {row["call"] for row in dump["calls"]}
        self.mismatched: list[str] = []
        """Calls whose wrapper passes other sizes than were recorded."""

    def _has(self, symbol: str) -> bool:
        return symbol in self._symbols

    def _answer(self, symbol: str, arguments: tuple[Any, ...]) -> int:
        from demos.nvml_dump import by_value, size_of, unpacked

        rows = self._answers.get(
            _key(symbol, [None if size_of(one) else by_value(one) for one in arguments])
        )
        if not rows:
            return NOT_SUPPORTED
        row = rows.pop(0) if len(rows) > 1 else rows[0]
        for argument, raw in zip(arguments, row["after"], strict=False):
            if raw is None or not size_of(argument):
                continue
            data = unpacked(raw)
            if len(data) != size_of(argument):
                self.mismatched.append(f"{symbol}: {size_of(argument)} bytes, recorded {len(data)}")
                data = data[: size_of(argument)]
            ctypes.memmove(ctypes.addressof(getattr(argument, "_obj", argument)), data, len(data))
        return int(row["return"])


def _key(symbol: str, arguments: list[Any]) -> tuple[Any, ...]:
    if symbol == "nvmlDeviceGetProcessUtilization":
        return (symbol,)  # since a moment, which is another one each time
    return (symbol, *(one for one in arguments if isinstance(one, int)))
