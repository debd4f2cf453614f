"""Check what is loaded when.

Also check what the files that run inside other people's environments may contain.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import pythons

ROOT = Path(__file__).parent.parent
PORTABLE = [
    "gpuscope/__init__.py",
    "gpuscope/errors.py",
    "gpuscope/exit_status.py",
    "gpuscope/paths.py",
    # all of the wire: recordings may be written where nothing is installed
    *(
        str(p.relative_to(ROOT))
        for room in ("wire", "text", "process", "probe", "collect", "attach", "agent")
        for p in (ROOT / "gpuscope" / room).rglob("*.py")
    ),
]


def loaded(code: str, *names: str) -> set[str]:
    """Which of ``names`` are in ``sys.modules`` of a child that ran ``code``."""
    probe = f"import sys\n{code}\nprint('LOADED', *[n for n in {names!r} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, cwd=ROOT, timeout=60
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert lines, done.stderr
    return set(lines[0].split()[1:])


def test_import_gpuscope_imports_nothing_else():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; a = {*sys.modules}; import gpuscope; print(sorted({*sys.modules} - a))",
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.strip() == "['gpuscope']"


@pytest.mark.parametrize(
    "words",
    [["--version"], ["devices", "--json"], ["ps", "--json"], ["devices", "--help"]],
    ids=" ".join,
)
def test_one_shot_verbs_load_no_heavy_package(words):
    code = f"""
from gpuscope.cli import main as cli
try:
    cli.main({words!r})
except SystemExit:
    pass
"""
    assert loaded(code, "torch", "textual", "plotext", "rich", "msgspec", "asyncio") == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("from gpuscope.cli.main import main; main(['wait', '4194301'])", "torch textual"),
        ("import gpuscope.cli.commands.lab.verb", "torch textual msgspec"),
        (
            "from gpuscope.cli.commands.doctor import live; live.examine(None, 1.0)\n"
            "from gpuscope.doctor import live, postmortem, postmortem_snapshot, postmortem_end",
            "torch textual asyncio gpuscope.tui",
        ),
        (
            "from gpuscope.doctor.messages import examine; examine(['CUDA out of memory'])",
            "torch textual rich msgspec pynvml numpy",
        ),
    ],
    ids=["wait", "lab", "doctor of trainers", "doctor of a log"],
)
def test_what_needs_no_heavy_package_loads_none(code, names):
    assert loaded(code, *names.split()) == set()


def test_the_viewer_does_not_load_torch_pynvml_or_charts_at_start():
    assert loaded("import gpuscope.tui.app.app", "torch", "pynvml", "plotext") == set()


@pytest.mark.parametrize(
    "minor",
    [  # the oldest and the newest that is released; in all tests those between, too
        minor if minor in (8, 14) else pytest.param(minor, marks=pytest.mark.slow)
        for minor in pythons.MINORS
    ],
)
def test_portable_files_load_under_every_python(minor):
    python = pythons.find_or_skip(minor)
    modules = [
        name[:-3].replace("/", ".").replace(".__init__", "")
        for name in PORTABLE
        if "__main__" not in name
    ]
    # attach/hook files are run by the interpreter, not imported from the package
    modules = [name for name in modules if "sitecustomize" not in name]
    code = f"import importlib\nfor name in {modules!r}: importlib.import_module(name)"
    done = subprocess.run(
        [python, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_portable_files_import_relatively():
    for name in PORTABLE:
        text = (ROOT / name).read_text()
        assert not re.search(r"^\s*(from|import) gpuscope\b", text, re.M), (
            f"{name} travels under another package name"
        )


def test_dangerous_builtins_stay_in_their_rooms():
    for path in (ROOT / "gpuscope").rglob("*.py"):
        text = path.read_text()
        if path.parent.name == "probe":  # writes the files that torch would write, and reads none
            assert not re.search(r"pickle\.loads?\b|Unpickler|import (marshal|shelve)", text), path
        elif path.relative_to(ROOT).as_posix() != "gpuscope/snapshot/unpickle.py":
            # its unpickler refuses every global
            assert not re.search(r"^\s*(import|from) (pickle|marshal|shelve)\b", text, re.M), path
        executes = {
            "sitecustomize.py",
            "bootstrap.py",
            "inject_payload.py",
            "inject_ptrace.py",
            "enable_files.py",
            "inductor.py",  # what torch's compiler has written, in the child that would train it
            "kernel_timing.py",  # the decorator of such a kernel, there
        }
        assert not re.search(r"(?<![.\w])(eval|exec)\(", text) or path.name in executes, path
        assert "shell=True" not in text, path


def test_no_file_has_grown_into_two():
    sizes = {
        str(p.relative_to(ROOT)): len(p.read_text().splitlines())
        for p in (ROOT / "gpuscope").rglob("*.py")
    }
    assert {name: n for name, n in sizes.items() if n > 510} == {}
