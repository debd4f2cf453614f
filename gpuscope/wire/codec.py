"""The stdlib codec: ``encode`` for every sender, ``decode`` for agents and probes (the viewer has ``wire/decode.py``).

``decode`` is bounded: line length, integer width, nesting and types are checked before anything is built, and whatever
the input, the only exception that leaves is :class:`WireError`. Runs inside trainers: stdlib only, Python 3.8 syntax.
"""

from __future__ import annotations

import json
import math
from typing import Any, Dict, Type, Union, get_type_hints

from .frames import (
    DEFINITIONS,
    KINDS,
    MAX_LINE_BYTES,
    MAX_STRING_CHARS,
    NAMES,
    REQUESTS,
    Def,
    Frame,
    Request,
)

MAX_ITEMS = 16384
"""Elements of one list or object on the wire: 4096 processes with their uses, with room."""
_INT_LIMIT = 1 << 63
_KIND_OF: Dict[Type[Any], str] = {cls: kind for kind, cls in KINDS.items()}


class WireError(ValueError):
    """A line that is not a frame of this protocol. The text says what is wrong, never the line itself."""


class UnknownKind(WireError):
    """A well-formed frame of a kind this version does not know: a newer sender. Readers count and skip it."""


# ── encode ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(frame: Frame) -> bytes:
    """One frame as one line, newline included. NaN and infinities become null, lone surrogates U+FFFD.

    Raises :class:`WireError` when the line would be longer than ``MAX_LINE_BYTES``."""
    body = _plain(frame)
    if not isinstance(frame, Request):
        body = {"k": _KIND_OF[type(frame)], **body}
    try:
        text = json.dumps(body, separators=(",", ":"), allow_nan=False)
        if "\\ud" in text:  # rare: an astral character or a lone surrogate, only the latter is changed
            text = json.dumps(_mend(body), separators=(",", ":"), allow_nan=False)
    except ValueError:
        text = json.dumps(_mend(body), separators=(",", ":"), allow_nan=False)
    line = text.encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise WireError("frame of %d bytes is over the limit of %d" % (len(line), MAX_LINE_BYTES))
    return line


def _plain(frame: Any) -> Dict[str, Any]:
    """Fields in order; None, "" and empty containers are left out: the reader has them as defaults."""
    out: Dict[str, Any] = {}
    for name in NAMES[type(frame)]:
        value = getattr(frame, name)
        if value is None or value == [] or value == {} or value == "":
            continue
        out[name] = _plain(value) if type(value) in NAMES else value
    return out


def _mend(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, dict):
        return {_mend(str(k)): _mend(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mend(v) for v in value]
    return value


# ── decode ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def decode(line: bytes) -> Frame:
    """The frame in ``line`` (with or without its newline). Raises :class:`WireError` and nothing else."""
    if len(line) > MAX_LINE_BYTES:
        raise WireError("line of %d bytes is over the limit of %d" % (len(line), MAX_LINE_BYTES))
    try:
        body = json.loads(line.decode("utf-8"), parse_int=_parse_int, parse_constant=lambda _: None)
    except WireError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise WireError("not JSON: %s" % type(error).__name__) from None
    if not isinstance(body, dict):
        raise WireError("not an object")
    return from_plain(body)


def from_plain(body: Dict[str, Any]) -> Frame:
    """A frame from already parsed JSON, its types checked. Unknown fields are ignored."""
    if "r" in body and "k" not in body:
        request: Request = _build(Request, body)
        if request.r not in REQUESTS:
            raise WireError("no such request")
        return request
    kind = body.get("k")
    if not isinstance(kind, str):
        raise WireError("a frame needs a kind k")
    cls = KINDS.get(kind)
    if cls is None:
        raise UnknownKind("unknown kind of frame")
    frame: Frame = _build(cls, body)
    if isinstance(frame, Def) and sum(getattr(frame, name) is not None for name in DEFINITIONS) != 1:
        raise WireError("a definition sets exactly one kind of entity")
    return frame


def _parse_int(digits: str) -> Union[int, None]:
    if len(digits) > 20:
        raise WireError("an integer wider than 64 bits")
    value = int(digits)
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        raise WireError("an integer wider than 64 bits")
    return value


_hints: Dict[Type[Any], Dict[str, Any]] = {}


def _build(cls: Type[Any], body: Dict[str, Any]) -> Any:
    hints = _hints.get(cls)
    if hints is None:
        hints = _hints[cls] = get_type_hints(cls)
    values = {name: _checked(hints[name], body[name], name) for name in NAMES[cls] if name in body}
    try:
        return cls(**values)
    except TypeError:
        raise WireError("%s: a required field is missing" % cls.__name__) from None


def _checked(hint: Any, value: Any, where: str) -> Any:
    """``value`` if it fits the annotation, else WireError. Covers the annotations that frames use, and only those."""
    origin = getattr(hint, "__origin__", None)
    if hint is Any:
        return _bounded(value, where)
    if origin is Union:
        for option in hint.__args__:
            try:
                return _checked(option, value, where)
            except WireError:
                continue
        raise WireError("field %s has a wrong type" % where)
    if origin in (list, dict):
        if not isinstance(value, origin) or len(value) > MAX_ITEMS:
            raise WireError("field %s has a wrong type or too many elements" % where)
        if origin is list:
            return [_checked(hint.__args__[0], item, where) for item in value]
        return {_text(key, where): _checked(hint.__args__[1], item, where) for key, item in value.items()}
    if hint in NAMES:
        if not isinstance(value, dict):
            raise WireError("field %s has a wrong type" % where)
        return _build(hint, value)
    if hint is str:
        return _text(value, where)
    if hint is float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            return float(value)
    elif isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    raise WireError("field %s has a wrong type" % where)


def _text(value: Any, where: str) -> str:
    # A blob chunk is the one long string: 128 KiB as base64.
    if not isinstance(value, str) or len(value) > (180_000 if where == "data" else MAX_STRING_CHARS):
        raise WireError("field %s is not a string of at most %d characters" % (where, MAX_STRING_CHARS))
    return value


def _bounded(value: Any, where: str, depth: int = 0) -> Any:
    if depth > 8:
        raise WireError("field %s is nested too deeply" % where)
    if isinstance(value, dict):
        if len(value) > MAX_ITEMS:
            raise WireError("field %s has too many elements" % where)
        return {_text(k, where): _bounded(v, where, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        if len(value) > MAX_ITEMS:
            raise WireError("field %s has too many elements" % where)
        return [_bounded(v, where, depth + 1) for v in value]
    return _text(value, where) if isinstance(value, str) else value

