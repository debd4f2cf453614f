"""Read from a core file which process died, of which signal, in which command and library.

Only the notes at its beginning are read, and the names of a few variables from the end of its first
stack, whatever the size of the file. A core file that is packed with lz4, or with zstd where Python
is older than 3.14, is named by what systemd-coredump writes into its name.
"""

from __future__ import annotations

import gzip
import io
import lzma
import re
import signal
import struct
import zlib
from collections.abc import Iterator
from importlib import import_module
from typing import IO, Any

from ...wire.files import open_regular
from ..file_kinds import GZIP, XZ, ZSTD
from .find import FoundFile
from .model import Core, Exit, Rank
from .read_log import LogPart

MOST_NOTES = 100_000
MOST_SEGMENTS = 200_000
SEGMENT_BYTES = 56
MOST_UNPACKED = 32 << 20
"""How much of a packed core file is unpacked: the notes are at its beginning."""
ENVIRONMENT_BYTES = 256 << 10
CRASHES = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGSYS)
)
"""Signals that end a process for what it did itself; gcore and a user's kill write others."""
_PRSTATUS, _PRPSINFO, _AUXV, _SIGINFO, _FILE = 1, 3, 6, 0x53494749, 0x46494C45
_NOTE_BYTES = {_PRSTATUS: 512, _PRPSINFO: 136, _AUXV: 4096, _SIGINFO: 128, _FILE: 4 << 20}
"""How much is read of a note of each type."""
_LOAD, _NOTE = 1, 4
_MANY = 0xFFFF
_COUNTER = {62: 240, 183: 368}
"""Where the program counter is in NT_PRSTATUS, by the kind of processor: x86-64 and aarch64."""
Mapped = tuple[int, int, int, str]
"""The first address of a mapped part of a file, the one behind its end, its offset and the file."""
_ENTRY = 9  # AT_ENTRY, the address at which the program began
_PROGRAM_NAME = 31  # AT_EXECFN, an address behind the environment on the first stack
_RANK_NAMES = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_VARIABLE = re.compile(
    rb"(RANK|SLURM_PROCID|OMPI_COMM_WORLD_RANK|PMI_RANK|WORLD_SIZE|LOCAL_RANK)=(\d{1,6})"
)
_OF_SYSTEMD = re.compile(
    r"^core\.(?P<command>[^.]{1,64}(?:\.[^.]{1,20})*?)\.(?P<uid>\d+)\.(?P<boot>[0-9a-f]{32})"
    r"\.(?P<pid>\d+)\.(?P<time>\d{13,17})\.(?:zst|lz4|xz)$"
)


class NoCore(Exception):
    """The file holds no core that can be read. The text says why."""


class PackedCore(NoCore):
    """The core file is packed in a way that this Python cannot read."""


def read(found: FoundFile) -> tuple[Core, LogPart]:
    """Return what a core file says. Raises NoCore and OSError."""
    with open_regular(found.path) as file:
        try:
            core, values = _read(_opened(file))
        except PackedCore:
            raise PackedCore(_named(found)) from None
    core.source = found.name
    core.time = found.modified
    about = Rank(-1, pid=core.pid, sources=[found.name])
    core.rank = next((values[one] for one in _RANK_NAMES if one in values), found.rank)
    core.world = values.get("WORLD_SIZE")
    about.local = values.get("LOCAL_RANK")
    if core.signal in CRASHES:
        about.exit = Exit(-core.signal, found.name, core.pid, found.modified)
    return core, LogPart(found, about, core.rank)


def _named(found: FoundFile) -> str:
    """Return what the name of a packed core file says, and how to unpack it."""
    name = found.path.name
    tool = {"zst": "zstd -d", "lz4": "lz4 -d"}.get(name.rpartition(".")[2], "unpack it")
    match = _OF_SYSTEMD.match(name)
    if match is None:
        return f"a core file that is packed. Next: {tool} it, and ask again"
    command, pid = match["command"], match["pid"]
    return f"a packed core file of {command}, PID {pid}. Next: coredumpctl info {pid}, or {tool} it"


def _opened(file: IO[bytes]) -> IO[bytes]:
    """Return a core file, unpacked in memory as far as its notes may reach."""
    head = file.read(6)
    file.seek(0)
    if head.startswith(b"\x7fELF"):
        return file
    opener: Any = {GZIP: gzip.open, XZ[:2]: lzma.open, ZSTD[:2]: _zstd_open()}.get(head[:2])
    if opener is None:
        raise PackedCore
    try:
        with opener(file) as unpacked:
            return io.BytesIO(unpacked.read(MOST_UNPACKED))
    except (EOFError, lzma.LZMAError, zlib.error, ValueError) as error:
        raise NoCore(f"it is damaged ({error})") from None


def _zstd_open() -> Any:
    """Return what opens a file that zstd has packed: Python has it from 3.14 on."""
    try:
        return import_module("compression.zstd").open
    except ImportError:
        return None


def _read(file: IO[bytes]) -> tuple[Core, dict[str, int]]:
    head = file.read(64)
    if len(head) < 64 or head[:4] != b"\x7fELF":
        raise NoCore("it is shorter than the head of a core file")
    if head[4:6] != b"\x02\x01":
        raise NoCore("it is of a processor that no GPU's host has: not 64 bits, little end first")
    machine = struct.unpack_from("<H", head, 18)[0]
    segments = list(_segments(file, head))
    core = Core()
    where = counter = entry = -1
    mapped: list[Mapped] = []
    for offset, size in [(one[1], one[3]) for one in segments if one[0] == _NOTE]:
        for kind, at, length in _notes(file, offset, size):
            data = _at(file, at, min(length, _NOTE_BYTES[kind]))
            if kind == _PRSTATUS:
                core.threads += 1
                if core.threads == 1:  # the thread that got the signal is the first one
                    core.signal = _number(data, "<h", 12)
                    counter = _number(data, "<Q", _COUNTER.get(machine, len(data)))
            elif kind == _PRPSINFO:
                core.pid = _number(data, "<i", 24)
                core.name = _text(data[40:56])
                core.command = _text(data[56:136])
            elif kind == _SIGINFO:
                code = _number(data, "<i", 8)
                core.sender = _number(data, "<i", 16) if code in (0, -6) else None
            elif kind == _FILE and not mapped:
                mapped = _files(data)
            elif kind == _AUXV:
                where, entry = (_auxiliary(data, one) for one in (_PROGRAM_NAME, _ENTRY))
    if not core.threads:
        raise NoCore("it ends before its notes, or has none")
    core.files = list(dict.fromkeys(one[3] for one in mapped if one[3]))
    core.place = _place(mapped, counter)
    core.program = next((one[3] for one in mapped if one[0] <= entry < one[1]), "")
    return core, _variables(file, segments, where)


def _segments(file: IO[bytes], head: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield type, offset, address and size in the file of each segment."""
    offset, sections = struct.unpack_from("<QQ", head, 32)
    each, count = struct.unpack_from("<HH", head, 54)
    if count == _MANY:  # the number is in the first section's head then
        count = _number(_at(file, sections, 64), "<I", 44)
    if each != SEGMENT_BYTES:
        raise NoCore("its head is damaged")
    data = _at(file, offset, each * min(count, MOST_SEGMENTS))
    for at in range(0, len(data) - 55, each):
        kind = _number(data, "<I", at)
        start, address = struct.unpack_from("<QQ", data, at + 8)
        yield kind, start, address, struct.unpack_from("<Q", data, at + 32)[0]


def _notes(file: IO[bytes], offset: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield type, offset and size of each note that is read here."""
    at, end = offset, offset + size
    for _ in range(MOST_NOTES):
        head = _at(file, at, 12)
        if at + 12 > end or len(head) < 12:
            return
        name, length, kind = struct.unpack("<III", head)
        begin = at + 12 + (name + 3) // 4 * 4
        if kind in _NOTE_BYTES:
            yield kind, begin, length
        at = begin + (length + 3) // 4 * 4


def _at(file: IO[bytes], offset: int, size: int) -> bytes:
    try:
        file.seek(offset)
    except (OSError, ValueError, OverflowError):
        return b""
    return file.read(size)


def _number(data: bytes, form: str, at: int) -> int:
    """Return a number in a note, or -1 where the note is too short for it."""
    if at + struct.calcsize(form) > len(data):
        return -1
    return int(struct.unpack_from(form, data, at)[0])


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("utf-8", "replace").strip()


def _files(data: bytes) -> list[Mapped]:
    """Return the files that were mapped, and where."""
    count, page = _number(data, "<Q", 0), _number(data, "<Q", 8)
    rows = 16 + 24 * count
    if count < 0 or rows > len(data):
        return []
    names = [name.decode("utf-8", "replace") for name in data[rows:].split(b"\0")]
    ranges = struct.iter_unpack("<QQQ", data[16:rows])
    return [
        (begin, end, pages * page, name)
        for (begin, end, pages), name in zip(ranges, names, strict=False)
    ]


def _place(mapped: list[Mapped], address: int) -> str:
    """Return ``libc.so.6+0x16d8a2`` for an address in a mapped file, or nothing."""
    for begin, end, offset, name in mapped:
        if begin <= address < end:
            return f"{name.rpartition('/')[2]}+{address - begin + offset:#x}"
    return ""


def _auxiliary(data: bytes, wanted: int) -> int:
    for key, value in struct.iter_unpack("<QQ", data[: len(data) // 16 * 16]):
        if key == wanted:
            return int(value)
    return -1


def _variables(
    file: IO[bytes], segments: list[tuple[int, int, int, int]], where: int
) -> dict[str, int]:
    """Return the numbers of the rank from the environment, which ends before this address.

    Nothing else of the environment is kept: it may hold secrets.
    """
    for kind, start, address, size in segments:
        if kind == _LOAD and address <= where < address + size:
            begin = max(address, where - ENVIRONMENT_BYTES)
            data = _at(file, start + begin - address, where - begin)
            return _of_environment(data)
    return {}


def _of_environment(data: bytes) -> dict[str, int]:
    """Return the numbers of the rank from the strings at the end of a stack."""
    found: dict[str, int] = {}
    for text in reversed(data.split(b"\0")[:-1]):
        if b"=" not in text:
            break
        match = _VARIABLE.fullmatch(text)
        if match is not None:
            found.setdefault(match[1].decode(), int(match[2]))
    return found
