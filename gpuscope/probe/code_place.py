"""Describe what a thread executes: its stack, and which of its lines is the user's own."""

from __future__ import annotations

import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional

from ..wire.code_owner import OUR_FOLDER, OWN, PACKAGE, STDLIB, TORCH, owner

MAX_FRAMES = 64
MAX_TEXT = 256
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
OURS = "ours"
_kinds: Dict[str, str] = {}


class CodePlace(NamedTuple):
    """The place in the code that a thread executes.

    ``at`` is the innermost line of the user's own code, else of a package. ``inner`` is the
    innermost line of all, "" if that is the same. ``own`` says whether any line is the user's own.
    Both lines are written as ``file:line function``.
    """

    at: str
    inner: str
    own: bool

    @property
    def words(self) -> str:
        """Return both lines, for a sentence."""
        return f"{self.at} ← {self.inner}" if self.inner else self.at


def kind(path: str) -> str:
    """Return whose file that is.

    Names that are not files (``<stdin>``, a notebook's cell) count as the user's own.
    """
    found = _kinds.get(path)
    if found is None:
        if len(_kinds) > 4096:
            _kinds.clear()
        found = _kinds[path] = _kind(path)
    return found


def _kind(path: str) -> str:
    if path.startswith(OUR_FOLDER):
        return OURS
    if path == "<string>":  # python -c
        return OWN
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    if torch and path.startswith(os.path.dirname(torch) + os.sep):
        return TORCH
    found = owner(path)
    return STDLIB if found == OWN and path.startswith(_STDLIB) else found


def line_of(frame: Any) -> int:
    """Return the line that a frame executes.

    Python 3.11 gives some instructions none, such as the jump back at the end of a loop. Then it is
    the line of the instructions before.
    """
    if frame.f_lineno is not None:
        return int(frame.f_lineno)
    code = frame.f_code
    before = [line for start, _, line in code.co_lines() if line and start <= frame.f_lasti]
    return int(before[-1] if before else code.co_firstlineno)


def rows(frame: Any, limit: int = MAX_FRAMES) -> List[List[Any]]:
    """Return ``[file, line, function]`` of each frame, innermost first, without the probe's."""
    out: List[List[Any]] = []
    while frame is not None and len(out) < limit:
        code = frame.f_code
        if kind(code.co_filename) != OURS:
            out.append([code.co_filename[-MAX_TEXT:], line_of(frame), code.co_name[:MAX_TEXT]])
        frame = frame.f_back
    return out


def place(frame: Any) -> Optional[CodePlace]:
    """Return the place in the code of ``frame``, the innermost one of a thread.

    None if all its frames are the probe's.
    """
    inner = own = package = torch = None
    while frame is not None:
        owner = kind(frame.f_code.co_filename)
        if owner != OURS:
            inner = inner or frame
            if owner == OWN:
                own = frame
                break
            if owner == PACKAGE:
                package = package or frame
            elif owner == TORCH:
                torch = torch or frame
        frame = frame.f_back
    if inner is None:
        return None
    chosen = own or package or torch or inner
    # Below torch's line there may be frames of the standard library (a queue, a selector); torch's
    # line says more.
    deepest = inner if kind(inner.f_code.co_filename) != STDLIB else (torch or package or inner)
    return CodePlace(_words(chosen), "" if deepest is chosen else _words(deepest), own is not None)


def signature(frame: Any) -> int:
    """Return a number that changes when the thread makes progress.

    It is computed from the instruction of every frame, except the innermost ones of the standard
    library, which poll while they wait.
    """
    marks: List[Any] = []
    inner = True
    while frame is not None and len(marks) < 256:
        code = frame.f_code
        inner = inner and kind(code.co_filename) in (STDLIB, OURS)
        if not inner:
            marks.append((id(code), frame.f_lasti))
        frame = frame.f_back
    return hash(tuple(marks))


def _words(frame: Any) -> str:
    code = frame.f_code
    return (
        f"{os.path.basename(code.co_filename)[-MAX_TEXT:]}:{line_of(frame)} "
        f"{code.co_name[:MAX_TEXT]}"
    )
