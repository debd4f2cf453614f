"""The plugin as a project's pytest runs it: nothing at the start, then what a test asks for."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpuscope.check import watched_test
from gpuscope.check.in_tests import BadMarker, Budgets
from gpuscope.lab.launch import PYTHON_VARIABLE
from tests.check.projects import ROOT, TRAIN
from tests.fakes.forking import Forked, forking_python, script
from tests.fakes.program import python

PLUGIN = "gpuscope.check.pytest_plugin"
PEAKS = """\
import warnings
import pytest
from train import make

def test_small(gpuscope_peak):
    found = gpuscope_peak(make, max="3 GiB", batch=64)
    assert 0 < found.low < found.bytes < found.high

def test_large(gpuscope_peak):
    gpuscope_peak("train:make", max="20 MiB", batch=4096)

def test_near(gpuscope_peak):
    found = gpuscope_peak(make, batch=64)
    gpuscope_peak(make, max=found.bytes, batch=64)

def test_local(gpuscope_peak):
    with pytest.raises(TypeError, match="function of a module"):
        gpuscope_peak(lambda batch, device: None)

def test_word(gpuscope_peak):
    with pytest.raises(TypeError, match="Did you mean batch"):
        gpuscope_peak(make, bacth=8)
"""
COMPILED = """\
import pytest, torch

def run(sizes, speak=False):
    def double(x):
        if speak:
            print("hello")
        return x * 2
    call = torch.compile(double, backend="aot_eager", dynamic=False)
    for size in sizes:
        call(torch.ones(size))

@pytest.mark.gpuscope(graph_breaks=0, recompiles=0)
def test_whole():
    run([3, 3])

@pytest.mark.gpuscope(graph_breaks=0)
def test_broken():
    run([3], speak=True)

@pytest.mark.gpuscope(recompiles=1)
def test_again():
    run([3, 4, 5])

@pytest.mark.gpuscope(peak="1 GiB", leak=0, recompiles=0)
def test_memory():
    run([3])

@pytest.mark.gpuscope(syncs=0, strict=True)
def test_strict():
    pass

@pytest.mark.gpuscope(recompile=0)
def test_word():
    pass

@pytest.mark.gpuscope(graph_breaks=0)
def test_own_failure():
    run([3], speak=True)
    assert 1 == 2, "its own"
"""


def words_of(*words: str) -> list[str]:
    return ["-p", PLUGIN, "-p", "no:cacheprovider", *words]


def environ(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # this one is named, installed or not
        PYTHON_VARIABLE: forking_python(folder),
    }


def run(folder: Path, *words: str) -> str:
    """The output of pytest in a project with the plugin."""
    done = python("-m", "pytest", *words_of(*words), cwd=folder, env=environ(folder.parent))
    return done.stdout + done.stderr


def run_fork(folder: Path, *words: str) -> str:
    """The same where the project's tests import torch, which this pytest finds imported."""
    process = Forked(script("pytest", *words_of(*words)), environ(folder.parent), cwd=folder)
    try:
        out, errors = process.communicate(timeout=200)
    finally:
        process.end()
    return str(out + errors)


def test_nothing_is_loaded_until_a_test_asks(tmp_path):
    heavy = {"torch", "textual", "msgspec", "gpuscope.predict", "gpuscope.check.in_tests"}
    (tmp_path / "test_it.py").write_text(
        "import pytest, sys\n@pytest.mark.other\ndef test_it():\n"
        f"    assert not {heavy!r} & {{*sys.modules}}\n"
    )
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = other\n")
    out = run(tmp_path, "-q", "--strict-markers", "-W", "error")
    assert "1 passed" in out
    assert "@pytest.mark.gpuscope(peak=None" in run(tmp_path, "--markers")


@pytest.mark.slow
def test_a_peak_is_predicted_and_a_test_fails_with_what_holds_it(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "test_peak.py").write_text(PEAKS)
    out = run_fork(tmp_path, "-q")
    assert "1 failed, 4 passed" in out
    assert "FAILED test_peak.py::test_large" in out
    assert "train:make needs" in out
    assert "in tensors at its peak" in out
    assert "blocks.*.inner.*" in out
    assert "train.py:" in out
    assert "TooClose: too close to call" in out


@pytest.mark.slow
def test_compilations_are_counted_and_memory_without_cuda_is_skipped(tmp_path):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is CUDA")
    (tmp_path / "test_compiled.py").write_text(COMPILED)
    out = run_fork(tmp_path, "-q", "-p", "no:warnings")
    failed = {line.split("::")[1].split(" ")[0] for line in out.splitlines() if "FAILED" in line}
    assert failed == {"test_broken", "test_again", "test_strict", "test_word", "test_own_failure"}
    assert "gpuscope: 1 graph break; none may be." in out
    assert "test_compiled.py:6 in double" in out
    assert "gpuscope: 2 recompiles; 1 may be." in out
    assert "size mismatch at index 0" in out
    assert "gpuscope doctor --explain dynamic-shapes-recompile" in out
    assert "test_memory: peak, leak skipped: no CUDA" in out
    assert "syncs: not checked, because there is no GPU" in out
    assert "has no 'recompile'. Did you mean recompiles?" in out
    assert "AssertionError: its own" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [({"peek": 1}, "Did you mean peak"), ({"leak": "much"}, "a size"), ({"syncs": -1}, "whole")],
)
def test_a_wrong_marker_is_told(given, said):
    with pytest.raises(BadMarker, match=said):
        Budgets.of((), given, False)


def test_what_is_live_at_the_peak_and_at_the_end_is_read_from_a_history():
    def entry(action, addr, size):
        return {"action": action, "addr": addr, "size": size}

    history = [
        entry("alloc", 1, 10), entry("alloc", 2, 50), entry("free_requested", 2, 50),
        entry("free_completed", 2, 50), entry("alloc", 3, 20), entry("free_completed", 9, 99),
    ]  # fmt: skip
    assert set(watched_test.live_at_peak(history)) == {1, 2}
    assert set(watched_test.live_at_end(history)) == {1, 3}


def test_a_first_compilation_is_no_recompile():
    def compilation(name, reason=None):
        return SimpleNamespace(
            compile_id=name,
            recompile_reason=reason,
            co_filename="a.py",
            co_firstlineno=3,
            co_name="f",
        )

    found = watched_test.recompiles([compilation("0/0"), compilation("1/2_1", "0/0: n == 1\nmore")])
    assert found == {"a.py:3 f: 0/0: n == 1": 1}


def test_calls_that_wait_are_counted_by_line_and_other_warnings_are_passed_on():
    """torch's warning is given here by Python, as the CPU has no call that waits for a GPU."""
    modes = []
    watch = watched_test.WatchedTest(Budgets.of((), {"syncs": 1}, False))
    watch._torch = SimpleNamespace(cuda=SimpleNamespace(set_sync_debug_mode=modes.append))
    with warnings.catch_warnings(record=True) as passed_on:
        watch._begin_syncs()
        for _ in range(3):
            warnings.warn("called a synchronizing CUDA operation (Triggered …)", stacklevel=1)
        warnings.warn("its own", stacklevel=1)
        watch._end_syncs()
    assert [str(one.message) for one in passed_on] == ["its own"]
    assert modes == ["warn", "default"]
    assert "3 calls waited for the GPU; 1 may be." in watch.message()
    assert f"3 × {__file__}:" in watch.message()
