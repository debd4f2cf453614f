"""For all tests of predictions."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator

import pytest

from gpuscope.lab.launch import PYTHON_VARIABLE
from gpuscope.predict.child import Tracer
from tests.fakes.forking import forking_python


@pytest.fixture(autouse=True, scope="module")
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What traces is a fork of a process that has imported torch, once for all files."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is not None:
            patch.setenv(PYTHON_VARIABLE, forking_python(tmp_path_factory.mktemp("python")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _own_kernels() -> Iterator[None]:
    """Tracing leaves CUDA's rules for autocast in this process; other files want the CPU's own."""
    yield
    for name in ("autocast", "kernels"):
        module = sys.modules.get(f"gpuscope.predict.tracing.{name}")
        if module is not None:
            module.uninstall()


@pytest.fixture(scope="module")
def tracer() -> Iterator[Tracer]:
    """The child that traces, one for each file."""
    with Tracer() as started:
        yield started
