"""Recognise by its beginning what a file is that a trainer or a job left behind."""

from __future__ import annotations

import lzma
import re
import zlib
from typing import Literal

HEAD_BYTES = 64 << 10
GZIP = b"\x1f\x8b"
XZ = b"\xfd7zXZ\x00"
ZSTD, LZ4 = b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18"
_RECORDING = re.compile(rb'\{"k": ?"(?:recording|hello)"|\{"@":\d')
_FLIGHT = re.compile(rb"pg_config|pg_status|comm_lib_version|nccl_comm_state|collective_seq_id")
_ELASTIC = re.compile(rb'^\s*\{\s*"message"\s*:')
_NOT_TEXT = bytes(set(range(256)) - {*range(32)} | {8, 9, 10, 12, 13, 27})
"""Bytes that a text may contain; other bytes at a file's beginning suggest a binary file."""
_BINARY_SHARE = 0.03

Kind = Literal[
    "box", "snapshot", "recording", "flight", "elastic", "core", "packed", "zip", "binary", "text"
]


def unpacked(head: bytes) -> bytes:
    """Return the beginning of what a gzip or xz file holds, or nothing where it is damaged."""
    try:
        if head.startswith(XZ):
            return lzma.LZMADecompressor().decompress(head, HEAD_BYTES)
        return zlib.decompressobj(31).decompress(head, HEAD_BYTES)
    except (zlib.error, lzma.LZMAError):
        return b""


def kind_of(head: bytes) -> Kind:
    """Return what a file is that begins like this; a compressed one is unpacked for it.

    ``flight`` is a dump of c10d's flight recorder, as a pickle or as JSON, ``elastic`` an error
    file of torchrun, ``core`` the core file of a process, and ``packed`` a file that is packed by
    zstd or lz4. A text may be anything else that can be read.
    """
    from ..wire import boxes

    begin = unpacked(head) if head.startswith((GZIP, XZ)) else head
    if boxes.MAGIC in (begin[:8], begin[boxes.HEADER_BYTES : boxes.HEADER_BYTES + 8]):
        return "box"
    if begin[:1] == b"\x80" and begin[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05"):
        return "flight" if _FLIGHT.search(begin, 0, 4096) else "snapshot"
    if _RECORDING.match(begin):
        return "recording"
    if begin.lstrip()[:1] == b"{":
        if _ELASTIC.match(begin) and b'"extraInfo"' in begin:
            return "elastic"
        if b'"collective_seq_id"' in begin or (b'"version"' in begin and _FLIGHT.search(begin)):
            return "flight"
    if begin.startswith(b"PK\x03\x04"):
        return "zip"
    if begin.startswith(b"\x7fELF") and begin[16:18] in (b"\x04\x00", b"\x00\x04"):
        return "core"
    if begin.startswith((ZSTD, LZ4)):
        return "packed"
    return "binary" if is_binary(begin) else "text"


def is_binary(head: bytes) -> bool:
    """Return whether a file that begins like this is no text."""
    strange = len(head.translate(None, _NOT_TEXT))
    return strange > max(1, _BINARY_SHARE * len(head))
