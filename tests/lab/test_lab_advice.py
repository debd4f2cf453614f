"""Why a run ended, and the command that comes next."""

from __future__ import annotations

import pytest

from gpuscope.lab import metrics
from gpuscope.lab.advice import explain, smaller
from gpuscope.lab.config import LabConfig
from gpuscope.lab.run_statistics import Tally


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


class TrainingRefused(Exception):
    pass


def told(error: BaseException, **toggles: object) -> metrics.RunFailure:
    config = LabConfig(**toggles)  # type: ignore[arg-type]
    return explain(error, config, Tally(config), 8)


def test_what_was_refused_on_purpose_keeps_its_words() -> None:
    assert told(TrainingRefused("what", "why", "next")) == metrics.RunFailure("what", "why", "next")


@pytest.mark.parametrize(
    ("toggles", "following"),
    [
        ({"validate": "grad"}, "gpuscope lab --validate no-grad"),
        ({}, "gpuscope lab --batch 4 --accumulate 2"),
        ({"batch": 1}, "gpuscope lab --batch 1 --checkpoint"),
        ({"batch": 1, "checkpoint": True}, "gpuscope lab --amp bf16 --batch 1 --checkpoint"),
        (
            {"batch": 1, "checkpoint": True, "amp": "bf16"},
            "gpuscope lab --amp bf16 --batch 1 --checkpoint --optimizer sgd",
        ),
        (
            {
                "model": "gpt-1.3b",
                "batch": 1,
                "checkpoint": True,
                "amp": "bf16",
                "optimizer": "sgd",
            },
            "gpuscope lab --model gpt-tiny --amp bf16 --checkpoint --optimizer sgd",
        ),
        ({"model": "own:make"}, "gpuscope lab --model own:make --amp bf16"),
        (
            {"model": "own:make", "amp": "bf16"},
            "gpuscope lab --model own:make --amp bf16 --batch 4",
        ),
    ],
)
def test_out_of_memory_names_the_nearest_that_needs_less(
    toggles: dict[str, object], following: str
) -> None:
    failure = told(OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), **toggles)
    assert failure.what == "The lab ran out of memory before the first step."
    assert failure.next == following


def test_each_step_down_needs_less_and_the_way_ends() -> None:
    """Following the advice again and again visits no combination twice."""
    config, seen = LabConfig(batch=8), set()
    parser_free = {
        "--batch": "batch",
        "--accumulate": "accumulate",
        "--amp": "amp",
        "--optimizer": "optimizer",
    }
    for _ in range(20):
        words = smaller(config, 8).split()[2:]
        if "--model" in words:
            return
        values: dict[str, object] = {"checkpoint": "--checkpoint" in words}
        values |= {
            parser_free[word]: words[place + 1]
            for place, word in enumerate(words)
            if word in parser_free
        }
        config = LabConfig(**values)  # type: ignore[arg-type]
        assert config not in seen
        seen.add(config)
    raise AssertionError("it goes on for ever")


@pytest.mark.parametrize(
    ("error", "toggles", "what", "following"),
    [
        (
            RuntimeError("Cannot find a working triton installation"),
            {"compile": "default", "fullgraph": True},
            "found no compiler",
            "gpuscope lab",
        ),
        (
            RuntimeError("x does not have a deterministic implementation"),
            {"deterministic": True},
            "no deterministic algorithm",
            "gpuscope lab",
        ),
        (
            RuntimeError("DataLoader worker is killed by signal: Bus error."),
            {"loader": "workers", "workers": 4},
            "shared memory",
            "--workers 0",
        ),
        (
            ValueError(""),
            {},
            "ended before the first step with ValueError",
            "--steps 10 --headless",
        ),
    ],
)
def test_other_ends_are_told_by_name(
    error: Exception, toggles: dict[str, object], what: str, following: str
) -> None:
    failure = told(error, **toggles)
    assert what in failure.what
    assert following in failure.next
    assert failure.why
