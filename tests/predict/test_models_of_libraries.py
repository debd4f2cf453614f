"""Models of transformers and torchvision get a batch that they accept, or the reason why not.

Stand-ins take the place of both libraries.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from gpuscope.predict.request import CannotPredict, Request  # noqa: E402
from gpuscope.predict.tracing import (  # noqa: E402
    data_dependent,
    failures,
    steps,
    transformers_models,
)
from gpuscope.predict.tracing.fakes import DEVICE  # noqa: E402
from gpuscope.predict.tracing.op_cache import Quick  # noqa: E402
from gpuscope.predict.tracing.recorder import Recorder  # noqa: E402
from gpuscope.predict.tracing.transformers_inputs import Inputs  # noqa: E402


class Seeing(nn.Module):
    """A model of images and words, which makes one vector of four patches."""

    main_input_name = "input_ids"

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Linear(3 * 14 * 14, 32, device=DEVICE)

    def get_image_features(self, pixel_values: Any, image_grid_thw: Any) -> Any:
        return SimpleNamespace(pooler_output=[self.see(pixel_values)[::4]])

    def forward(
        self, input_ids: Any, pixel_values: Any, image_grid_thw: Any, mm_token_type_ids: Any
    ) -> Any:
        raise AssertionError


def test_a_model_is_asked_how_many_tokens_an_image_becomes() -> None:
    vision = SimpleNamespace(patch_size=14, spatial_merge_size=2, image_size=56, num_channels=3)
    config = SimpleNamespace(
        vision_config=vision, image_token_id=9, vocab_size=20, max_position_embeddings=64
    )
    recorder = Recorder()
    with Quick(recorder, {}, data_dependent.INSTEAD):
        model = Seeing()
        request = Request("hf:x", batch=2, sequence=10)
        made = Inputs(config, model, 2, request, "image-text-to-text", DEVICE)
        inputs = made.all()
        assert inputs["pixel_values"].shape == (2 * 16, 3 * 14 * 14)
        assert inputs["image_grid_thw"].constant.tolist() == [[1, 4, 4]] * 2
        assert (inputs["input_ids"].constant == 9).sum() == 2 * 4
        assert inputs["mm_token_type_ids"].constant.sum() == 2 * 4
        assert "addmm" not in {made.operation for made in recorder._made}  # asking is not recorded
        model.see(inputs["pixel_values"])
        assert "addmm" in {made.operation for made in recorder._made}


def _transformers(monkeypatch: pytest.MonkeyPatch, build: Any) -> list[dict[str, Any]]:
    """Stand in for transformers; returns the configs that it is given."""
    seen: list[dict[str, Any]] = []

    class Config(SimpleNamespace):
        pass

    def for_model(**described: Any) -> Config:
        seen.append(described)
        return Config(**described)

    module = ModuleType("transformers")
    kind = SimpleNamespace(_model_mapping={Config: Odd}, from_config=build)
    module.__getattr__ = lambda name: kind  # type: ignore[method-assign]
    module.AutoConfig = SimpleNamespace(for_model=for_model)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", module)
    return seen


class Odd(nn.Module):
    main_input_name = "input_ids"

    def __init__(self, error: Exception):
        super().__init__()
        self.words, self.error = nn.Embedding(100, 8), error

    def forward(self, input_ids: Any, labels: Any = None) -> Any:
        raise self.error


def _write(folder: Path) -> Request:
    described = {"model_type": "odd", "vocab_size": 100, "limits": [0.0, {"__float__": "Infinity"}]}
    (folder / "config.json").write_text(json.dumps(described))
    return Request(f"hf:{folder}", batch=2, sequence=8, task="masked-lm")


def _fails(request: Request) -> CannotPredict:
    with pytest.raises(CannotPredict) as caught:
        steps.trace(request)
    return caught.value


def test_infinity_in_a_config_is_read_as_transformers_writes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = _transformers(monkeypatch, lambda config: Odd(ValueError("no")))
    _fails(_write(tmp_path))
    assert seen[0]["limits"] == [0.0, float("inf")]


def test_what_a_model_refuses_is_said_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _transformers(monkeypatch, lambda config: Odd(RuntimeError("16 channels instead of 3")))
    failure = _fails(_write(tmp_path))
    assert "does not accept the batch" in failure.args[0]
    assert "16 channels" in failure.args[1]


def test_a_model_that_cannot_generate_is_not_said_to_train(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Writes(Odd):
        def __init__(self) -> None:
            super().__init__(RuntimeError("expected scalar type Float but found BFloat16"))
            self.generation_config = SimpleNamespace()

        def generate(self, words: Any, **_: Any) -> Any:
            raise self.error

    _transformers(monkeypatch, lambda config: Writes())
    monkeypatch.setattr(sys.modules["transformers"], "StoppingCriteriaList", list, raising=False)
    request = replace(_write(tmp_path), task="causal-lm", serve="dynamic", sequence=16)
    failure = _fails(request)
    assert "cannot generate" in failure.args[0]
    assert "BFloat16" in failure.args[1]


def test_a_text_without_images_has_no_tokens_of_images() -> None:
    config = SimpleNamespace(vocab_size=20, max_position_embeddings=64)
    with Quick(Recorder(), {}, data_dependent.INSTEAD):
        request = Request("hf:x", batch=2, sequence=10)
        inputs = Inputs(config, Seeing(), 2, request, "causal-lm", DEVICE).all()
        assert inputs["mm_token_type_ids"].constant.sum() == 0


def test_a_full_gpu_is_not_blamed_on_the_batch_of_a_config(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory")
    _transformers(monkeypatch, lambda config: Odd(full))
    _model, loss, _ = transformers_models.make(_write(tmp_path), tmp_path, torch.device("cpu"))
    with pytest.raises(torch.OutOfMemoryError):
        loss()


def test_a_config_that_makes_no_model_is_told_from_a_batch_that_none_accepts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def build(config: Any) -> Any:
        raise TypeError("'NoneType' object is not subscriptable")

    _transformers(monkeypatch, build)
    assert "makes no model from this config" in _fails(_write(tmp_path)).args[0]


def test_a_library_that_is_missing_is_named_with_how_to_install_it() -> None:
    request = Request("mine:factory")
    asked = ImportError("The matcher requires it. You can install it: `pip install some-lib`.")
    plain = ModuleNotFoundError("No module named 'thing'", name="thing.part")
    for error, command in ((asked, "pip install some-lib"), (plain, "pip install thing")):
        found = failures.in_words(request, error)
        assert "needs a library" in found.args[0]
        assert found.args[2] == command


class Videos(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv3d(3, 10, 3)

    def forward(self, inputs: Any) -> Any:
        assert inputs.shape[1] == 3, "videos have three channels"
        return self.layer(inputs).mean((2, 3, 4))


class Finds(nn.Module):
    """A detector, which computes its own losses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 10, 3)
        self.roi_heads = SimpleNamespace(mask_head=True, keypoint_head=None)

    def forward(self, images: Any, targets: Any) -> Any:
        assert {"boxes", "labels", "masks"} == targets[0].keys()
        assert len(images) == len(targets)
        return {"loss": self.layer(torch.stack(images)).mean()}


class Large(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 10, 300)

    def forward(self, images: Any) -> Any:
        return self.layer(images).mean((2, 3))


@pytest.mark.parametrize(
    ("part", "model", "refused"),
    [
        ("video", Videos, ""),
        ("detection", Finds, ""),
        ("inception", Large, "another --resolution"),
    ],
)
def test_torchvision_has_more_than_classifiers_of_images(
    monkeypatch: pytest.MonkeyPatch, part: str, model: Any, refused: str
) -> None:
    def build(**_: Any) -> Any:
        return model()

    build.__module__ = f"torchvision.models.{part}.file"
    models = ModuleType("torchvision.models")
    vars(models).update(
        list_models=lambda: ["some"],
        get_model_builder=lambda name: build,
        get_model=lambda name, **options: model(),
    )
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    request = Request("torchvision:some", batch=2, resolution=32)
    if refused:
        failure = _fails(request)
        assert "does not accept the batch" in failure.args[0]
        assert refused in failure.args[2]
    else:
        assert steps.trace(request).parameters == sum(one.numel() for one in model().parameters())


CLASSES = {
    "causal-lm": {"HeardForCausalLM"},
    "masked-lm": {"HeardForConditionalGeneration"},
    "classification": {"HeardForSequenceClassification"},
    "speech-seq2seq": {"HeardForConditionalGeneration"},
}


@pytest.mark.parametrize(
    ("architecture", "encodes", "task"),
    [
        # its decoder alone, which transformers makes for causal-lm, is another and smaller model
        ("HeardForConditionalGeneration", True, "speech-seq2seq"),
        ("HeardForCausalLM", True, "causal-lm"),
        ("HeardForSequenceClassification", True, "classification"),
        ("", True, "speech-seq2seq"),
        ("", False, "causal-lm"),
        ("SomebodysForCausalLM", True, "causal-lm"),
    ],
)
def test_the_task_is_that_of_the_architecture_in_the_config(
    architecture: str, encodes: bool, task: str
) -> None:
    config = SimpleNamespace(is_encoder_decoder=encodes)
    described = {"architectures": [architecture]} if architecture else {}
    assert transformers_models._task(config, described, CLASSES) == task


def test_a_model_with_an_encoder_is_not_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _transformers(monkeypatch, lambda config: Odd(ValueError("")))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "heard"}))
    request = Request(f"hf:{tmp_path}", serve="dynamic", sequence=64, task="speech-seq2seq")
    with pytest.raises(CannotPredict) as caught:
        transformers_models.for_generation(request, tmp_path)
    assert caught.value.what == "--serve cannot predict a heard."
    assert "speech-seq2seq" in caught.value.why
