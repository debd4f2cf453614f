"""The plugin of pytest: memory, compilation and synchronisation as parts of tests.

pytest imports this module at every start, in any environment. So it imports nothing but pytest, and
everything else only when a test asks for it. It runs on Python 3.8, like the probe.
"""

from __future__ import annotations

import sys
from typing import Any, Iterator

import pytest

STRICT = "gpuscope_strict"
NEEDS_PYTHON = (3, 10)
MARKER = (
    "gpuscope(peak=None, leak=None, graph_breaks=None, recompiles=None, syncs=None, strict=False): "
    "fail if the test's tensors need more memory at their peak or after it ('3 GiB'), or if there "
    "are more graph breaks, recompiles or synchronising calls. Memory and calls need CUDA."
)


def pytest_addoption(parser: Any) -> None:
    parser.addini(
        STRICT, "gpuscope: fail instead of skipping what cannot be checked here", "bool", False
    )


def pytest_configure(config: Any) -> None:
    config.addinivalue_line("markers", MARKER)


@pytest.fixture(scope="session")
def _gpuscope_tracer(request: Any) -> Iterator[Any]:
    """One child that has torch, for all predictions of a session."""
    if sys.version_info < NEEDS_PYTHON:
        pytest.skip("gpuscope: a prediction needs Python 3.10 or newer")
    from .in_tests import tracer

    with tracer(str(request.config.rootpath)) as started:
        yield started


@pytest.fixture
def gpuscope_peak(request: Any, _gpuscope_tracer: Any) -> Any:
    """Predict the peak of a training without a GPU, and fail if it needs more than ``max``."""
    from .in_tests import PeakCheck

    return PeakCheck(_gpuscope_tracer, bool(request.config.getini(STRICT)))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: Any) -> Iterator[None]:
    marker = item.get_closest_marker("gpuscope")
    if marker is None or sys.version_info < NEEDS_PYTHON:
        yield
        return
    from .in_tests import BadMarker, Budgets
    from .watched_test import WatchedTest

    try:
        budgets = Budgets.of(marker.args, marker.kwargs, bool(item.config.getini(STRICT)))
    except BadMarker as error:
        outcome = yield
        _fail(outcome, str(error))
        return
    watch = WatchedTest(budgets)
    watch.begin()
    try:
        outcome = yield
    finally:
        watch.end()
    if outcome.excinfo is not None:  # type: ignore[attr-defined]
        return  # what the test itself says comes first
    if watch.skipped:
        item.config.stash.setdefault(_SKIPPED, []).append((item.nodeid, watch.skipped))
    message = watch.message()
    if message:
        _fail(outcome, message)


def _fail(outcome: Any, message: str) -> None:
    outcome.force_exception(pytest.fail.Exception(message, pytrace=False))


_SKIPPED: Any = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    rows = config.stash.get(_SKIPPED, [])
    if rows:
        terminalreporter.section("gpuscope")
        for name, skipped in rows:
            terminalreporter.line(f"{name}: {', '.join(skipped)} skipped: no CUDA")
