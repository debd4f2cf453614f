"""What stands in for libnvidia-ml.so.1: an object at ``pynvml.nvmlLib`` under the real wrappers."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pynvml

Self = TypeVar("Self", bound="NvmlLibrary")


class NvmlLibrary:
    """A library that can be installed; a subclass says what it has and what it answers."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def _has(self, symbol: str) -> bool:
        raise NotImplementedError

    def _answer(self, symbol: str, arguments: tuple[Any, ...]) -> Any:
        raise NotImplementedError

    def heal(self) -> None:
        """Let all go that waits for an answer; the library is about to be taken away."""

    def __getattr__(self, symbol: str) -> Any:
        if not symbol.startswith("nvml") or not self._has(symbol):
            raise AttributeError(symbol)
        function = self._functions.get(symbol)
        if function is None:
            # A plain function, because pynvml sets .restype on it.
            def function(*arguments: Any) -> Any:
                return self._answer(symbol, arguments)

            self._functions[symbol] = function
        return function

    @contextlib.contextmanager
    def install(self: Self) -> Iterator[Self]:
        """Stand in for libnvidia-ml.so.1 inside the block."""
        saved = pynvml.nvmlLib, pynvml._nvmlLib_refcount, dict(pynvml._nvmlGetFunctionPointer_cache)
        pynvml._nvmlGetFunctionPointer_cache.clear()
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = self, 0
        try:
            yield self
        finally:
            self.heal()
            left = _left_behind("xid" if saved[0] is not None else "")
            pynvml.nvmlLib, pynvml._nvmlLib_refcount = saved[:2]
            pynvml._nvmlGetFunctionPointer_cache.clear()
            pynvml._nvmlGetFunctionPointer_cache.update(saved[2])
            assert not left, f"they would ask the driver of the next test: {left}"


def _left_behind(another: str, seconds: float = 20.0) -> list[str]:
    """Wait for the threads that ask a driver, and return the names of those that go on.

    ``another`` is waited for too. One that hears of errors ends within a second: where there is a
    real driver, it would give back to that what it has got here, and the process would crash.

    They have been told to stop. The wrappers are of the whole process: a round that ends a little
    later would ask what the next test puts there.
    """
    until = time.monotonic() + seconds
    asking = [
        one
        for one in threading.enumerate()
        if one.name.startswith("gpu-") or one.name in ("nvml", "paths", another)
    ]
    for one in asking:
        one.join(max(0.0, until - time.monotonic()))
    return [one.name for one in asking if one.is_alive()]
