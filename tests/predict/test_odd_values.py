"""Programs do what a prediction cannot know, and are predicted all the same.

Their shapes and branches follow from values that a prediction does not have, and they ask of torch
what tensors without memory cannot answer. The truth is what the same training really allocates on
the CPU, where it can run there.
"""

from __future__ import annotations

import importlib
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.request import CannotPredict, Request, Traced  # noqa: E402
from gpuscope.predict.tracing import steps  # noqa: E402

pytestmark = pytest.mark.slow

ODD = "tests.predict.odd_values"
BATCH = 32


class Peak(TorchDispatchMode):
    """The most bytes that real storages have at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, Any] = {}
        self.now = self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(part, torch.Tensor):
                self.hold(part.untyped_storage())
        return out

    def hold(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key not in self.live:

            def gone(_: Any) -> None:
                del self.live[key]
                self.now -= size

            self.live[key] = weakref.ref(storage, gone)
            self.now += size
            self.most = max(self.most, self.now)


def real(name: str) -> int:
    torch.manual_seed(0)
    with Peak() as peak:
        _, optimizer, forward = getattr(importlib.import_module(ODD), name)(
            batch=BATCH, device=torch.device("cpu")
        )
        peak.most = peak.now
        for _ in range(2):
            optimizer.zero_grad()
            forward().backward()
            optimizer.step()
    return peak.most


def predicted(traced: Traced) -> int:
    """Return the bytes at the peak of the steps, without the libraries' scratch memory.

    A CPU has that elsewhere.
    """
    trace = traced.trace
    first = next(mark.at for mark in trace.marks if mark.name == "step 1")
    now = most = 0
    for at, event in enumerate(trace.events):
        block = event if event >= 0 else ~event
        if trace.owner(block).category != "workspace":
            now += trace.sizes[block] if event >= 0 else -trace.sizes[block]
        most = max(most, now) if at >= first else 0
    return most


def doubts(traced: Traced) -> dict[str, float]:
    return {doubt.operation: doubt.percent for doubt in traced.doubts}


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("experts_where", "nonzero"),
        ("experts_sorted", "bincount"),
        ("experts_masked", "index"),
        ("draws", "index"),
    ],
)
def test_shapes_that_follow_from_values_are_those_of_evenly_spread_ones(
    tracer: Tracer, name: str, operation: str
) -> None:
    traced = tracer.trace(Request(f"{ODD}:{name}", batch=BATCH))
    assert 0 < doubts(traced)[operation] <= 5
    # without what CUDA takes besides
    plain = steps.trace(Request(f"{ODD}:{name}", batch=BATCH), emulate=False)
    assert predicted(plain) == pytest.approx(real(name), rel=0.1)
    assert predicted(traced) < 1.6 * predicted(plain)


def test_where_nothing_is_known_the_largest_is_taken_and_doubted_more(tracer: Tracer) -> None:
    known, unknown = (
        tracer.trace(Request(name, batch=BATCH))
        for name in (f"{ODD}:draws", "tests.predict.odd_factories:reads_values")
    )
    told = [
        next(one.text for one in found.doubts if one.operation == "index")
        for found in (known, unknown)
    ]
    assert "evenly spread" in told[0]
    assert "largest possible" in told[1]
    assert doubts(unknown)["index"] >= doubts(known)["index"] > 0  # hardly a byte has that size
    listed = doubts(tracer.trace(Request(f"{ODD}:lists_uniques", batch=BATCH)))
    assert {"unique_dim", "unique_consecutive", "bincount"} <= listed.keys()
    assert listed["unique_dim"] >= listed["bincount"] > 0


def test_programs_that_check_values_are_not_led_into_their_exceptions_nor_into_endless_loops(
    tracer: Tracer,
) -> None:
    traced = tracer.trace(Request(f"{ODD}:validates", batch=BATCH), 60)
    # of its loops, and of what it chooses by
    assert doubts(traced) == {"item": 2.0, "allclose": 2.0}


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("knows_its_device", None),
        ("experts_grouped", 0.3),
        ("from_meta", 0.2),
        ("into_samples", 0.15),
        ("parallel", 0.2),
    ],
)
def test_what_programs_ask_of_torch_is_answered(
    tracer: Tracer, name: str, near: float | None
) -> None:
    if name == "experts_grouped" and not hasattr(torch.nn.functional, "grouped_mm"):
        pytest.skip("torch is older than grouped_mm")
    traced = tracer.trace(Request(f"{ODD}:{name}", batch=BATCH), 60)
    if near is not None:
        assert predicted(traced) == pytest.approx(real(name), rel=near)


def test_flex_attention_keeps_no_scores_where_it_is_compiled(tracer: Tracer) -> None:
    eager, compiled = (
        tracer.trace(Request(f"{ODD}:{name}", batch=BATCH))
        for name in ("flex_eager", "flex_compiled")
    )
    scores = 4 * BATCH * 4 * 32 * 32
    assert predicted(eager) - predicted(compiled) == pytest.approx(7 * scores, rel=0.3)
    assert doubts(eager)["flex_attention"] > doubts(compiled)["flex_attention"] > 0


def test_states_of_optimizers_inside_another_are_states(tracer: Tracer) -> None:
    trace = tracer.trace(Request(f"{ODD}:two_optimizers", batch=BATCH)).trace
    freed = {~event for event in trace.events if event < 0}
    kept = [block for block in range(len(trace.sizes)) if block not in freed]
    states = sum(trace.sizes[block] for block in kept if trace.owner(block).category == "optimizer")
    # beside two moments at most counters of steps
    assert 0 <= states - 2 * 4 * 2 * (64 * 64 + 64) < 64


@pytest.mark.parametrize(
    ("name", "amp", "words"),
    [
        ("two_optimizers", "fp16", "param_groups"),
        ("closure", "off", "--optimizer"),
        ("lazy", "off", "LazyLinear"),
        ("nested", "off", "nested tensors"),
    ],
)
def test_what_cannot_be_predicted_is_said_with_the_way_around_it(
    tracer: Tracer, name: str, amp: str, words: str
) -> None:
    with pytest.raises(CannotPredict) as caught:
        tracer.trace(Request(f"{ODD}:{name}", batch=BATCH, amp=amp))
    assert words in " ".join(map(str, caught.value.args))
    assert caught.value.code in ("not_applicable", "no_fake_kernel")


def test_another_optimizer_stands_in_for_one_that_needs_a_closure(tracer: Tracer) -> None:
    assert (
        tracer.trace(Request(f"{ODD}:closure", batch=BATCH, optimizer="adamw")).parameters
        == 64 * 64 + 64
    )


def few(batch, device):
    """Rows are picked by a mask that holds hardly a byte."""
    return _picked(batch, device, lambda y: y[:, 0][y[:, 0] > 0])


def many(batch, device):
    """As many numbers as half of the model's output are."""
    return _picked(batch, device, lambda y: y[y > 0])


def _picked(batch, device, pick):
    model = torch.nn.Linear(64, 2048).to(device)
    x = torch.randn(batch, 64, device=device)
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda: pick(model(x)).square().mean(),
    )


def test_a_guessed_size_is_doubted_by_what_depends_on_it():
    with Tracer() as tracer:
        doubts = [
            tracer.trace(Request(f"{__name__}:{name}", batch=4099)).doubts
            for name in ("few", "many")
        ]
    small, large = (next(one for one in found if one.code == "data_dependent") for found in doubts)
    assert 0 < small.percent < 1 < large.percent
