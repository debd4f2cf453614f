"""Makes the agent's source as small as possible, to be sent to other hosts and compiled there.

pynvml is a file of 330 KB. Only what the agent uses of it is sent, with what that needs, which is a
twelfth. Comments, docstrings and most of the indentation are removed, but every line keeps its
number. Everything is compressed in one piece, not file by file. The result is cached under a digest
of the sources.
"""

from __future__ import annotations

import ast
import hashlib
import io
import os
import re
import tokenize
import zlib
from typing import Dict, Iterator, List, Optional, Set, Tuple

from ..process import atomic_file
from . import bundle

_WORD = re.compile(r"\w+")
_ALWAYS = "NVML_ERROR_"
"""Names with this prefix are always kept, because pynvml makes a class for each of them at run
time.
"""


def zip_to_send() -> bytes:
    """Return a zip of the agent's sources, compressed as a whole with zlib.

    Equal sources make equal bytes.
    """
    contents = bundle.agent_contents()
    digest = hashlib.sha256(b"shipped 4")
    for name in sorted(contents):
        digest.update(b"%s\0%d\0" % (name.encode(), len(contents[name])))
        digest.update(contents[name])
    name = f"agent-{digest.hexdigest()[:24]}.zz"
    folder = bundle.trusted_cache_folder()
    found = _read_cached(os.path.join(folder, name)) if folder is not None else b""
    if found:
        return found
    made = _make(contents)
    if folder is not None:
        try:
            atomic_file.write(os.path.join(folder, name), made + hashlib.sha256(made).digest())
        except OSError:
            pass  # the cache is read-only or full: the zip is made again next time
    return made


def _read_cached(path: str) -> bytes:
    """Return what an earlier viewer made and cached; b"" if that cannot be trusted.

    The file must be our own, complete, and not writable by anybody else.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid() or status.st_mode & 0o022:
                return b""
            data = stream.read()
    except OSError:
        return b""
    return data[:-32] if hashlib.sha256(data[:-32]).digest() == data[-32:] else b""


def _make(contents: Dict[str, bytes]) -> bytes:
    contents = dict(contents)
    if "pynvml.py" in contents:
        using = b"\n".join(content for name, content in contents.items() if "/collect/" in name)
        contents["pynvml.py"] = only(contents["pynvml.py"].decode(), using.decode()).encode()
    contents = {
        name: bare(content) if name.endswith(".py") else content
        for name, content in contents.items()
    }
    return zlib.compress(bundle.zipped(contents, compress=False), 9)


def bare(source: bytes) -> bytes:
    """Return the same program, line by line, without comments, docstrings and annotations.

    Those of classes are kept, whose fields they are. Of the indentation, one blank is kept for each
    level.
    """
    lines = source.splitlines(keepends=True)
    # a region to replace: first line, start byte, last line, end byte, replacement
    cuts: List[Tuple[int, int, int, int, bytes]] = []
    tree = ast.parse(source)
    tokens = list(tokenize.tokenize(io.BytesIO(source).readline))
    cuts.extend(_annotations(tree, [_place(one) for one in tokens if one.string == "->"]))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            last, end = node.end_lineno or node.lineno, node.end_col_offset or 0
            cuts.append(
                (
                    node.lineno - 1,
                    node.col_offset,
                    last - 1,
                    end,
                    b'""' + b"\n" * (last - node.lineno),
                )
            )
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = _place(token)
            cuts.append((row, column, row, column + len(token.string.encode()), b""))
    for first, start, last, end, instead in sorted(cuts, reverse=True):
        lines[first : last + 1] = [
            *(lines[first][:start] + instead + lines[last][end:]).splitlines(keepends=True),
        ]
    return _indent_by_one(b"".join(line.rstrip() + b"\n" for line in lines))


def _place(token: tokenize.TokenInfo) -> Tuple[int, int]:
    """Return the line of a token, from 0 on, and the byte of it in which it begins."""
    return token.start[0] - 1, len(token.line[: token.start[1]].encode())


def _annotations(
    tree: ast.AST, arrows: List[Tuple[int, int]]
) -> Iterator[Tuple[int, int, int, int, bytes]]:
    """Yield the regions of a program that annotate arguments, results and variables with a value.

    Few go on in a next line, and are left. ``arrows`` are the places of its ``->``.
    """
    fields = {one for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for one in node.body}
    for node in ast.walk(tree):
        about: Optional[ast.expr] = None
        if isinstance(node, ast.arg):
            about = node.annotation
            begin = node.lineno - 1, node.col_offset + len(node.arg.encode())
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns:
            about = node.returns
            begin = max(one for one in arrows if one < (about.lineno - 1, about.col_offset))
        elif isinstance(node, ast.AnnAssign) and node.value and node not in fields:
            about = node.annotation
            begin = (node.target.end_lineno or 1) - 1, node.target.end_col_offset or 0
        if about is not None and about.end_lineno == begin[0] + 1:
            yield (*begin, begin[0], about.end_col_offset or 0, b"")


def _indent_by_one(source: bytes) -> bytes:
    """Return the same program with one blank for each level of indentation, line by line."""
    depth, begins = 0, True
    levels: Dict[int, int] = {}
    texts: Set[int] = set()  # lines that begin inside a string
    opened: List[int] = []
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        kind, row, last = tokenize.tok_name[token.type], token.start[0], token.end[0]
        if kind in ("INDENT", "DEDENT"):
            depth += 1 if kind == "INDENT" else -1
        elif kind == "NEWLINE":
            begins = True
        elif kind not in ("NL", "COMMENT", "ENCODING", "ENDMARKER"):
            if begins:
                levels[row], begins = depth, False
            if (
                kind == "FSTRING_START"
            ):  # from Python 3.12 on an f-string consists of several tokens
                opened.append(row)
            first = opened.pop() if kind == "FSTRING_END" else row
            texts.update(range(first + 1, last + 1))
    return b"".join(
        line if row in texts or not line.strip() else b" " * levels.get(row, 1) + line.lstrip()
        for row, line in enumerate(source.splitlines(keepends=True), 1)
    )


def only(source: str, using: str) -> str:
    """Return a module without the functions, classes and names that nothing uses.

    Those stay whose names the text ``using`` mentions, with what they mention in turn, and all
    other statements. The search compares words and not meanings, so it may keep too much but never
    too little.
    """
    lines = source.splitlines()
    named: Dict[str, List[Tuple[int, str]]] = {}
    kept: Dict[int, str] = {}
    waiting = _WORD.findall(using)
    for number, node in enumerate(ast.parse(source).body):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue  # a string that only documents
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *(one.lineno for one in decorators)])
        text = "\n".join(lines[first - 1 : node.end_lineno])
        names = _names(node)
        for name in names:
            named.setdefault(name, []).append((number, text))
        if not names or any(name.startswith(_ALWAYS) for name in names):
            kept[number] = text
            waiting += _WORD.findall(text)
    seen: Set[str] = set()
    while waiting:
        word = waiting.pop()
        if word not in seen:
            seen.add(word)
            for number, text in named.get(word, ()):
                if number not in kept:
                    kept[number] = text
                    waiting += _WORD.findall(text)
    return "\n".join(kept[number] for number in sorted(kept)) + "\n"


def _names(node: ast.stmt) -> List[str]:
    """Return the names that a statement of a module gives; empty if it does more than that."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, ast.Assign) and all(
        isinstance(target, ast.Name) for target in node.targets
    ):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
