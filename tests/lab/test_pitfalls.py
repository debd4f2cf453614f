"""The index of the pitfall scripts, its reader, and what the scripts must look like."""

from __future__ import annotations

import ast
import difflib
import re
from pathlib import Path

import pytest

from gpuscope.checked_rows import TableError
from gpuscope.lab import pitfalls
from gpuscope.lab.pitfalls import PitfallScripts

FOLDER = Path(__file__).resolve().parents[2] / "demos" / "pitfalls"
PITFALLS = {one.id: one for one in pitfalls.load()}
LONGEST = 90
"""Lines of a script: one screen and a half."""


def code(path: Path) -> str:
    """The script without its docstring, in one style."""
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), f"{path.name} does not say what it is"
    return ast.unparse(tree.body[1:])  # type: ignore[arg-type]


def test_the_scripts_are_those_of_the_index():
    named = [path for one in PITFALLS.values() for path in (one.faulty, one.cured)]
    assert sorted(named) == sorted(FOLDER.glob("*.py"))
    assert len({*named}) == len(named)


def test_the_readme_is_that_of_the_index():
    assert (FOLDER / "README.md").read_text() == pitfalls.readme([*PITFALLS.values()])


@pytest.mark.slow
@pytest.mark.parametrize("one", PITFALLS.values(), ids=PITFALLS)
def test_the_cured_script_is_the_faulty_one_with_little_changed(one: PitfallScripts):
    faulty, cured = code(one.faulty), code(one.cured)
    if faulty == cured:  # then the fault is in how it is started
        assert one.processes(False) != one.processes(True)
    changed = [
        line for line in difflib.ndiff(faulty.splitlines(), cured.splitlines()) if line[0] in "+-"
    ]
    assert len(changed) <= 22
    assert difflib.SequenceMatcher(None, faulty, cured, autojunk=False).ratio() > 0.8
    for path in (one.faulty, one.cured):
        text = path.read_text()
        assert len(text.splitlines()) <= LONGEST
        assert "gpuscope" not in text  # a user's own training
        assert not re.search(r"#(?! noqa)", text), (
            "a comment may give it away to whoever reads the code"
        )
    assert "Pitfall: " in one.faulty.read_text()
    assert "Cured: " in one.cured.read_text()


GOOD = """
[[pitfall]]
id = "a"
title = "b"
cure = "c"
faulty = "d.py"
cured = "e.py"
evidence = ["live"]
named = "num-workers"
shows_as = "figures"
expect = "f"
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("id = 'x'\n", "index.toml holds no [[pitfall]]", id="no table"),
        pytest.param("pitfall = [1]\n", "index.toml: row 1: 1 is no table", id="no table either"),
        pytest.param(
            GOOD + "gpus = yes\n",
            "index.toml cannot be read: Invalid value (at line 12, column 8)",
            id="no value",
        ),
        pytest.param(
            GOOD + "gpus = 1\ngpus = 2\n",
            "index.toml cannot be read: Cannot overwrite a value (at line 13, ",
            id="key twice",
        ),
        pytest.param(GOOD + "gpus = true\n", "index.toml: a: gpus cannot be True", id="wrong kind"),
        pytest.param(
            GOOD + "evidences = []\n", "index.toml: a: no such key: evidences", id="unknown key"
        ),
        pytest.param(
            GOOD + 'environment = ["HOME"]\n',
            "a: environment must be NAME=VALUE",
            id="no equals sign",
        ),
        pytest.param(
            GOOD.replace('"live"', '"smell"'),
            "a: evidence must be of: message",
            id="no such evidence",
        ),
        pytest.param(
            GOOD.replace('title = "b"\n', ""),
            "a: PitfallScripts.__init__() missing 1 required keyword-only argument: 'title'",
            id="key missing",
        ),
        pytest.param(GOOD + GOOD, "index.toml: there are two of a", id="same id"),
    ],
)
def test_a_damaged_index_is_named_with_the_place(text: str, message: str, tmp_path: Path):
    (tmp_path / pitfalls.INDEX).write_text(text)
    with pytest.raises(TableError, match=re.escape(message)):
        pitfalls.load(tmp_path)


def test_without_the_scripts_it_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pitfalls, "FOLDERS", (tmp_path / "one", tmp_path / "two"))
    with pytest.raises(TableError, match=re.escape(f"{tmp_path / 'one'} or {tmp_path / 'two'}")):
        pitfalls.load()
    with pytest.raises(TableError, match="cannot be read"):
        pitfalls.load(tmp_path)


def test_commands():
    one = PITFALLS["ddp-no-environment"]
    assert one.command(False, "py", ["--steps", "3"]) == ["py", str(one.faulty), "--steps", "3"]
    torchrun = ["py", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert one.command(True, "py", ["--steps", "3"]) == [*torchrun, str(one.cured), "--steps", "3"]
    assert PITFALLS["dataparallel-on-cpu"].variables() == {"CUDA_VISIBLE_DEVICES": ""}
    assert [PITFALLS["cuda-slower-than-cpu"].needs(cured) for cured in (False, True)] == [
        "1 GPU",
        "CPU",
    ]
    assert PITFALLS["wrong-backend"].needs() == "2 GPUs"
