#!/usr/bin/env python3
"""Record what NVML answers on this machine, byte for byte.

Run it with ``python demos/nvml_dump.py FILE.json [--index N]``.

Every call that gpuscope makes for a device is made once through pynvml, while a recorder sits
between pynvml and the library. For each call the file keeps the function's name, its integer
arguments, the bytes of every buffer after the call, and the return value. The tests replay such a
file under the real wrappers, so a wrapper whose struct layout differs from the driver's is found
without a GPU. The file contains the UUIDs and PCI addresses of the machine and the pids and memory
of the processes on the GPU, but no names.
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
from gpuscope.wire.frames import Unknown

VERSION = 2
MAX_BYTES = 1 << 16
PAUSE_SECONDS = 1.2


def size_of(argument: Any) -> int:
    """Return the bytes behind an argument of a call.

    The argument is a struct passed by reference, or a buffer. The result is 0 if it is passed by
    value.
    """
    target = getattr(argument, "_obj", None)
    if target is not None:
        return ctypes.sizeof(target)
    return ctypes.sizeof(argument) if isinstance(argument, ctypes.Array) else 0


def content(argument: Any) -> bytes:
    """Return the bytes behind an argument."""
    target = getattr(argument, "_obj", argument)
    return bytes(ctypes.string_at(ctypes.addressof(target), min(size_of(argument), MAX_BYTES)))


def packed(content: bytes) -> str:
    """Write bytes as ``"8:2a"``: their number, and those up to the last that is not 0."""
    return f"{len(content)}:{content.rstrip(bytes(1)).hex()}"


def unpacked(text: str) -> bytes:
    """Return the bytes that :func:`packed` was given."""
    length, _, digits = text.partition(":")
    return bytes.fromhex(digits).ljust(int(length), bytes(1))


def by_value(argument: Any) -> Any:
    """Return a number as it is, a handle as "handle", and anything else by the name of its type."""
    if isinstance(argument, int):
        return argument
    value = getattr(argument, "value", None)
    return (
        value
        if isinstance(value, int)
        else "handle"
        if isinstance(argument, ctypes._Pointer)
        else None
    )


class Recorder:
    """Replace ``pynvml.nvmlLib``, record each call, and pass it on to the library."""

    def __init__(self, library: Any) -> None:
        self.library = library
        self.calls: list[dict[str, Any]] = []
        self._functions: dict[str, Any] = {}

    def __getattr__(self, symbol: str) -> Any:
        # AttributeError where the library has no such symbol: as it should be
        real = getattr(self.library, symbol)
        if symbol not in self._functions:

            def function(*arguments: Any) -> Any:
                given = [None if size_of(one) else by_value(one) for one in arguments]
                began = time.perf_counter()
                returned = real(*arguments)
                seconds = time.perf_counter() - began
                after = [packed(content(one)) if size_of(one) else None for one in arguments]
                row = {"call": symbol, "return": returned, "seconds": round(seconds, 7)}
                self.calls.append({**row, "given": given, "after": after})
                return returned

            self._functions[symbol] = function
        return self._functions[symbol]


def tell(nvml: Nvml, index: int, pause: float) -> tuple[dict[str, Any], list[Any]]:
    """Make every call that gpuscope makes for the device ``index``.

    Calls that need two samples are made twice, ``pause`` seconds apart. Returns the readings by
    name (an Unknown if there is none), and the load of its processes at both times.
    """
    device = nvml.device(index)
    device.fast()
    device.slow()
    load = [device.process_load()]
    time.sleep(pause)
    load.append(device.process_load())  # asks for what is newer than the first
    definition, _ = device.static()
    told: dict[str, Any] = {
        name: value for name, value in vars(definition).items() if value is not None
    }
    ways, _ = device.paths(nvml.device_count())
    for readings in (device.fast(), device.slow(), device.inventory(), ways, device.health()):
        told.update(readings)
    idle = device.idle_seconds()
    told["idle"] = idle if isinstance(idle, Unknown) else int(bool(idle))
    listed = device.processes()
    told["processes"] = listed if isinstance(listed, Unknown) else str(listed)
    paths = device.topology([other for other in range(nvml.device_count()) if other != index])
    told.update(links=paths.links, links_active=paths.links_active, fabric_state=paths.fabric)
    watch = nvml.xid_watch()
    watch.open()
    told["xid_registered"] = watch.why_not.get(index, 1)
    watch.close()
    return told, load


def record(index: int, pause: float = PAUSE_SECONDS) -> dict[str, Any]:
    """Return what the driver answered, and what our wrappers made of it."""
    pynvml.nvmlInit()
    recorder = Recorder(pynvml.nvmlLib)
    pynvml.nvmlLib = recorder
    pynvml._nvmlGetFunctionPointer_cache.clear()
    nvml = Nvml.open()
    told, load = tell(nvml, index, pause)
    readable = {name: value for name, value in told.items() if isinstance(value, (int, float, str))}
    reasons = {name: value.text for name, value in told.items() if name not in readable}
    calls = [row for row in recorder.calls if not row["call"].startswith("nvmlErrorString")]
    return {
        "v": VERSION,
        "pynvml": getattr(pynvml, "__version__", None),
        "driver": nvml.driver_version,
        "index": index,
        "wall": time.time(),
        "calls": calls,
        "told": readable,
        "unknown": reasons,
        "load": [
            one.text if isinstance(one, Unknown) else {str(pid): sm for pid, sm in one.items()}
            for one in load
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file")
    parser.add_argument("--index", type=int, default=0)
    args = parser.parse_args()
    found = record(args.index)
    with open(args.file, "w") as out:
        calls = ",\n".join(json.dumps(row) for row in found.pop("calls"))
        out.write(f'{json.dumps(found, indent=1)[:-2]},\n "calls": [\n{calls}\n]}}\n')
    known, unknown = len(found["told"]), len(found["unknown"])
    print(f"{calls.count(chr(10)) + 1} calls, {known} readings, {unknown} unknown → {args.file}")
    print(f"  load of processes: {found['load']}")
    for name, why in sorted(found["unknown"].items()):
        print(f"  {name}: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
