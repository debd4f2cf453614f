"""Code for children that look as if torch were loaded.

They do without its second of import: a file of that name is mapped.
"""

from __future__ import annotations

from pathlib import Path

MAP = (
    "import mmap as _m\n_f = open({path!r}, 'a+b'); _f.truncate(4096)\n"
    "_kept = _m.mmap(_f.fileno(), 4096, access=_m.ACCESS_READ)"
)


def likeness(folder: Path, code: str) -> str:
    """``code``, after mapping ``libtorch_cpu.so`` of this folder."""
    return MAP.format(path=str(folder / "libtorch_cpu.so")) + "\n" + code
