"""The file format of black boxes: slots with checksums behind two copies of a header.

Probes write the file inside trainers (``probe/blackbox.py``), and the viewer reads it
(``store/blackbox.py``). All numbers are little-endian. The two copies of the header are written in
turn, so that one of them is always whole. A header's payload is a JSON object with ``v``,
``version``, ``nonce`` (hex), ``hello`` (the line) and ``ended``. Slots have a fixed size and hold
lines of the wire; a long line takes several slots. The checksum of a slot starts with the box's
nonce, so that a slot of another box is never accepted. This module uses only the standard library
and the syntax of Python 3.8.
"""

from __future__ import annotations

import struct
import zlib
from typing import List, Optional, Tuple

MAGIC = b"GPUSCBOX"
VERSION = 1
SLOT_BYTES = 512
SLOTS = 4096
"""The ring takes 2 MiB. This holds at least ten minutes at 1 Hz, with a key frame every minute, for
a process that uses up to eight devices.
"""
HEADER_BYTES = 32 << 10
HEADERS = 2
SLOTS_OFFSET = HEADERS * HEADER_BYTES
FILE_BYTES = SLOTS_OFFSET + SLOTS * SLOT_BYTES
_SLOT = struct.Struct("<QHHHHI")  # number of the record, part, parts, payload bytes, 0, CRC-32
# magic, generation, payload bytes, CRC-32 of generation and payload
_HEAD = struct.Struct("<8sQII")
PAYLOAD_BYTES = SLOT_BYTES - _SLOT.size
HEADER_PAYLOAD_BYTES = HEADER_BYTES - _HEAD.size
MAX_PARTS = SLOTS // 4


def slots(nonce: bytes, record: int, line: bytes) -> List[bytes]:
    """Return the slots for one line, or none if the line is too long for a box."""
    parts = [line[at : at + PAYLOAD_BYTES] for at in range(0, len(line), PAYLOAD_BYTES)]
    if len(parts) > MAX_PARTS:
        return []
    cells = []
    for number, part in enumerate(parts):
        head = _SLOT.pack(record, number, len(parts), len(part), 0, 0)[:-4]
        crc = zlib.crc32(part, zlib.crc32(head, zlib.crc32(nonce)))
        cells.append((head + struct.pack("<I", crc) + part).ljust(SLOT_BYTES, b"\0"))
    return cells


def read_slot(nonce: bytes, cell: bytes) -> Optional[Tuple[int, int, int, bytes]]:
    """Return (record, part, parts, payload) of a slot; None if it is damaged or of another box."""
    if len(cell) != SLOT_BYTES:
        return None
    record, part, parts, length, _, crc = _SLOT.unpack_from(cell)
    if not (part < parts <= MAX_PARTS and 0 < length <= PAYLOAD_BYTES):
        return None
    payload = cell[_SLOT.size : _SLOT.size + length]
    if zlib.crc32(payload, zlib.crc32(cell[: _SLOT.size - 4], zlib.crc32(nonce))) != crc:
        return None
    return record, part, parts, payload


def header(generation: int, payload: bytes) -> bytes:
    crc = zlib.crc32(payload, zlib.crc32(struct.pack("<Q", generation)))
    return _HEAD.pack(MAGIC, generation, len(payload), crc) + payload


def header_offset(generation: int) -> int:
    return generation % HEADERS * HEADER_BYTES


def read_header(data: bytes) -> Optional[bytes]:
    """Return the payload of the newest undamaged header copy, or None if both are damaged."""
    return _newest(data)[1]


def newest_generation(data: bytes) -> int:
    """Return how often the header has been written, by its newest undamaged copy; 0 for none."""
    return _newest(data)[0]


def _newest(data: bytes) -> Tuple[int, Optional[bytes]]:
    best: Tuple[int, Optional[bytes]] = 0, None
    for number in range(HEADERS):
        copy = data[number * HEADER_BYTES : (number + 1) * HEADER_BYTES]
        if len(copy) < _HEAD.size:
            continue
        magic, generation, length, crc = _HEAD.unpack_from(copy)
        payload = copy[_HEAD.size : _HEAD.size + length]
        if magic != MAGIC or length > HEADER_PAYLOAD_BYTES or len(payload) != length:
            continue
        whole = zlib.crc32(payload, zlib.crc32(struct.pack("<Q", generation))) == crc
        if whole and (best[1] is None or generation > best[0]):
            best = generation, payload
    return best
