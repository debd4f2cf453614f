"""What cuDNN really took for convolutions of random shapes on an H200, against the rules (``truth_kernels.py``)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from bench.predict.fit_convolutions import DIRECTIONS, measured, near, shape_of  # noqa: E402
from gpuscope.predict.tracing.convolution_choices import TREES  # noqa: E402  # needs torch
from gpuscope.predict.tracing.convolution_scratch import scratch_bytes, tree  # noqa: E402
from gpuscope.predict.tracing.convolution_sizes import FEATURES, SIZES, Shape  # noqa: E402

DATA = Path(__file__).parent.parent / "data"


@pytest.fixture(autouse=True)
def tf32_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """``shape_of`` sets it as the row has it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)


def rows(name):
    return [json.loads(line) for line in gzip.decompress((DATA / name).read_bytes()).splitlines()]


def test_most_scratch_memory_is_as_it_was_measured():
    """Shapes of all kinds, most of which no model has. The choices are not published, and the error bar knows it."""
    table = rows("convolutions-h200.jsonl.gz")
    right = dict.fromkeys(DIRECTIONS, 0)
    for row in table:
        shape, real = shape_of(row), measured(row)
        for direction in DIRECTIONS:
            right[direction] += near(scratch_bytes(shape, direction), real[direction])
    assert len(table) == 7952
    shares = {name: count / len(table) for name, count in right.items()}
    assert shares["forward"] >= 0.898, shares
    assert shares["input"] >= 0.897, shares
    assert shares["weight"] >= 0.745, shares


def test_of_the_convolutions_that_models_have_more_is_as_it_was_measured():
    """Bytes by how many calls took them, in trainings of models with convolutions: what most calls took counts."""
    right: dict[str, list[bool]] = {name: [] for name in DIRECTIONS}
    for numbers, direction, taken in rows("convolutions-of-models-h200.jsonl.gz"):
        real = int(max(taken, key=taken.get))
        right[direction].append(near(scratch_bytes(Shape(**numbers), direction), real))
    assert sum(map(len, right.values())) == 2484
    shares = {name: sum(found) / len(found) for name, found in right.items()}
    assert shares["forward"] >= 0.946, shares
    assert shares["input"] >= 0.95, shares
    assert shares["weight"] >= 0.845, shares


@pytest.mark.parametrize(("each", "filters", "bytes_taken"), [(12, 32, 885312 << 10), (24, 24, 2880 << 10)])
def test_groups_are_copied_to_a_power_of_two_of_channels_and_filters(each, filters, bytes_taken):
    batch, side = (24, 96) if each == 12 else (1, 24)
    row = {"dims": 2, "batch": batch, "channels": 32 * each, "filters": 32 * filters, "side": side, "kernel": 3,
           "stride": 1, "groups": 32, "transposed": False, "last": False, "mode": "bf16"}  # fmt: skip
    assert scratch_bytes(shape_of(row), "forward") == bytes_taken


def leaves_of(found):
    if isinstance(found, str):
        return [found]
    name, threshold, less, more = found
    assert name in FEATURES
    assert threshold > 0
    return leaves_of(less) + leaves_of(more)


@pytest.mark.parametrize("key", TREES)
def test_a_tree_is_read_as_it_was_written(key):
    leaves = leaves_of(tree(*key))
    assert len(leaves) == TREES[key].count("|") + 1
    assert set(leaves) <= {"rule", *SIZES}


SHAPE = {"dims": 2, "batch": 24, "channels": 64, "filters": 768, "side": 28, "kernel": 1, "stride": 1, "groups": 1,
         "transposed": False, "last": False, "mode": "bf16"}  # fmt: skip


@pytest.mark.parametrize(
    ("shape", "bytes_taken"),
    [
        (SHAPE, 24 * 64 * 768 * 4),  # one gradient for each sample
        (SHAPE | {"mode": "tf32"}, 24 * 64 * 768 * 4),
        (SHAPE | {"channels": 96, "filters": 96, "groups": 96, "kernel": 7, "last": True}, 24 * 8 * 96 * 49 * 4),
        (SHAPE | {"channels": 3, "filters": 64, "kernel": 3, "mode": "tf32"}, 0),
        (SHAPE | {"dims": 3, "batch": 4, "channels": 16, "filters": 48, "side": 96, "kernel": 3, "stride": 2,
                  "mode": "fp32"}, 4 * 4 * (16 * 96**3 + 48 * 48**3) + 48 * 16 * 27 * 4),
    ],
)  # fmt: skip
def test_a_gradient_of_a_weight_takes_what_was_measured_for_its_kind(shape, bytes_taken):
    assert abs(scratch_bytes(shape_of(shape), "weight") - bytes_taken) < 512
