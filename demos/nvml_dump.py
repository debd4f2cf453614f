#!/usr/bin/env python3
"""Write down what NVML answers on this machine, byte for byte: ``python demos/nvml_dump.py FILE.json [--index N]``.

Each call that gpuscope makes of a device is made once through pynvml while a recorder stands between it and the
library. What is kept of a call: its name, the bytes of every argument before and after, and the return value. The tests
replay such a file under the real wrappers, so that a wrapper with another layout than the driver's is seen without a
GPU. UUIDs, serials and PCI addresses of the machine are in the file; process lists are not: they are asked, but only
their counts are kept.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from typing import Any

import pynvml

from gpuscope.collect.nvml import Nvml

VERSION = 1
MAX_BYTES = 1 << 16


def size_of(argument: Any) -> int:
    """Bytes behind an argument of a call: of a struct by reference or of a buffer; 0 where it is passed by value."""
    target = getattr(argument, "_obj", None)
    if target is not None:
        return ctypes.sizeof(target)
    return ctypes.sizeof(argument) if isinstance(argument, ctypes.Array) else 0


def content(argument: Any) -> bytes:
    """The bytes behind an argument."""
    target = getattr(argument, "_obj", argument)
    return bytes(ctypes.string_at(ctypes.addressof(target), min(size_of(argument), MAX_BYTES)))


def by_value(argument: Any) -> Any:
    """A number as it is; a handle as "handle"; anything else by the name of its type."""
    if isinstance(argument, int):
        return argument
    value = getattr(argument, "value", None)
    return value if isinstance(value, int) else "handle" if isinstance(argument, ctypes._Pointer) else None


class Recorder:
    """Stands at ``pynvml.nvmlLib``: hands calls on to the library and keeps what went in and came out."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.calls: list[dict[str, Any]] = []
        self._functions: dict[str, Any] = {}

    def __getattr__(self, symbol: str) -> Any:
        real = getattr(self.library, symbol)  # AttributeError where the library has no such symbol: as it should be
        if symbol not in self._functions:

            def function(*arguments: Any) -> Any:
                before = [content(one).hex() if size_of(one) else by_value(one) for one in arguments]
                began = time.perf_counter()
                returned = real(*arguments)
                seconds = time.perf_counter() - began
                after = [content(one).hex() if size_of(one) else None for one in arguments]
                if "RunningProcesses" in symbol:
                    before, after = [None, None, None], [None, after[1], None]  # how many, not who
                row = {"call": symbol, "return": returned, "seconds": round(seconds, 7)}
                self.calls.append({**row, "before": before, "after": after})
                return returned

            self._functions[symbol] = function
        return self._functions[symbol]


def record(index: int) -> dict[str, Any]:
    """All that is asked of the device ``index``, twice what needs two samples, and what we made of it."""
    pynvml.nvmlInit()
    recorder = Recorder(pynvml.nvmlLib)
    pynvml.nvmlLib = recorder
    pynvml._nvmlGetFunctionPointer_cache.clear()
    nvml = Nvml.open()
    device = nvml.device(index)
    device.fast()
    device.slow()
    time.sleep(0.5)
    definition, _ = device.static()
    told: dict[str, Any] = {name: value for name, value in vars(definition).items() if value is not None}
    ways, _ = device.paths(nvml.device_count())
    for readings in (device.fast(), device.slow(), device.inventory(), ways, device.health()):
        told.update(readings)
    device.processes()
    readable = {name: value for name, value in told.items() if isinstance(value, (int, float, str))}
    reasons = {name: value.text for name, value in told.items() if name not in readable}
    calls = [row for row in recorder.calls if not row["call"].startswith("nvmlErrorString")]
    return {
        "v": VERSION, "pynvml": getattr(pynvml, "__version__", None), "driver": nvml.driver_version, "index": index,
        "calls": calls, "told": readable, "unknown": reasons,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--index", type=int, default=0)
    args = parser.parse_args()
    found = record(args.index)
    with open(args.file, "w") as out:
        json.dump(found, out, indent=1)
    print(f"{len(found['calls'])} calls, {len(found['told'])} readings, {len(found['unknown'])} unknown → {args.file}")
    for name, why in sorted(found["unknown"].items()):
        print(f"  {name}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
