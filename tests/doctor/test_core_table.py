"""The pitfall table: whole, of use, and the page that is made of it."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.doctor import explain, table
from gpuscope.doctor.finding import Finding
from gpuscope.doctor.report import fix_sentences
from gpuscope.doctor.steps import now_of
from gpuscope.lab import claims, pitfalls
from tests.fakes.cases import each

ROOT = Path(__file__).parent.parent.parent
ROWS = table.load()
ONE = (
    '[[pitfall]]\nid = "x"\ntitle = "t"\nsymptom = "s"\ncauses = ["c"]\nnow = "n"\n'
    'not_when = "w"\ncost = "c"\n'
)
FIX = 'sources = ["s"]\n[[pitfall.fix]]\ntitle = "f"\n'


def test_each_row_is_whole():
    for row in ROWS.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", row.id)
        assert row.fixes, row.id
        assert row.sources, row.id
        for source in row.sources:
            assert re.fullmatch(r"https://\S+", source) or source.endswith("."), source
        for text in (row.symptom, row.now, row.not_when, row.cost):
            assert text.endswith((".", "…", "”")), text
        assert len(row.title) <= 72, row.title


def test_each_fix_says_what_to_do():
    for fix in (fix for row in ROWS.values() for fix in row.fixes):
        assert fix.code or fix.environment or fix.command, fix
        assert not fix.before or fix.code, fix
        assert not fix.code or fix.code != fix.before, fix
        for code in filter(None, (fix.code, fix.before)):
            assert not code.startswith("\n"), fix
            if "emptyDir" not in code:  # that one is YAML
                ast.parse(code + "\n    ..." if code.endswith(":") else code)
        if fix.environment:
            assert re.fullmatch(r"export( [A-Z][A-Z0-9_]*=[^\s=]*)+", fix.environment), fix
        if fix.command:
            assert shlex.split(fix.command), fix


def test_a_fix_is_for_causes_of_its_row_and_each_cause_has_a_fix():
    for row in ROWS.values():
        assert {cause for fix in row.fixes for cause in fix.causes} <= set(row.causes), row.id
        assert [
            cause
            for cause in row.causes
            if not any(not one.causes or cause in one.causes for one in row.fixes)
        ] == []


def commands():
    """Every command of this program that the table names."""
    for row in ROWS.values():
        texts = [row.verify, row.now, *(fix.command for fix in row.fixes)]
        for text in texts:
            for found in re.findall(r"gpuscope [^;:,.\n]*(?:\.\w[^;:,.\n]*)*", text):
                yield pytest.param(found.strip(), id=f"{row.id}: {found.strip()}"[:60])


@each("command", [*commands()])
def test_a_command_of_ours_is_one_that_exists(command):
    verb, *words = shlex.split(command)[1:]
    assert verb in cli.VERBS
    word = words.pop(0) if words[:1] and words[0] in cli.SUBVERBS.get(verb, {}) else ""
    parser = cli.Parser(prog=command)
    import_module(cli.module_of(verb, word)).add_arguments(parser)
    args = parser.parse_args([re.sub(r"^PID$", "1", word) for word in words])
    if word == "pitfall":
        assert pitfalls.find(args.name, pitfalls.load()) is not None
    if word == "claims":
        assert words[words.index("--only") + 1] in claims.BY_ID


def test_no_examiner_names_a_pitfall_in_code():
    """Findings and abstentions are rows of data, where their pitfalls are checked."""
    named = [
        f"{path.name}:{node.lineno}"
        for folder in ("gpuscope/doctor", "gpuscope/cli/commands/doctor")
        for path in (ROOT / folder).rglob("*.py")
        if "pitfall=" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.keyword) and node.arg == "pitfall"
        if isinstance(node.value, ast.Constant)
    ]
    assert named == []


def test_the_page_is_made_of_the_table():
    current = (ROOT / explain.PAGE).read_text()
    assert current == explain.page(ROWS.values()), (
        "python -m gpuscope.doctor.table > docs/pitfalls.md"
    )


def test_the_page_has_each_row_with_its_fixes():
    page = (ROOT / explain.PAGE).read_text()
    for row in ROWS.values():
        part = page.split(f"\n## {row.id}\n", 1)[1].split("\n## ", 1)[0]
        for fix in row.fixes:
            for text in (*fix.code.splitlines(), fix.environment, fix.command):
                assert text.strip() in part


def test_the_site_has_a_page_for_each_row_with_its_fixes():
    pages = explain.site_pages(ROWS.values())
    assert pages.keys() == {"pitfalls.md", *(f"pitfalls/{name}.md" for name in ROWS)}
    for row in ROWS.values():
        assert f"](pitfalls/{row.id}.md)" in pages["pitfalls.md"]
        page = pages[f"pitfalls/{row.id}.md"]
        assert all(source in page for source in row.sources if source.startswith("https://"))
        for fix in row.fixes:
            for text in (*fix.code.splitlines(), fix.environment, fix.command):
                assert text.strip() in page


@pytest.fixture
def other(tmp_path, monkeypatch):
    """Puts another table in place of ours."""

    def put(text: str | bytes) -> None:
        path = tmp_path / "pitfalls.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        monkeypatch.setattr(table, "FILE", path)
        table.load.cache_clear()

    yield put
    monkeypatch.undo()
    table.load.cache_clear()


def test_a_table_is_read(other):
    other(ONE + FIX + "now = true\ncode = '''\na\nb'''\n")
    (row,) = table.load().values()
    assert (row.id, row.causes, row.verify) == ("x", ("c",), "")
    assert [(fix.title, fix.code, fix.now) for fix in row.fixes] == [("f", "a\nb", True)]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (b"\xff", "cannot be read"),
        ("[[pitfall]", "cannot be read"),
        ("pitfall = 1", "no [[pitfall]]"),
        ("pitfall = [1]", "row 1: 1 is no table"),
        (ONE + 'surprise = "x"\n' + FIX, "x: no such key: surprise"),
        (ONE + FIX + 'now = "yes"\n', "x: now cannot be 'yes'"),
        (ONE + FIX + 'cost = ""\n', "x: cost cannot be ''"),
        (ONE.replace('["c"]', "[1]") + FIX, "x: causes takes strings"),
        ('[[pitfall]]\nid = "x"\n' + FIX, "x: "),
        ((ONE + FIX) * 2, "two of x"),
    ],
)
def test_a_table_that_is_not_as_it_should_be_is_named(other, text, says):
    other(text)
    with pytest.raises(table.TableError, match=re.escape(says)):
        table.load()


def test_numbers_in_code_of_the_table_are_told_to_be_examples_and_those_of_the_script_are_not():
    rows = table.load()
    marked = {row.id for row in rows.values() for fix in row.fixes if fix.example}
    assert {"num-workers", "reduce-batch-size", "own-code-in-loop"} <= marked
    plain = rows["cudnn-benchmark-on"].fixes[0]
    assert not plain.example, "no number stands in its code"
    for row in rows.values():
        for fix in row.fixes:
            said = "The numbers in this code are examples." in fix_sentences(fix)
            assert said is fix.example, fix


def test_what_helps_now_is_a_sentence_and_names_the_process_of_the_finding():
    row = table.load()["own-code-in-loop"]
    found = Finding(
        pitfall=row.id,
        cause="live.other_code",
        title="t",
        severity="info",
        confidence="likely",
        evidence=(),
        where="rank 0, pid 4711",
    )
    told = now_of(found, row)
    assert told.startswith("The training has to be restarted for this. ")
    assert told.endswith("gpuscope why 4711.")
    assert now_of(replace(found, where="train.py"), row) == row.now
    assert not any(one.now.startswith("Needs ") for one in table.load().values())
