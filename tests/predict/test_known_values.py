"""What is certain is followed and not doubted.

What a program prints, stores or hands to a thread decides nothing. The truth is what the same
training really allocates on the CPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuscope.predict.child import Tracer  # noqa: E402
from gpuscope.predict.request import CannotPredict, Request, Traced  # noqa: E402
from gpuscope.predict.tracing import data_dependent, files, steps  # noqa: E402
from gpuscope.predict.tracing import known_values as tracing_known_values  # noqa: E402
from gpuscope.predict.tracing.fakes import DEVICE  # noqa: E402
from gpuscope.predict.tracing.known_values import Unsure  # noqa: E402
from gpuscope.predict.tracing.op_cache import Quick  # noqa: E402
from gpuscope.predict.tracing.recorder import Recorder  # noqa: E402
from tests.predict import known_values  # noqa: E402
from tests.predict.test_odd_values import Peak, doubts, predicted  # noqa: E402

pytestmark = pytest.mark.slow

KNOWN = "tests.predict.known_values"
BATCH = 32


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    """One child for all; its folder holds a checkpoint of the user's."""
    before, root = os.getcwd(), Path(__file__).parent.parent.parent
    folder = tmp_path_factory.mktemp("work")
    (folder / "weights.pt").write_bytes(b"the user's own")
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch, Tracer() as started:
        patch.setenv(
            "PYTHONPATH",
            os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])]),
        )
        started.start()
        os.chdir(before)
        yield started
    assert (folder / "weights.pt").read_bytes() == b"the user's own"


def traced(tracer: Tracer, name: str) -> Traced:
    return tracer.trace(Request(f"{KNOWN}:{name}", batch=BATCH), 60)


@pytest.mark.parametrize(
    "name",
    ["prints", "masked", "packed", "counts_steps", "distributions", "helped", "saves", "threads"],
)
def test_what_is_known_or_decides_nothing_is_not_doubted(tracer: Tracer, name: str) -> None:
    assert traced(tracer, name).doubts == []


@pytest.mark.parametrize("name", ["decides", "written"])
def test_what_decides_and_is_not_known_is_doubted(tracer: Tracer, name: str) -> None:
    assert doubts(traced(tracer, name)) == {"item": 2.0}


@pytest.mark.parametrize("name", ["masked", "counts_steps", "prints"])
def test_shapes_that_follow_from_known_values_are_those_of_a_real_training(name: str) -> None:
    torch.manual_seed(0)
    with Peak() as peak:
        _, optimizer, forward = getattr(known_values, name)(batch=BATCH, device=torch.device("cpu"))
        peak.most = peak.now
        for _ in range(2):
            optimizer.zero_grad()
            forward().backward()
            optimizer.step()
    plain = steps.trace(Request(f"{KNOWN}:{name}", batch=BATCH), emulate=False)
    # A mask of ones is larger than the rest: it hides nothing of that.
    hidden = 2 * 8 * 40_000 * BATCH if name == "masked" else 0
    assert predicted(plain) - hidden == pytest.approx(peak.most - hidden, rel=0.05, abs=2048)


def test_a_sparse_matrix_is_multiplied_and_what_is_not_counted_of_it_is_said(
    tracer: Tracer,
) -> None:
    found = traced(tracer, "sparse").doubts
    assert {doubt.code for doubt in found} == {"sparse"}
    assert len({doubt.text for doubt in found}) == len(found)
    assert [doubt.percent for doubt in found if doubt.upward] == [15.0]


def test_one_rank_of_several_holds_its_buckets(tracer: Tracer) -> None:
    alone, rank = (traced(tracer, name) for name in ("no_rank", "one_rank"))
    assert predicted(rank) - predicted(alone) == 4 * (64 * 64 + 64)
    assert [doubt.code for doubt in rank.doubts] == ["sharding"]


def test_a_guessed_number_is_doubted_once_it_decides() -> None:
    asked: list[str] = []
    one = Unsure.make(2.0, lambda: asked.append("doubt"))
    text = f"{one:.2f} {sum([one, one]) / 2} {-one} {round(one, 1)}"
    assert (text, asked) == ("2.00 2.0 -2.0 2.0", [])
    for decide in (
        lambda: one * 3 > 1,
        lambda: int(one),
        lambda: bool(abs(one)),
        lambda: max(one, 1.0),
    ):
        asked.clear()
        decide()
        assert asked


def test_of_a_file_of_weights_its_table_is_enough(tmp_path: Path) -> None:
    table = {
        "__metadata__": {"format": "pt"},
        "weight": {"dtype": "BF16", "shape": [4, 8], "data_offsets": [0, 64]},
        "bias": {"dtype": "F32", "shape": [8], "data_offsets": [64, 96]},
    }
    header = json.dumps(table).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with files.SafeOpen(path, "pt", device="cpu") as opened:
        assert opened.keys() == ["bias", "weight"]
        assert opened.metadata() == {"format": "pt"}
        assert opened.get_tensor("weight").dtype == torch.bfloat16
        part = opened.get_slice("weight")
        assert part[...].shape == (4, 8)
        assert part[1:, :2].shape == (3, 2)
    path.write_bytes(b"\xff" * 64)
    with pytest.raises(ValueError, match="no safetensors file"):
        files.SafeOpen(path)


# ── configurations of transformers ────────────────────────────────────────────────────────────────

SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
}
CONFIGS = [
    ({"model_type": "bert", **SMALL}, "masked-lm"),
    ({"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4}, "classification"),
    (
        {
            "model_type": "t5",
            "num_layers": 2,
            "d_model": 64,
            "d_kv": 16,
            "d_ff": 128,
            "num_heads": 4,
        },
        "seq2seq-lm",
    ),
    ({"model_type": "wav2vec2", **SMALL, "vocab_size": 40}, "ctc"),
    ({"model_type": "vit_mae", **SMALL, "decoder_num_hidden_layers": 1}, "pretraining"),
    ({"model_type": "clip"}, "contrastive"),
]


@pytest.mark.parametrize(("config", "task"), CONFIGS)
def test_a_batch_is_made_up_for_every_kind_of_model(
    tracer: Tracer, tmp_path: Path, config: dict, task: str
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(config))
    request = Request(f"hf:{tmp_path}", batch=2, task=task, sequence=None if task == "ctc" else 32)
    found = tracer.trace(request, 120)
    assert found.parameters > 0
    assert sum(doubt.percent for doubt in found.doubts) <= 4.0
    assert doubts(found).keys() <= {"item"}  # layers are left out by chance


def test_a_task_that_a_model_is_not_for_is_said_with_those_that_it_is_for(
    tracer: Tracer, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "vit", **SMALL}))
    with pytest.raises(CannotPredict, match="has no model for causal-lm") as caught:
        tracer.trace(Request(f"hf:{tmp_path}", task="causal-lm"), 120)
    assert caught.value.args[2] == "--task image-classification"


@pytest.mark.parametrize("where", ["host", "device"])
def test_a_number_that_is_written_is_known_anew_or_not_at_all(where: str) -> None:
    """Noted numbers are of a moment; those that torch computes with itself are of now."""
    place = DEVICE if where == "device" else "cpu"
    with Quick(Recorder(), {}, data_dependent.INSTEAD):
        count, ones, drawn, row = (
            torch.tensor(5, device=place),
            *(torch.ones(3, device=place) for _ in range(3)),
        )
        count.add_(1)
        assert tracing_known_values.of(count) == 6
        assert (
            tracing_known_values.of(torch.ones(40_000, dtype=torch.int64, device=place) * count)
            == 6
        )
        count.mul_(2)
        assert tracing_known_values.of(count) == 12
        ones.add_(1)
        assert tracing_known_values.of(ones) == 2
        drawn.normal_()
        row[0] = 5
        assert (
            tracing_known_values.of(drawn)
            is tracing_known_values.of(row)
            is tracing_known_values.of(row.sum())
            is None
        )
        replaced = torch.zeros((), device=place)
        replaced.copy_(torch.tensor(3.0))
        assert tracing_known_values.of(replaced) in (None, 3.0)
        setattr(count, tracing_known_values.NAME, (7, count._version - 1))
        assert tracing_known_values.of(count) == 12
        setattr(ones, tracing_known_values.NAME, (7, ones._version - 1))
        assert tracing_known_values.of(ones) is None
