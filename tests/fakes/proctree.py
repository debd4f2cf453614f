"""Recorded trees of /proc and /sys in a directory, and what tests ask of readings from them."""

from __future__ import annotations

from pathlib import Path

from gpuscope.wire.frames import Unknown


def stat_line(
    name: bytes, ppid: int = 7, cpu: int = 150, start: int = 4242, rss: int = 1000
) -> bytes:
    """/proc/PID/stat as the kernel writes it, with 52 fields."""
    after = [
        b"S",
        b"%d" % ppid,
        *[b"1"] * 9,
        b"%d" % (cpu - 50),
        b"50",
        *[b"1"] * 6,
        b"%d" % start,
        b"9",
        b"%d" % rss,
    ]
    return b"123 (" + name + b") " + b" ".join([*after, *[b"0"] * 28]) + b"\n"


def tree(root: Path, files: dict[str, bytes | str]) -> str:
    """A recorded tree: path → content below ``root``."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(root)


def code(reading: object) -> str:
    assert isinstance(reading, Unknown), reading
    return reading.code
