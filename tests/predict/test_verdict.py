"""Verdicts know what convolutions can do without.

They are over a trace whose peak is the scratch memory of a convolution.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.predict.answer import Card, TracedRequest
from gpuscope.predict.document import document
from gpuscope.predict.report import headline
from gpuscope.predict.request import Request, Traced
from gpuscope.predict.verdict import Replay, decide
from tests.predict.hand_made import MIB, Writer

HELD, SCRATCH = 4000 * MIB, 2000 * MIB
OUTSIDE = (631 + 615) * MIB


def scratch(operation: str) -> Any:
    """Traces a step that holds 4000 MiB and takes 2000 more for a moment, for ``operation``."""

    def tracer(request: Request) -> Traced:
        write = Writer()
        write.mark("step 1")
        write.mark("forward")
        held = [write.make(HELD // 4, "activation", "body", "convolution") for _ in range(4)]
        write.drop(write.make(SCRATCH, "workspace", "body", operation))
        for block in held:
            write.drop(block)
        write.mark("end")
        return Traced(write.trace, request.batch or 1, 1, "2.11.0")

    return tracer


def judged(mib: int, tmp_path: Any, operation: str = "cudnn_convolution") -> TracedRequest:
    """On a card that leaves torch ``mib`` MiB."""
    card = Card("h200", "h200", mib * MIB + OUTSIDE, "9.0")
    return TracedRequest(
        Request("hand", batch=1), scratch(operation), card, cache=tmp_path / "none.json"
    )


@pytest.mark.parametrize(
    ("mib", "word"),
    [(7000, "fits"), (6000, "too_close"), (4800, "too_close"), (3500, "does_not_fit")],
)
def test_scratch_memory_of_a_convolution_may_be_refused(tmp_path, mib, word):
    assert judged(mib, tmp_path).answer.verdict.outcome == word


def test_nothing_else_may_be_refused(tmp_path):
    assert judged(4800, tmp_path, "cublas").answer.verdict.outcome == "does_not_fit"
    assert judged(7000, tmp_path, "cublas").answer.verdict.outcome == "fits"


def test_that_it_fits_only_without_scratch_memory_is_said(tmp_path):
    def told(mib: int) -> tuple[bool, bool]:
        answer = judged(mib, tmp_path).finish()
        text = " ".join(part for line in headline(answer) for part, _ in line)
        return document(answer)["without_scratch"], "less cuDNN scratch memory" in text

    assert told(4800) == (True, True)
    assert told(6000) == told(7000) == told(3500) == (False, False)


@pytest.mark.parametrize("refused", [0, 50, 100])
def test_what_fits_does_so_with_scratch_memory_and_without(refused):
    # Where less scratch memory leaves other blocks behind, and a replay runs into the limit,
    # nothing is certain.
    limit, error = 1000 * MIB, 100 * MIB

    def fits(at: int) -> Replay:
        return Replay(True, 1)

    def without(at: int) -> Replay:
        return Replay(at != limit - refused * MIB, 1)

    def word(without_scratch: Any) -> str:
        return decide(fits, limit, 2 * limit, limit, error, without_scratch=without_scratch).outcome

    assert word(fits) == word(None) == "fits"
    assert word(without) == "too_close"


def test_what_is_certain_is_so_with_somewhat_more_scratch_memory_and_less():
    limit, error = 1000 * MIB, 100 * MIB

    def word(fits: bool, other: bool) -> str:
        replays = [lambda at, fits=fits: Replay(fits, 1) for fits in (fits, other)]
        return decide(replays[0], limit, 2 * limit, limit, error, varied=replays[1:]).outcome

    assert word(True, True) == "fits"
    assert word(True, False) == word(False, True) == "too_close"
    assert word(False, False) == "does_not_fit"


@pytest.mark.parametrize(
    ("operation", "segment"), [("cudnn_convolution", 1032 * MIB), ("cublas", 0)]
)
def test_scratch_memory_that_just_fits_into_what_is_cached_may_need_a_segment_of_its_own(
    tmp_path, operation, segment
):
    """1000 MiB are freed and taken again: 3 % more find no room there."""

    def tracer(request: Request) -> Traced:
        write = Writer()
        write.mark("step 1")
        write.mark("forward")
        for size, operator in ((1000 * MIB, "add"), (1000 * MIB, operation)):
            write.drop(write.make(size, "workspace", "body", operator))
        write.mark("end")
        return Traced(write.trace, request.batch or 1, 1, "2.11.0")

    card = Card("h200", "h200", 9000 * MIB, "9.0")
    found = TracedRequest(
        Request("hand", batch=1), tracer, card, cache=tmp_path / "none.json"
    ).answer.prediction
    assert found.reserved.bytes == 1000 * MIB
    above = found.reserved.error_bytes - found.reserved.less_bytes
    assert above == pytest.approx(segment, abs=2 * MIB)
    assert found.allocated.error_bytes == found.allocated.less_bytes
    assert found.reserved.error_percent == round(100 * found.reserved.error_bytes / (1000 * MIB), 2)
