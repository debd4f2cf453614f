"""Predictions survive what libraries of models do, and say what they do not know.

Each case was found by predicting models of transformers, timm and torchvision. None of these
libraries is needed here: the few lines that matter are in ``library_factories``.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuscope.predict import errors  # noqa: E402
from gpuscope.predict.allocator import simulate  # noqa: E402
from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.prediction import allocated_figure  # noqa: E402
from gpuscope.predict.report import doubt_text  # noqa: E402
from gpuscope.predict.request import Doubt, Request, Traced  # noqa: E402
from gpuscope.predict.tracing import (  # noqa: E402
    data_dependent,
    value_statistics,
)
from gpuscope.predict.tracing.fakes import CALCULATED_NUMBERS, DEVICE  # noqa: E402
from gpuscope.predict.tracing.op_cache import Quick  # noqa: E402
from gpuscope.predict.tracing.recorder import Recorder  # noqa: E402
from gpuscope.predict.tracing.redirect import redirected  # noqa: E402

FACTORIES = "tests.predict.library_factories"
BATCH = 4096


def _traced(tracer: Tracer, name: str, batch: int = 32) -> Traced:
    return tracer.trace(Request(f"{FACTORIES}:{name}", batch=batch), 60)


@pytest.mark.parametrize(
    ("name", "doubted"),
    [
        ("draws_a_place", {"item"}),
        ("picks_by_tensors", set()),
        ("scales_between", set()),
        ("lists_tensors", set()),
        ("asserts", set()),
        ("third_smallest", set()),
    ],
)
def test_what_libraries_do_with_values_is_predicted(
    tracer: Tracer, name: str, doubted: set[str]
) -> None:
    assert {doubt.operation for doubt in _traced(tracer, name).doubts} == doubted


def test_a_place_that_is_drawn_is_in_the_list(tracer: Tracer) -> None:
    trace = _traced(tracer, "draws_a_place", BATCH).trace
    assert 3 * BATCH * 64 * 4 in trace.sizes  # the only entry of the list was used


def test_an_operator_of_another_library_has_its_name_and_a_size(tracer: Tracer) -> None:
    traced = _traced(tracer, "suppresses")
    doubt = next(one for one in traced.doubts if one.operation == "torchvision::nms")
    assert "largest possible" in doubt.text
    operations = {owner.operation for owner in traced.trace.owner_table}
    assert "torchvision::nms" in operations
    assert not any(name.startswith("ision") for name in operations)


def test_an_assumed_largest_size_may_be_far_too_large_but_not_too_small(tracer: Tracer) -> None:
    samples = 16 * BATCH  # so that they are more than what a GPU takes besides
    traced = _traced(tracer, "positive", samples)
    doubt = next(one for one in traced.doubts if one.operation == "index")
    found = simulate(traced.trace)
    figure = allocated_figure(found, traced.trace, traced.doubts)
    # half of the samples are chosen, so about half of what was counted for them is not there
    chosen = samples * 64 * 4 * 8
    assert figure.low < found.peak_allocated_bytes - chosen / 2
    assert figure.error_bytes < figure.less_bytes
    assert doubt.less_percent is not None
    assert f"or up to {doubt.less_percent:.0f} % less" in doubt_text(doubt)


def test_what_is_missing_downwards_is_no_error_upwards() -> None:
    doubt = Doubt("data_dependent", "", "index", 15.0, less_percent=60.0)
    assert errors.allocated_error(1000 << 20, 0.0, [doubt]) == errors.FIXED_BYTES + (150 << 20)
    below = errors.downward([doubt, Doubt("unmeasured", "", "", 5.0, upward=True)])
    assert errors.allocated_error(1000 << 20, 0.0, below) == errors.FIXED_BYTES + (600 << 20)


def test_the_bytes_of_guessed_sizes_are_counted_as_they_come_and_go() -> None:
    with Quick(Recorder(), {}, data_dependent.INSTEAD) as fakes:
        mask = torch.randn(1000, device=DEVICE) > 0
        chosen = torch.randn(1000, 50, device=DEVICE)[mask]
        more = chosen * 2
        assert fakes._guessed_now == fakes._at_most_now >= 2 * 1000 * 50 * 4
        del chosen, more
        assert fakes._guessed_now == fakes._at_most_now < 1000 * 50 * 4
        assert fakes.at_most_bytes >= 2 * 1000 * 50 * 4


def test_the_share_of_a_known_mask_is_kept_where_its_values_are_not() -> None:
    with Quick(Recorder(), {}, data_dependent.INSTEAD):
        words = torch.tensor([[7] * 30 + [1] * 70] * 8, device=DEVICE)
        width = CALCULATED_NUMBERS // 100
        mask = (words == 7)[..., None].expand(8, 100, width)
        assert mask.constant is None
        assert value_statistics.count(mask) == 8 * 30 * width


def test_a_list_of_tensors_is_known_only_if_each_of_them_is() -> None:
    with Quick(Recorder(), {}, data_dependent.INSTEAD) as fakes, redirected(fakes.doubt):
        three, unknown = torch.tensor(3), torch.randn(5).sum()
        assert torch.tensor([three, 4]).constant.tolist() == [3, 4]
        assert torch.tensor([three, unknown]).constant is None


def test_numbers_drawn_in_place_are_known_like_others() -> None:
    with Quick(Recorder(), {}, data_dependent.INSTEAD):
        row = torch.empty(100, device=DEVICE)
        assert value_statistics.of(row.uniform_(2, 4)).mean == 3
        assert value_statistics.count(row.uniform_() < 0.25) == 25
        assert value_statistics.of(row.normal_()).mean is None
        whole = torch.empty(100, dtype=torch.int64, device=DEVICE).random_(0, 10)
        assert value_statistics.count(whole == 3) == 10
        assert value_statistics.count(torch.empty(100, device=DEVICE).bernoulli_(0.3) > 0) == 30
