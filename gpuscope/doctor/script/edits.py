"""Build the source lines that a fix puts in place of others.

The text is edited by position, and the result is used only if it is valid Python.
"""

from __future__ import annotations

import ast
import io
import tokenize
import warnings

from .source import SourceFile

MOST_LINES, MOST_COLUMNS = 40, 300
"""A longer fix is described in words, because a fix that is cut is neither readable nor Python."""
_SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return)


def text(s: SourceFile, node: ast.AST) -> str:
    """Return the text of ``node`` in its own lines, moved to the left margin."""
    return edit(s, node)


def edit(s: SourceFile, outer: ast.AST, *changes: tuple[ast.AST, str]) -> str:
    """Return the text of ``outer`` with each of the inner nodes replaced by a new text.

    The result is "" where a node has no position in the text.
    """
    data = s.encoded
    begin, end = s.span(outer)
    if end < begin:
        return ""
    parts: list[bytes] = []
    at = begin
    for node, new in sorted(changes, key=lambda change: s.span(change[0])):
        first, last = s.span(node)
        if not at <= first <= last <= end:
            return ""
        parts += [data[at:first], new.encode("utf-8", "replace")]
        at = last
    parts.append(data[at:end])
    line = s.lines[getattr(outer, "lineno", 1) - 1]
    return _dedent(b"".join(parts).decode("utf-8", "replace"), len(line) - len(line.lstrip()))


def statement(s: SourceFile, node: ast.AST, *changes: tuple[ast.AST, str]) -> str:
    """Return the text of the statement that ``node`` belongs to, edited.

    The result is "" for a compound statement, because no line can be put before or after a part of
    it.
    """
    whole = s.statement(node)
    return edit(s, whole, *changes) if isinstance(whole, _SIMPLE) else ""


def head(s: SourceFile, loop: ast.For | ast.AsyncFor | ast.While) -> str:
    """Return the lines of a loop up to its colon, whatever its body is.

    The result is "" for a loop whose body is on the same line.
    """
    lines = s.lines[loop.lineno - 1 : loop.body[0].lineno - 1]
    indent = len(s.lines[loop.lineno - 1]) - len(s.lines[loop.lineno - 1].lstrip())
    for count in range(1, len(lines) + 1):
        found = _dedent("\n".join(lines[:count]), indent).strip()
        if _parse(found) is not None:
            return found
    return ""


def with_argument(s: SourceFile, call: ast.Call, argument: str) -> str:
    """Return the text of a call with one more argument at its end."""
    found = text(s, call)
    try:
        tokens = [
            token
            for token in tokenize.generate_tokens(io.StringIO(found).readline)
            if token.type
            not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER)
        ]
    except (tokenize.TokenError, SyntaxError):
        return ""
    if len(tokens) < 3 or tokens[-1].string != ")":
        return ""
    last = tokens[-2]
    lines = found.split("\n")
    row, column = last.end[0] - 1, last.end[1]
    between = {"(": "", ",": " "}.get(last.string, ", ")
    lines[row] = lines[row][:column] + between + argument + lines[row][column:]
    return "\n".join(lines)


def with_keyword(s: SourceFile, call: ast.Call, name: str, value: str) -> str:
    """Return the text of a call in which the keyword ``name`` has this value."""
    for item in call.keywords:
        if item.arg == name:
            return edit(s, call, (item.value, value))
    return with_argument(s, call, f"{name}={value}")


def is_usable(before: str, code: str) -> bool:
    """Return whether ``code`` can be put in place of ``before``.

    It must be valid Python, differ from ``before``, and be short enough to be shown whole.
    """
    lines = (*before.splitlines(), *code.splitlines())
    if len(lines) > MOST_LINES or any(len(line) > MOST_COLUMNS for line in lines):
        return False
    new = _parse(code)
    if new is None:
        return False
    old = _parse(before)
    return old is None or ast.dump(old) != ast.dump(new)


def _parse(code: str) -> ast.Module | None:
    """Return the syntax tree of some lines, of which the last may begin a block."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for more in ("", "\n pass", " pass"):
            try:
                return ast.parse(code + more)
            except (SyntaxError, ValueError, RecursionError, MemoryError):
                continue
    return None


def _dedent(found: str, indent: int) -> str:
    """Return the lines without the indentation of the first of them."""
    first, *rest = found.split("\n")
    return "\n".join(
        [
            first.rstrip(),
            *(line[min(indent, len(line) - len(line.lstrip())) :].rstrip() for line in rest),
        ]
    )
