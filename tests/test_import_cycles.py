"""No file imports one that imports it again, over whatever way.

Imports inside functions and imports for types count: both say that neither file can be understood,
moved or left out without the other.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # make check runs it

ROOT = Path(__file__).parent.parent

IMPORT = re.compile(
    r"^[ \t]*((?:from[ \t]+\S+[ \t]+)?import[ \t]+(?:\([^)]*\)|[^\n(]*))", re.MULTILINE
)
"""An import statement. Parsing only these takes a tenth of the time of parsing whole files."""

Graph = dict[str, set[str]]


def modules_below(package: Path) -> dict[str, Path]:
    """Every module of a package, by its name."""
    found = {}
    for path in package.rglob("*.py"):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def import_statements(text: str) -> Iterator[ast.stmt]:
    """Return the import statements of a module, at whatever depth they stand."""
    for statement in IMPORT.findall(text):
        try:
            yield from ast.parse(statement).body
        except SyntaxError:  # a line of a docstring that begins with the word
            continue


def imports_of(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules that one of them names in an import, wherever that stands."""
    parts = name.split(".")
    package = parts if path.name == "__init__.py" else parts[:-1]
    for node in import_statements(path.read_text()):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:
                inside = f"{source}.{alias.name}"
                if inside in known or source in known:
                    yield inside if inside in known else source


def graph_of(package: Path) -> Graph:
    """Each module with those it imports."""
    known = modules_below(package)
    return {name: set(imports_of(name, path, known)) - {name} for name, path in known.items()}


def reached(graph: Graph, start: str) -> set[str]:
    """What is imported by a module, by what it imports, and so on."""
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for name in graph[ahead.pop()] - seen:
            seen.add(name)
            ahead.append(name)
    return seen


def circles(graph: Graph) -> list[list[str]]:
    """Groups of modules each of which reaches all others of its group."""
    reach = {name: reached(graph, name) for name in graph}
    groups = {
        tuple(sorted(other for other in found if name in reach[other]))
        for name, found in reach.items()
        if name in found
    }
    return sorted(list(group) for group in groups)


@cache
def gpuscope() -> Graph:
    """Return the graph without the package's own ``__init__``.

    Python loads that before every other file, and it loads nothing itself.

    It has the version, which many say, and ``watch()``, which starts the probe when a training
    calls it.
    """
    graph = graph_of(ROOT / "gpuscope")
    del graph["gpuscope"]
    return {name: imported - {"gpuscope"} for name, imported in graph.items()}


def test_no_file_imports_one_that_imports_it_again():
    assert circles(gpuscope()) == []


@pytest.mark.parametrize(
    "way",
    [
        "from . import b",
        "from .b import thing",
        "from package.b import thing",
        "import package.b",
        "def later():\n    from .b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .b import thing",
        "from .b import (\n    one,\n    thing,\n)",
        '"""\nimport of nothing\n"""\nfrom . import b',
    ],
)
def test_a_circle_is_found_whichever_way_it_is_imported(tmp_path, way):
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (
        ("__init__", ""),
        ("a", way),
        ("b", "from .c import thing"),
        ("c", "from . import a"),
        ("d", way),
    ):
        (package / f"{name}.py").write_text(text + "\n")
    assert circles(graph_of(package)) == [["package.a", "package.b", "package.c"]]


def test_screens_do_not_import_each_other():
    """Screens do not import each other.

    The application opens them by :mod:`gpuscope.tui.app.navigation`; what they derive from is in
    ``widgets``.
    """
    graph = gpuscope()
    screens = {
        name
        for name in graph
        if re.fullmatch(r"gpuscope\.tui\.(?!widgets\.).*(_screen|dialogs?)", name)
    }
    importers = {(name, other) for name, found in graph.items() for other in found & screens}
    assert len(screens) > 15
    assert importers == {
        # asks from another thread
        ("gpuscope.cli.commands.attach.verb", "gpuscope.tui.hosts.ssh_dialog"),
        ("gpuscope.tui.hosts.connecting", "gpuscope.tui.hosts.ssh_dialog"),
        ("gpuscope.tui.app.launch", "gpuscope.tui.hosts.ssh_dialog"),
        ("gpuscope.tui.app.app", "gpuscope.tui.app.main_screen"),  # the one below all others
    }
