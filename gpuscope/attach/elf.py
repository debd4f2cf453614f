"""Reads exported symbols, a section and the entry point of an ELF file, for injection.

Only 64-bit little-endian files are read. The file of a running process is not trusted: every
offset is checked against the bytes that are there.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, Dict, Iterable, List, NamedTuple, Optional, Tuple

X86_64, AARCH64 = 62, 183
ELFCLASS64 = 2
PT_LOAD = 1
MAX_TABLE_BYTES = 64 << 20
MAX_HEADERS = 4096


class BadElf(ValueError):
    """The file is not an ELF file of this kind, or contradicts itself."""


class Section(NamedTuple):
    """A section, from its header. Addresses are relative to the image's load bias."""

    name: str
    kind: int
    address: int
    offset: int
    size: int
    link: int


class Segment(NamedTuple):
    """A segment, from its program header."""

    kind: int
    offset: int
    address: int
    file_bytes: int


class Elf:
    """One open file. Raises :class:`BadElf` and OSError."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.head = self._read(0, 64)
        if self.head[:4] != b"\x7fELF":
            raise BadElf("not an ELF file")
        self.is_64 = self.head[4] == ELFCLASS64
        if not self.is_64 or self.head[5] != 1:
            raise BadElf("a 32-bit or big-endian program")
        (
            _,
            self.machine,
            _,
            self.entry,
            program_at,
            section_at,
            _,
            _,
            program_bytes,
            programs,
            section_bytes,
            sections,
            names,
        ) = struct.unpack_from("<HHIQQQIHHHHHH", self.head, 16)
        self.segments = self._programs(program_at, program_bytes, programs)
        self.sections = self._sections(section_at, section_bytes, sections, names)

    def base(self) -> int:
        """Return the address that the first loadable segment asks for, rounded down to a page."""
        loads = [one.address for one in self.segments if one.kind == PT_LOAD]
        if not loads:
            raise BadElf("nothing in it is loaded")
        return min(loads) & ~0xFFF

    def section(self, name: str) -> Optional[Section]:
        return next((one for one in self.sections if one.name == name), None)

    def exported(self, wanted: Iterable[str]) -> Dict[str, int]:
        """Return {symbol: address} for those that the dynamic symbol table defines."""
        found: Dict[str, int] = {}
        missing = {name.encode() for name in wanted}
        table = self.section(".dynsym")
        if table is None or not 0 <= table.link < len(self.sections):
            return found
        strings = self._bytes(self.sections[table.link])
        symbols = self._bytes(table)
        for name_at, info, _, index, value, _ in struct.iter_unpack(
            "<IBBHQQ", symbols[: len(symbols) // 24 * 24]
        ):
            if index and value and info & 15 in (0, 1, 2) and name_at < len(strings):
                name = strings[name_at : strings.find(b"\0", name_at)]
                if name in missing:
                    found[name.decode()] = value
        return found

    def _programs(self, at: int, size: int, count: int) -> List[Segment]:
        found = []
        for index in range(min(count, MAX_HEADERS)):
            header = self._read(at + index * size, 56)
            kind, _, offset, address, _, file_bytes, _, _ = struct.unpack("<IIQQQQQQ", header)
            found.append(Segment(kind, offset, address, file_bytes))
        return found

    def _sections(self, at: int, size: int, count: int, names: int) -> List[Section]:
        if not at or count > MAX_HEADERS:
            return []
        raw: List[Tuple[int, ...]] = []
        for index in range(count):
            raw.append(struct.unpack("<IIQQQQIIQQ", self._read(at + index * size, 64)))
        if names >= len(raw):
            return []
        strings = self._read(raw[names][4], min(raw[names][5], MAX_TABLE_BYTES))
        found = []
        for name_at, kind, _, address, offset, length, link, _, _, _ in raw:
            name = (
                strings[name_at : strings.find(b"\0", name_at)] if name_at < len(strings) else b""
            )
            found.append(
                Section(name.decode("utf-8", "replace"), kind, address, offset, length, link)
            )
        return found

    def _bytes(self, section: Section) -> bytes:
        if section.kind == 8:  # SHT_NOBITS: the file holds no bytes of it
            return b""
        return self._read(section.offset, min(section.size, MAX_TABLE_BYTES))

    def _read(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0:
            raise BadElf("an offset beyond its end")
        self._stream.seek(at)
        data = self._stream.read(size)
        if len(data) != size:
            raise BadElf("truncated")
        return data
