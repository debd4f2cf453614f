"""The quick tests, those of ``make test``, leave out no package and no verb.

What they touch is read from their source, without the tests that a mark leaves out: which of their
imports they use, and with which words they start the program. Help is no start: who asks for it
does so in a loop over all verbs.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TypeGuard

import pytest

from gpuscope.cli.main import VERBS
from tests.fakes.collecting import collector_off

pytestmark = pytest.mark.slow  # make check runs it

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("pytest.mark.slow", "pytest.mark.gpu", "pytest.mark.bench")
STARTERS = {"main", "program"}
"""What tests call to start a verb: the program's own function, and tests.fakes.program."""
PACKAGES = sorted(
    ".".join(path.parent.relative_to(ROOT).parts)
    for path in (ROOT / "gpuscope").rglob("__init__.py")
)


def is_left_out(marks: list[ast.expr], names: dict[str, str]) -> bool:
    """Tell whether one of these marks keeps a test out of the quick ones.

    A mark is written out, or stands under a name of the module.
    """
    written = [ast.unparse(mark) for mark in marks]
    return any(names.get(one, one).startswith(LEFT_OUT) for one in written)


def is_helper(statement: ast.stmt) -> TypeGuard[ast.FunctionDef]:
    """Tell whether a statement is a function that a test calls or asks for.

    A fixture that all tests have is asked for by none.
    """
    return (
        isinstance(statement, ast.FunctionDef)
        and not statement.name.startswith("test_")
        and not any("autouse" in ast.unparse(one) for one in statement.decorator_list)
    )


def names_in(nodes: list[ast.AST]) -> set[str]:
    """Return every name that is read, asked for as an argument or written as a text.

    ``usefixtures`` writes such texts.
    """
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    return (
        read
        | {node.arg for node in nodes if isinstance(node, ast.arg)}
        | set(filter(None, map(text_of, nodes)))
    )


def quick_part(source: str) -> list[ast.AST]:
    """All that stands in a file of tests but for its slow tests; nothing where no test stays."""
    body = ast.parse(source).body
    names = {
        one.targets[0].id: one.value
        for one in body
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
    }
    written = {name: ast.unparse(value) for name, value in names.items()}
    of_file = names.get("pytestmark", ast.List([]))
    if is_left_out(of_file.elts if isinstance(of_file, ast.List) else [of_file], written):
        return []
    tests = [
        one
        for one in body
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef)) and one.name.startswith("test_")
    ]
    slow = [test for test in tests if is_left_out(test.decorator_list, written)]
    stays = [one for one in body if one not in slow] if len(slow) < len(tests) else []
    parts = {one: list(ast.walk(one)) for one in stays}
    names_of = {one: names_in(nodes) for one, nodes in parts.items()}
    while unused := [
        one
        for one in parts
        if is_helper(one) and not any(one.name in names_of[other] for other in parts)
    ]:
        for one in unused:
            del parts[one]
    return [node for nodes in parts.values() for node in nodes]


def called(node: ast.Call) -> str:
    """The name of what is called, without what it belongs to."""
    return getattr(node.func, "id", "") or getattr(node.func, "attr", "")


def modules_used(nodes: list[ast.AST]) -> Iterator[str]:
    """What these import and use."""
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (
                one.name for one in node.names if (one.asname or one.name).split(".")[0] in used
            )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for one in node.names:
                if (one.asname or one.name) in used:
                    yield from (str(node.module), f"{node.module}.{one.name}")


def text_of(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def starts_the_program(node: ast.AST) -> bool:
    return text_of(node) == "gpuscope" or (isinstance(node, ast.Call) and called(node) in STARTERS)


def verbs_started(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the verbs that a test starts.

    A verb is the word behind "gpuscope" in a command, the first one given to a starter or to a
    function that calls one, or the verb whose ``main`` a program for another process imports.
    """
    functions = [
        node
        for node in nodes
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("test_")
    ]
    starters = STARTERS | {
        one.name for one in functions if any(map(starts_the_program, ast.walk(one)))
    }
    for node in nodes:
        yield from re.findall(
            r"from gpuscope\.cli\.commands\.(\w+) import main", text_of(node) or ""
        )
        if isinstance(node, (ast.List, ast.Tuple)):
            texts = map(text_of, node.elts)
            yield from (
                after for before, after in pairwise(texts) if before == "gpuscope" and after
            )
        elif isinstance(node, ast.Call) and called(node) in starters:
            given = [
                one
                for first in node.args
                for one in (first.elts if isinstance(first, ast.List) else [first])
            ]
            yield from list(filter(None, map(text_of, given)))[:1]


@cache
@collector_off()
def touched() -> tuple[set[str], set[str]]:
    """The modules and the verbs of all quick tests."""
    modules, verbs = set(), set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = quick_part(path.read_text())
        modules.update(modules_used(nodes))
        verbs.update(verbs_started(nodes))
    return modules, verbs


def test_every_verb_is_started_by_a_quick_test():
    _, verbs = touched()
    assert set(VERBS) - verbs == set()


def test_every_package_is_used_by_a_quick_test():
    """A verb's package is used by who starts the verb."""
    modules, verbs = touched()
    used = modules | {f"gpuscope.cli.commands.{verb}" for verb in verbs}
    rooms = used | {module.rpartition(".")[0] for module in used}
    assert set(PACKAGES) - rooms == set()


@pytest.mark.parametrize(
    ("source", "imports", "starts"),
    [
        ("from a.b import c\ndef test_x(): c()", {"a.b", "a.b.c"}, set()),
        ("from a.b import c\ndef test_x(): pass", set(), set()),
        (
            "from a.b import c\n@pytest.mark.slow\ndef test_x(): c()\ndef test_y(): pass",
            set(),
            set(),
        ),
        ("from a.b import c\npytestmark = [pytest.mark.slow]\ndef test_x(): c()", set(), set()),
        (
            "from a.b import c\ngpu = pytest.mark.gpu\n@gpu\ndef test_x(): c()\ndef test_y(): pass",
            set(),
            set(),
        ),
        ("def test_x(): run([python, '-m', 'gpuscope', 'ps'])", set(), {"ps"}),
        (
            "def f(): run(['gpuscope', 'ps'])\n@pytest.mark.slow\ndef test_x(f): f\n"
            "def test_y(): pass",
            set(),
            set(),
        ),
        ("def test_x(): cli.main(['ps', '--json'])", set(), {"ps"}),
        ("def f(*words): run(['gpuscope', *words])\ndef test_x(): f('ps')", set(), {"ps"}),
        (
            "def f(*words): run(['gpuscope', *words])\n@pytest.mark.slow\ndef test_x(): f('ps')",
            set(),
            set(),
        ),
    ],
)
def test_what_is_left_out_touches_nothing(source, imports, starts):
    nodes = quick_part(source)
    assert set(modules_used(nodes)) == imports
    assert set(verbs_started(nodes)) == starts
