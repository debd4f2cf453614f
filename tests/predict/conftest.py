"""For all tests of predictions."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from gpuscope.lab.launch import PYTHON_VARIABLE
from tests.fakes.forking import forking_python


@pytest.fixture(autouse=True, scope="module")
def _forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What traces is a fork of a process that has imported torch, once for all files."""
    with pytest.MonkeyPatch.context() as patch:
        if importlib.util.find_spec("torch") is not None:
            patch.setenv(PYTHON_VARIABLE, forking_python(tmp_path_factory.mktemp("python")))
        yield
