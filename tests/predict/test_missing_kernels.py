"""A model that runs without its library of kernels is predicted with a doubt."""

from __future__ import annotations

import logging

import pytest

pytest.importorskip("torch")

from gpuscope.predict.tracing import missing_kernels

SAID = (
    "`{}` is falling back to its reference PyTorch implementation because `{}` is not installed. "
    "This is correct but much slower; install `{}` for the optimized kernel."
)


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_kernels, "_found", {})


def _log(function: str, library: str) -> None:
    logger = logging.getLogger("transformers.integrations.hub_kernels")
    logger.warning(SAID.format(function, library, library))


def test_libraries_that_transformers_misses_are_named_once() -> None:
    with missing_kernels.noticed("hf:scans") as doubts:
        _log("scan", "fast_scan")
        _log("scan_again", "fast_scan")
        _log("convolve", "fast_convolution")
    assert [one.text.partition(" not ")[0] for one in doubts] == [
        "fast_scan and fast_convolution are"
    ]


def test_a_model_is_doubted_again_although_it_is_said_once_only() -> None:
    with missing_kernels.noticed("hf:scans"):
        _log("scan", "fast_scan")
    with missing_kernels.noticed("hf:scans") as doubts:
        pass
    assert len(doubts) == 1
    with missing_kernels.noticed("hf:other") as doubts:
        logging.getLogger("transformers").warning("Something else is not installed.")
    assert doubts == []


def test_nobody_listens_after_the_trace() -> None:
    before = list(logging.getLogger("transformers").handlers)
    with pytest.raises(ValueError), missing_kernels.noticed("hf:scans"):
        raise ValueError
    assert logging.getLogger("transformers").handlers == before
