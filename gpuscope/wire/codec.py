"""Encode frames for everybody, and decode them for agents and probes, with the standard library.

The viewer decodes with ``store/decode.py`` instead. ``decode`` is safe for hostile input: line
length, integer width, nesting and types are checked before anything is built, and the only
exception that it raises is :class:`WireError`. The module runs inside trainers, so it uses only the
standard library and the syntax of Python 3.8.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, fields
from typing import Any, Callable, Dict, List, Tuple, Type, get_type_hints

from .frames import (
    DEFINITIONS,
    KINDS,
    MAX_LINE_BYTES,
    MAX_STRING_CHARS,
    NAMES,
    REQUESTS,
    Blob,
    Def,
    Frame,
    Request,
)

MAX_ITEMS = 16384
"""Limit of the elements in one list or object on the wire. It allows 4096 processes with their
uses.
"""
MAX_DEPTH = 8
"""Limit of the nesting in a free value (``Result.value``)."""
MAX_CHUNK_CHARS = 180_000
"""Limit of ``Blob.data``, the only long string: 128 KiB in base64."""
INT_LIMIT = 1 << 63
_KIND_OF: Dict[Type[Any], str] = {cls: kind for kind, cls in KINDS.items()}


class WireError(ValueError):
    """A line that is not a frame of this protocol.

    The text says what is wrong, never the line itself.
    """


# ── encode ────────────────────────────────────────────────────────────────────────────────────────


def encode(frame: Frame) -> bytes:
    """Return one frame as one line, newline included.

    NaN and infinities become null, lone surrogates U+FFFD. Raises :class:`WireError` when the
    line would be longer than ``MAX_LINE_BYTES`` or a value is not of JSON.
    """
    body = _plain(frame)
    if not isinstance(frame, Request):
        body = {"k": _KIND_OF[type(frame)], **body}
    try:
        try:
            text = json.dumps(body, separators=(",", ":"), allow_nan=False)
            # rare: the line has a character beyond U+FFFF or a lone surrogate; only the latter is
            # replaced
            if "\\ud" in text:
                text = json.dumps(_mend(body), separators=(",", ":"), allow_nan=False)
        except ValueError:
            text = json.dumps(_mend(body), separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise WireError(
            f"{type(frame).__name__} cannot be written as JSON: {type(error).__name__}"
        ) from None
    line = text.encode("ascii") + b"\n"
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"frame of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}")
    return line


def _empty_defaults(cls: Type[Any]) -> Dict[str, Any]:
    """Return the fields that are left out of a line when they are empty.

    The reader fills in the same empty default.
    """
    defaults = {
        f.name: f.default_factory() if f.default_factory is not MISSING else f.default
        for f in fields(cls)
    }
    return {
        name: default
        for name, default in defaults.items()
        if default is None or default in ("", [], {})
    }


_EMPTY_DEFAULTS: Dict[Type[Any], Dict[str, Any]] = {cls: _empty_defaults(cls) for cls in NAMES}


def _plain(frame: Any) -> Dict[str, Any]:
    """Return a frame's fields in order.

    None, "" and empty containers are left out if they are the reader's defaults.
    """
    out: Dict[str, Any] = {}
    defaults = _EMPTY_DEFAULTS[type(frame)]
    for name in NAMES[type(frame)]:
        value = getattr(frame, name)
        if name in defaults and value == defaults[name]:
            continue
        out[name] = _plain(value) if type(value) in NAMES else value
    return out


def mend_surrogates(text: str) -> str:
    """Return ``text`` without lone surrogates, so that it can be written as UTF-8.

    They become U+FFFD, and pairs become the character they mean.
    """
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _mend(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return mend_surrogates(value)
    if isinstance(value, dict):
        return {_mend(str(k)): _mend(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mend(v) for v in value]
    return value


# ── decode ────────────────────────────────────────────────────────────────────────────────────────

_ALL_DIGITS_ZERO = bytes.maketrans(b"0123456789", b"0000000000")
_LONG_NUMBER = b"0" * 19


def has_long_number(line: bytes) -> bool:
    """Whether ``line`` contains a run of at least 19 digits.

    Only such a line can contain an integer of more than 64 bits (a float may have as many digits).
    """
    return _LONG_NUMBER in line.translate(_ALL_DIGITS_ZERO)


def decode(line: bytes) -> Frame:
    """Return the frame in ``line``. Raises :class:`WireError` and nothing else.

    The line may end with a newline. Strings are cut at ``MAX_STRING_CHARS``, and lone surrogates
    become U+FFFD. Control characters are kept; code that shows text to people must clean it (see
    ``store/decode.py``).
    """
    if len(line) > MAX_LINE_BYTES:
        raise WireError(f"line of {len(line)} bytes is over the limit of {MAX_LINE_BYTES}")
    try:
        parse_int = _parse_int if has_long_number(line) else None
        body = json.loads(
            line.decode("utf-8"), parse_int=parse_int, parse_constant=_refuse_constant
        )
    except WireError:
        raise
    except (ValueError, RecursionError, MemoryError) as error:
        raise WireError(f"not JSON: {type(error).__name__}") from None
    if not isinstance(body, dict):
        raise WireError("not an object")
    return from_plain(body)


def from_plain(body: Dict[str, Any]) -> Frame:
    """Return a frame from parsed JSON, after checking its types. Unknown fields are ignored."""
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
        raise WireError("unknown kind of frame")
    frame: Frame = _build(cls, body)
    if isinstance(frame, Def):
        check_definition(frame)
    return frame


def check_definition(frame: Def) -> None:
    """Raise :class:`WireError` unless exactly one kind of entity is set."""
    if sum(getattr(frame, name) is not None for name in DEFINITIONS) != 1:
        raise WireError("a definition sets exactly one kind of entity")


def _parse_int(digits: str) -> int:
    if len(digits) > 20:
        raise WireError("an integer wider than 64 bits")
    return _int(int(digits))


def _refuse_constant(_: str) -> None:
    raise WireError("NaN and infinities are not JSON")


# A check takes a parsed value and returns it, normalised if necessary, or raises WireError. One
# check is built for each field.

_Check = Callable[[Any], Any]


def _int(value: Any) -> int:
    if type(value) is not int:
        raise WireError("not an integer")
    if not -INT_LIMIT <= value < INT_LIMIT:
        raise WireError("an integer wider than 64 bits")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise WireError("not a finite number")
    return float(value)


def _bool(value: Any) -> bool:
    if type(value) is not bool:
        raise WireError("not a boolean")
    return value


def _str(value: Any) -> str:
    if type(value) is not str:
        raise WireError("not a string")
    value = value[:MAX_STRING_CHARS]
    return value if value.isascii() else mend_surrogates(value)


def _scalar(value: Any) -> Any:
    kind = type(value)
    if kind is int:
        return _int(value)
    if kind is float:
        return _float(value)
    if kind is str:
        return _str(value)
    if kind is bool or value is None:
        return value
    raise WireError("not a number, string, boolean or null")


def _why_cell(value: Any) -> Any:
    return _str(value) if type(value) is str else _int(value)


def _any(value: Any, depth: int = 0) -> Any:
    if isinstance(value, (dict, list)):
        if depth > MAX_DEPTH or len(value) > MAX_ITEMS:
            raise WireError("nested too deeply or too many elements")
        if isinstance(value, dict):
            return {_str(k): _any(v, depth + 1) for k, v in value.items()}
        return [_any(v, depth + 1) for v in value]
    return _scalar(value)


def _chunk(value: Any) -> str:
    if type(value) is not str or len(value) > MAX_CHUNK_CHARS or not value.isascii():
        raise WireError(f"not base64 of at most {MAX_CHUNK_CHARS} characters")
    return value


def _list_of(check: _Check) -> _Check:
    def checked(value: Any) -> List[Any]:
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise WireError("not a list, or too many elements")
        return [check(item) for item in value]

    return checked


def _dict_of(check: _Check) -> _Check:
    def checked(value: Any) -> Dict[str, Any]:
        if not isinstance(value, dict) or len(value) > MAX_ITEMS:
            raise WireError("not an object, or too many elements")
        return {_str(key): check(item) for key, item in value.items()}

    return checked


def _optional(check: _Check) -> _Check:
    return lambda value: None if value is None else check(value)


def _object(cls: Type[Any]) -> _Check:
    def checked(value: Any) -> Any:
        if not isinstance(value, dict):
            raise WireError("not an object")
        return _build(cls, value)

    return checked


_PLAIN_CHECKS: Dict[Any, _Check] = {int: _int, float: _float, bool: _bool, str: _str, Any: _any}


def _check_for(hint: Any) -> _Check:
    """Return the check for an annotation.

    It supports the annotations that ``frames`` uses; any other raises at its first use.
    """
    if hint in _PLAIN_CHECKS:
        return _PLAIN_CHECKS[hint]
    if hint in NAMES:
        return _object(hint)
    origin, arguments = hint.__origin__, hint.__args__
    if origin is list:
        return _list_of(_check_for(arguments[0]))
    if origin is dict:
        return _dict_of(_check_for(arguments[1]))
    if set(arguments) == {int, str}:
        return _why_cell
    if len(arguments) == 2 and arguments[1] is type(None):
        return _optional(_check_for(arguments[0]))
    return _scalar


_checks: Dict[Type[Any], List[Tuple[str, _Check]]] = {}


def _checks_of(cls: Type[Any]) -> List[Tuple[str, _Check]]:
    hints = get_type_hints(cls)
    return [(n, _chunk if (cls, n) == (Blob, "data") else _check_for(hints[n])) for n in NAMES[cls]]


def _build(cls: Type[Any], body: Dict[str, Any]) -> Any:
    checks = _checks.get(cls)
    if checks is None:
        checks = _checks[cls] = _checks_of(cls)
    values: Dict[str, Any] = {}
    for name, check in checks:
        if name in body:
            try:
                values[name] = check(body[name])
            except WireError as error:
                raise WireError(f"{cls.__name__}.{name}: {error}") from None
    try:
        return cls(**values)
    except TypeError:
        raise WireError(f"{cls.__name__}: a required field is missing") from None
