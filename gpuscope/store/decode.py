"""Decode frames for the viewer, with strings cleaned.

There is one msgspec decoder per kind, which makes the dataclasses of ``frames`` directly.

For valid frames the result is that of ``codec.decode``, several times faster; in addition all
strings are safe to show (``wire.clean``). For invalid bytes it raises only
:class:`~gpuscope.wire.codec.WireError`.
"""

from __future__ import annotations

import base64
import math
import re
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec

from ..wire import codec
from ..wire.clean import clean
from ..wire.codec import INT_LIMIT, MAX_CHUNK_CHARS, MAX_DEPTH, MAX_ITEMS, WireError
from ..wire.frames import (
    KINDS,
    MAX_LINE_BYTES,
    MAX_STRING_CHARS,
    REQUESTS,
    Blob,
    Def,
    Frame,
    Hello,
    Request,
    Result,
    Sample,
)

__all__ = ["WireError", "decode"]

# Our senders write the kind first. Any other line is decoded by the slower codec of the standard
# library.
_HEAD = re.compile(rb'\{"(k|r)":"([a-z]{1,16})"[,}]')
_DECODERS: dict[bytes, msgspec.json.Decoder[Any]] = {
    kind.encode(): msgspec.json.Decoder(cls) for kind, cls in KINDS.items()
}
_REQUEST: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_FREE_FORM = (Hello, Result)
"""Kinds that have containers inside containers. Their frames are always walked, to bound these."""


def decode(line: bytes) -> Frame:
    """Decode the frame in ``line`` (with or without its newline).

    Strings are cleaned and at most ``MAX_STRING_CHARS`` long.

    Raises :class:`WireError`.
    """
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"line of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}")
    head = _HEAD.match(line)
    decoder = (_REQUEST if head[1] == b"r" else _DECODERS.get(head[2])) if head else None
    if decoder is None:
        return _tidy(codec.decode(line))
    try:
        frame: Frame = decoder.decode(line)
    except (ValueError, RecursionError, MemoryError) as error:
        # a lone surrogate: msgspec refuses it, codec mends it
        if b"\\ud" in line or b"\\uD" in line:
            return _tidy(codec.decode(line))
        raise WireError(f"not a frame of this protocol: {type(error).__name__}") from None
    if isinstance(frame, Sample):
        _check_tables(frame)
        return frame if _is_harmless(line) else _tidy(frame)
    if isinstance(frame, Blob):
        return _tidy(frame)
    if isinstance(frame, Request) and frame.r not in REQUESTS:
        raise WireError("no such request")
    if isinstance(frame, Def):
        codec.check_definition(frame)
    return frame if _is_harmless(line) and not isinstance(frame, _FREE_FORM) else _tidy(frame)


def _is_harmless(line: bytes) -> bool:
    """Tell whether nothing in the line can need cleaning, without looking at the values.

    This holds for printable ASCII without escapes (a string is then the text between two quotes),
    if the line has no long string and no integer that may have more than 64 bits.
    """
    return (
        line.isascii()
        and b"\\" not in line
        and b"\x7f" not in line
        and max(map(len, line.split(b'"')[1::2]), default=0) <= MAX_STRING_CHARS
        and not codec.has_long_number(line)
    )


def _check_tables(sample: Sample) -> None:
    for rows in (
        sample.h,
        sample.g,
        sample.p,
        sample.u,
        sample.t,
        sample.a,
        sample.why,
        sample.ago,
    ):
        if rows and (len(rows) > MAX_ITEMS or max(map(len, rows)) > MAX_ITEMS):
            raise WireError("a table of a sample has too many rows or cells")


def _check_chunk(data: str) -> None:
    if len(data) > MAX_CHUNK_CHARS:
        raise WireError(f"a chunk of more than {MAX_CHUNK_CHARS} characters")
    try:
        base64.b64decode(data, validate=True)
    except ValueError:
        raise WireError("the chunk of a blob is not base64") from None


def _tidy(frame: Frame) -> Frame:
    """Clean the frame's strings and check its numbers and containers, in place, and return it."""
    if isinstance(frame, Blob):
        _check_chunk(frame.data)
        data, frame.data = frame.data, ""  # base64 needs no cleaning, and is too long to be copied
        _tidy_fields(frame)
        frame.data = data
    else:
        _tidy_fields(frame)
    return frame


def _tidy_fields(value: Any) -> None:
    for field in fields(value):
        inner = getattr(value, field.name)
        if is_dataclass(inner):
            _tidy_fields(inner)
        else:
            setattr(value, field.name, _tidied(inner, -1))


def _tidied(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind is str:
        return clean(value)
    if kind is int:
        return _int(value)
    if kind is float:
        if not math.isfinite(value):
            raise WireError("not a finite number")
        return value
    if kind is list or kind is dict:
        if depth > MAX_DEPTH or len(value) > MAX_ITEMS:
            raise WireError("nested too deeply or too many elements")
        if kind is list:
            return [_tidied(item, depth + 1) for item in value]
        return {clean(key): _tidied(item, depth + 1) for key, item in value.items()}
    return value


def _int(value: int) -> int:
    if not -INT_LIMIT <= value < INT_LIMIT:
        raise WireError("an integer wider than 64 bits")
    return value
