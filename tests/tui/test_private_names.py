"""Only tui/terminal uses private names of Textual, and its page lists names that exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from textual._compositor import Compositor
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from gpuscope.tui import terminal

TUI = Path(terminal.__file__).parent.parent
CLASSES = {
    one.__name__: one for one in (App, Screen, Widget, ScrollView, LinuxDriver, Strip, Compositor)
}


@cache
def assigned_in(path: str) -> frozenset[str]:
    """The private attributes that the classes of a file assign."""
    return frozenset(re.findall(r"self\.(_[a-z]\w*)\s*(?::[^=\n]+)?=[^=]", Path(path).read_text()))


@cache
def private_names(one: type) -> frozenset[str]:
    """Private attributes of a class of Textual: those it has, and those its methods assign."""
    found = {name for name in dir(one) if name.startswith("_") and not name.startswith("__")}
    files = {inspect.getfile(b) for b in one.__mro__ if b.__module__.startswith("textual")}
    return frozenset(found.union(*map(assigned_in, files)))


PRIVATE = frozenset().union(*map(private_names, CLASSES.values()))


def uses(text: str) -> Iterator[str]:
    """Yield the private names of Textual that a module uses and does not define itself."""
    if not PRIVATE.intersection(re.findall(r"(?<!self)\.(_[a-z]\w*)", text)) and (
        "textual._" not in text
    ):
        return  # nothing to parse it for
    tree = ast.parse(text)
    own = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            own.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in PRIVATE - own:
            yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("textual._"):
            yield node.module or ""


def test_only_the_terminal_folder_uses_private_names_of_textual():
    found = {
        str(path.relative_to(TUI)): names
        for path in TUI.rglob("*.py")
        if path.parent.name != "terminal" and (names := sorted(uses(path.read_text())))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    ["app.screen._compositor.render_strips()", "from textual._xterm_parser import XTermParser"],
)
def test_a_use_is_found(line):
    assert list(uses(line))


def test_each_private_name_of_the_page_exists():
    page = terminal.__doc__ or ""
    listed = re.findall(r"``([A-Z]\w+)\.(_[a-z_]+)", page)
    assert len(listed) > 10
    for owner, name in listed:
        assert name in private_names(CLASSES[owner]), f"{owner}.{name}"
    for module, name in re.findall(r"``(textual\.\w+)\.(\w+)``", page):
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
