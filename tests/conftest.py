"""For all tests and the processes they start."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

# What is imported and collected stays to the end. The collector looks at none of it, neither now
# nor, once it is frozen, while tests run: that is a sixth of their time.
gc.disable()
# Workers of pytest-xdist share few cores: threads of torch that wait for each other spin, and all
# get slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# A shell's own settings for its terminal are not those of the terminals that tests make.
os.environ["TERM"] = "xterm-256color"
for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS", "LINES"):
    os.environ.pop(name, None)
# No test reads or writes the ledger of whoever runs them; those of one process share a new one.
os.environ.setdefault(
    "GPUSCOPE_LEDGER", os.path.join(tempfile.mkdtemp(prefix="gpuscope-tests-"), "lab.sqlite")
)
# Else each worker rewrites the asserts of all test files anew, and each process that a test starts
# compiles gpuscope.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Started in the background of a shell, all that we start would ignore Ctrl-C like ourselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST = (
    "attach/test_run.py",
    "attach/test_inject.py",
    "predict/test_compiling.py",
    "e2e/test_ssh.py",
    "attach/test_enable.py",
    "doctor/test_gym_cpu.py",
    "lab/test_pitfall_scripts.py",
    "lab/test_lab_compiling.py",
    "e2e/test_ssh_password.py",
)
"""Files that take more than half a minute. They come first, so that none is begun when
all others are done: ``make test-all`` gives each worker a file at a time, in this order.
"""


# no deadline: how long an example takes says what else the machine does
settings.register_profile("all", deadline=None)
settings.register_profile("quick", max_examples=30, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    """Try fewer examples in the quick tests; ``make test-all`` tries as many as are usual.

    Nor are the constants of all modules among the examples of quick tests, or of workers: each
    would read all modules for them.
    """
    quick = "not slow" in config.option.markexpr
    settings.load_profile("quick" if quick else "all")
    if quick or hasattr(config, "workerinput"):
        providers._get_local_constants = lambda: providers._local_constants


def left_out(config: pytest.Config) -> list[str]:
    """Return the marks of tests that are left out; none where a file is named."""
    if not all(os.path.isdir(one) for one in config.args):
        return []
    return re.findall(r"not (\w+)", config.option.markexpr)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a file all of whose tests are left out by their mark.

    Each worker would import it.
    """
    marks = left_out(config)
    if collection_path.suffix != ".py" or not marks:
        return None
    mark = rf"^pytestmark = \[?\s*pytest\.mark\.({'|'.join(marks)})\b"
    return bool(re.search(mark, collection_path.read_text(encoding="utf-8"), re.M)) or None


def pytest_pycollect_makeitem(collector: pytest.Collector, obj: object) -> list[pytest.Item] | None:
    """Do not make the tests of a function that its mark leaves out: each worker would."""
    marks = getattr(obj, "pytestmark", ())
    names = {one.name for one in marks} if isinstance(marks, list) else set()
    return [] if names.intersection(left_out(collector.config)) else None


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a real GPU where torch finds none, before anything is set up for it."""
    if item.get_closest_marker("gpu") is not None:
        torch = pytest.importorskip("torch")
        if not torch.cuda.is_available():
            pytest.skip("torch finds no CUDA device")


class Turned(pytest.Dir):
    """A folder whose files are read from another place on in each worker.

    All workers read all files. Were each to begin with the first, all would compile the same ones
    at the same time; so each compiles what the others find compiled.
    """

    def collect(self) -> list[pytest.Item | pytest.Collector]:  # type: ignore[override]
        found = list(super().collect())
        worker = getattr(self.config, "workerinput", None)
        if worker is None:
            return found
        first = len(found) * int(worker["workerid"][2:]) // worker["workercount"]
        return found[first:] + found[:first]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir:
    return Turned.from_parent(parent, path=path)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    folder = config.rootpath / "tests"
    place = {folder / name: number for number, name in enumerate(LONGEST)}
    gone = [str(path) for path in place if not path.exists()]
    if gone:
        raise pytest.UsageError(
            f"tests/conftest.py: LONGEST names what is not there: {', '.join(gone)}"
        )
    # the order is the same in all workers
    items.sort(key=lambda item: (place.get(item.path, len(place)), item.path))


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()
