"""Make a model and a batch from a transformers configuration.

The model is the one for a task, with a batch that is typical of that task.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..adapters import parse_lora
from ..request import TASKS, CannotPredict, Request
from . import adapters
from .failures import library
from .fakes import KNOWN_NUMBERS
from .redirect import CUDA

LENGTH = 512
PIXELS = 224
SAMPLES = 160_000
"""Ten seconds of audio at 16 kHz."""
OBJECTS = 10
"""The number of objects in an image for object detection."""
WRITTEN = 64
"""The number of tokens in the text of an audio sample, and the least number that a model with a
decoder produces.
"""
FRAMES = 16
"""The number of frames of a video."""


def make(
    request: Request, path: Path, device: torch.device = CUDA
) -> tuple[nn.Module, Callable[[], torch.Tensor], int]:
    """Return (model, loss of a micro-batch, its batch). Raises :class:`CannotPredict`."""
    config, task = _config_of(request, path)
    _complete(config, task)
    kind = getattr(library("transformers", "A transformers config"), TASKS[task])
    if request.lora:
        model = _adapted(kind.from_config(config), config, request, task)
    else:
        with device:
            model = kind.from_config(config)
    model.to(device).train()  # tensors that an old constructor made are on the host
    batch = request.batch or 8
    inputs = Inputs(config, model, batch, request, task, device).all()

    def loss() -> torch.Tensor:
        try:
            found = getattr(model(**inputs), "loss", None)
        except (ValueError, TypeError, AttributeError, AssertionError, LookupError) as error:
            shapes = {
                name: tuple(one.shape)
                for name, one in inputs.items()
                if isinstance(one, torch.Tensor)
            }
            raise CannotPredict(
                f"{type(model).__name__} does not accept the batch generated for {task}: {shapes}.",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
                "another --task, --sequence or --resolution; or MODULE:FACTORY, with a batch "
                "like your data's",
            ) from error
        if found is None:
            raise CannotPredict(
                f"{type(model).__name__} computes no loss of its own for {task}.",
                "its forward() takes no labels.",
                "give MODULE:FACTORY, whose forward() computes it",
            )
        return found.sum() if found.dim() else found

    return model, loss, batch


def for_generation(request: Request, path: Path) -> tuple[Any, nn.Module]:
    """Return (config, model) for generating text, in the config's own type.

    Raises :class:`CannotPredict` where the model has none.
    """
    config, task = _config_of(request, path)
    if task != "causal-lm":
        raise CannotPredict(
            f"A {config.model_type} does not generate text token by token.",
            f"its task is {task}.",
            "gpuscope predict without --serve    predicts its training",
        )
    transformers = library("transformers", "A transformers config")
    model = transformers.AutoModelForCausalLM.from_config(config).to(_type(config))
    if request.quantize:
        adapters.prepare(model, None, request.quantize, language=True)
    model.to(CUDA).eval()
    return config, model


def positions(config: Any) -> int:
    """Return for how many tokens a model that generates text has positions; 0: it does not say."""
    text = _text(config)
    found = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions")]
    return next((one for one in found if isinstance(one, int) and one > 0), 0)


def _config_of(request: Request, path: Path) -> tuple[Any, str]:
    """Return the configuration and the task. Raises :class:`CannotPredict`."""
    transformers = library("transformers", "A transformers config")
    file = path / "config.json" if path.is_dir() else path
    try:
        described = json.loads(file.read_text())
        config = transformers.AutoConfig.for_model(**described)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CannotPredict(
            f"{file} is not a transformers config.", why, "name the folder of a saved model"
        ) from None
    has = [
        task
        for task, name in TASKS.items()
        if type(config) in getattr(transformers, name)._model_mapping
    ]
    task = request.task or _task(described, has)
    if task not in TASKS:
        raise CannotPredict(
            f"There is no task {task!r}.", f"Known: {', '.join(TASKS)}.", "--task causal-lm"
        )
    kind = described.get("model_type")
    if task not in has:
        why = (
            f"It has: {', '.join(has)}."
            if has
            else f"transformers has none of: {', '.join(TASKS)}."
        )
        then = f"--task {has[0]}" if has else "give MODULE:FACTORY"
        raise CannotPredict(f"A {kind} has no model for {task}.", why, then)
    return config, task


def _type(config: Any) -> torch.dtype:
    """Return the type of the weights that a config names, bfloat16 if it names none."""
    named = getattr(config, "dtype", None) or getattr(config, "torch_dtype", None)
    kind = getattr(torch, named, None) if isinstance(named, str) else named
    return kind if isinstance(kind, torch.dtype) else torch.bfloat16


def _adapted(model: nn.Module, config: Any, request: Request, task: str) -> nn.Module:
    """Return the model with adapters, its other weights frozen and in the config's own type.

    It is on the host still: what quantised weights were made from is never on the device whole.
    """
    model.to(_type(config))
    language = task.endswith("-lm") or task == "image-text-to-text"
    adapters.prepare(model, parse_lora(request.lora), request.quantize, language)
    if request.checkpoint:
        # what is recomputed from inputs without gradients would have none itself
        model.enable_input_require_grads()
    return model


def _task(described: dict[str, Any], has: list[str]) -> str:
    """Return the task of the config's own architecture, else the first that the model has."""
    named = " ".join(described.get("architectures") or ())
    for task, kind in TASKS.items():
        if kind.removeprefix("AutoModel") in named:
            return task
    return "causal-lm" if "causal-lm" in has or not has else has[0]


def _complete(config: Any, task: str) -> None:
    """Set what the owner of a tokenizer would set before training.

    These are a token for padding, and one that begins an answer.
    """
    text = _text(config)
    first = _first(getattr(text, "eos_token_id", None))
    for one in (config, text):
        if task == "classification" and getattr(one, "pad_token_id", None) is None:
            one.pad_token_id = first
        if getattr(one, "is_encoder_decoder", False):
            if getattr(one, "pad_token_id", None) is None:
                one.pad_token_id = 0
            if getattr(one, "decoder_start_token_id", None) is None:
                one.decoder_start_token_id = one.pad_token_id
    if getattr(config, "architectures", None) is None:
        config.architectures = []  # if a model has two of a kind, the first one is used
    if getattr(config, "languages", None) and getattr(config, "default_language", "") is None:
        config.default_language = next(iter(config.languages))


def _first(token: Any) -> int:
    token = token[0] if isinstance(token, (list, tuple)) and token else token
    return token if isinstance(token, int) and token >= 0 else 0


def _text(config: Any) -> Any:
    """Return the part of a config that describes its text."""
    find = getattr(config, "get_text_config", None)
    return config if find is None else find()


class Inputs:
    """Makes batches for a model, from the arguments of its ``forward()``."""

    def __init__(
        self,
        config: Any,
        model: nn.Module,
        batch: int,
        request: Request,
        task: str,
        device: torch.device,
    ):
        self.config, self.model, self.batch = config, model, batch
        self.request, self.task, self.device = request, task, device
        self.text = _text(config)
        self.vision = getattr(config, "vision_config", None) or config
        self.takes = inspect.signature(model.forward).parameters

    def all(self) -> dict[str, Any]:
        """Return the arguments of ``forward()``, including labels."""
        inputs = self._main_inputs()
        labels = getattr(self, "_" + self.task.replace("-", "_"), None)
        if labels is not None:
            inputs.update(labels(inputs))
        return inputs

    # ── what goes in ──────────────────────────────────────────────────────────────────────────────

    def _main_inputs(self) -> dict[str, Any]:
        main = getattr(self.model, "main_input_name", "input_ids")
        inputs: dict[str, Any] = {}
        if main in ("pixel_values", "pixel_values_videos"):
            inputs[main] = self._images(video=main.endswith("videos"))
        elif main == "input_values":
            inputs[main] = self._sound()
        elif main == "input_features":
            inputs[main] = self._spectrum()
            if self.takes.get("attention_mask") and "input_ids" not in self.takes:
                length = inputs[main].shape[-1 if self._upright() else 1]
                inputs["attention_mask"] = torch.ones(
                    self.batch, length, dtype=torch.int64, device=self.device
                )
        else:
            inputs["input_ids"] = self._tokens()
            if "pixel_values" in self.takes and self._required("pixel_values"):
                inputs["pixel_values"] = self._images()
        if "input_ids" not in inputs and "input_ids" in self.takes and self._required("input_ids"):
            inputs["input_ids"] = self._tokens()
        if "bbox" in self.takes and "input_ids" in inputs:
            inputs["bbox"] = torch.zeros(
                (*inputs["input_ids"].shape, 4), dtype=torch.int64, device=self.device
            )
        return inputs

    def _required(self, name: str) -> bool:
        """Return whether an argument is needed.

        Models of text and images get both, though each is optional.
        """
        if self.takes[name].default is inspect.Parameter.empty:
            return True
        both = {"input_ids", "pixel_values"} <= self.takes.keys()
        return both and self.task in _OF_IMAGES_AND_WORDS

    def _numbers(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(max(1, below), shape, device=self.device)

    def _length(self) -> int:
        if self.request.sequence:
            return self.request.sequence
        places = getattr(self.config, "axial_pos_shape", None)
        if places and getattr(self.config, "axial_pos_embds", False):
            return math.prod(places)  # a reformer accepts no other length in training
        names = ("max_position_embeddings", "n_positions", "max_source_positions")
        most = [
            value
            for name in names
            if isinstance(value := getattr(self.text, name, None), int) and value > 0
        ]
        return min([*most[:1], LENGTH])

    def _words(self) -> int:
        return (
            getattr(self.text, "vocab_size", None)
            or getattr(self.config, "num_hash_buckets", None)
            or 1000
        )

    def _tokens(self) -> torch.Tensor:
        """Return whole sentences: each row ends with its last token.

        Small batches have known values, so that a program which searches them finds a token where
        it would be.
        """
        length, words = self._length(), self._words()
        end = min(_first(getattr(self.text, "eos_token_id", None)), words - 1)
        special = {end, _first(getattr(self.text, "pad_token_id", None))}
        plain = next((word for word in range(words) if word not in special), 0)
        pictures = self._picture()
        row = [*pictures, *([plain] * (length - 1)), end]
        length = len(row)
        if self.batch * length > _WRITTEN_OUT and not pictures:
            return self._numbers(words, self.batch, length)
        return torch.tensor([row] * self.batch, device=self.device)

    def _picture(self) -> list[int]:
        """Return the tokens that represent an image in a model of images and text.

        There are as many as the image has patches.
        """
        config = self.config
        token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        if not isinstance(token, int) or self.task not in _OF_IMAGES_AND_WORDS:
            return []
        count = getattr(config, "image_seq_length", None) or getattr(
            config, "mm_tokens_per_image", None
        )
        if not count:
            patch = getattr(self.vision, "patch_size", None)
            height, width = self._pixels()
            count = (height // patch) * (width // patch) if isinstance(patch, int) and patch else 0
        return [token] * count

    def _pixels(self) -> tuple[int, int]:
        size: Any = self.request.resolution
        for one in (self.config, self.vision, getattr(self.config, "backbone_config", None)):
            size = size or getattr(one, "image_size", None)
        if isinstance(size, dict):
            size = (size.get("height", PIXELS), size.get("width", PIXELS))
        if isinstance(size, (list, tuple)):
            return int(size[0]), int(size[-1])
        return (int(size), int(size)) if size else (PIXELS, PIXELS)

    def _images(self, video: bool = False) -> torch.Tensor:
        channels = (
            getattr(self.vision, "num_channels", None)
            or getattr(self.vision, "in_channels", None)
            or 3
        )
        shape: tuple[int, ...] = (self.batch, channels, *self._pixels())
        frames = getattr(self.config, "num_frames", None)
        if video or (isinstance(frames, int) and frames > 1):
            shape = (shape[0], frames or FRAMES, *shape[1:])
        return torch.randn(shape, device=self.device)

    def _sound(self) -> torch.Tensor:
        """Return audio samples, or a spectrogram if a model takes one under that name."""
        bins = getattr(self.config, "num_mel_bins", None)
        if isinstance(bins, int) and hasattr(self.config, "max_length"):
            return torch.randn(self.batch, self.config.max_length, bins, device=self.device)
        samples = torch.randn(self.batch, self.request.sequence or SAMPLES, device=self.device)
        return samples[:, None] if getattr(self.config, "audio_channels", None) else samples

    def _spectrum(self) -> torch.Tensor:
        config = self.config
        audio = (
            getattr(config, "audio_config", None)
            or getattr(config, "encoder_config", None)
            or config
        )
        names = [
            "feature_projection_input_dim",
            "num_mel_bins",
            "input_feat_per_channel",
            "input_dim",
        ]
        bins = next((found for name in names if (found := getattr(audio, name, None))), 80)
        fixed = getattr(audio, "max_source_positions", None)
        if self._upright() and fixed:
            return torch.randn(self.batch, bins, 2 * fixed, device=self.device)
        return torch.randn(
            self.batch, self.request.sequence or 2 * LENGTH, bins, device=self.device
        )

    def _upright(self) -> bool:
        """Whether a spectrogram has its bins before its frames."""
        return type(self.model).__name__.startswith(("Whisper", "Qwen2Audio", "Voxtral"))

    # ── what is to come out, by task ──────────────────────────────────────────────────────────────

    def _causal_lm(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"labels": inputs["input_ids"]} if "input_ids" in inputs else {}

    def _masked_lm(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"labels": self._numbers(self._words(), *inputs["input_ids"].shape)}

    _seq2seq_lm = _masked_lm

    def _classification(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"labels": self._numbers(self.config.num_labels, self.batch)}

    _image_classification = _audio_classification = _video_classification = _classification

    def _token_classification(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"labels": self._numbers(self.config.num_labels, *inputs["input_ids"].shape)}

    def _question_answering(self, inputs: dict[str, Any]) -> dict[str, Any]:
        length = inputs["input_ids"].shape[1]
        return {
            name: self._numbers(length, self.batch) for name in ("start_positions", "end_positions")
        }

    def _multiple_choice(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return two answers to choose from."""
        tokens = inputs["input_ids"]
        return {
            "input_ids": tokens[:, None].repeat(1, 2, 1),
            "labels": self._numbers(2, self.batch),
        }

    def _ctc(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"labels": self._numbers(self._words(), self.batch, WRITTEN)}

    def _image_text_to_text(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "input_ids" in inputs:
            return {"labels": inputs["input_ids"]}
        return self._ctc(inputs)  # an encoder of images or sound, and a decoder of words

    _speech_seq2seq = _image_text_to_text

    def _contrastive(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {"return_loss": True} if "return_loss" in self.takes else {}

    def _semantic_segmentation(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {
            "labels": self._numbers(
                self.config.num_labels, self.batch, *inputs["pixel_values"].shape[-2:]
            )
        }

    def _depth_estimation(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return {
            "labels": torch.rand(self.batch, *inputs["pixel_values"].shape[-2:], device=self.device)
        }

    def _object_detection(self, inputs: dict[str, Any]) -> dict[str, Any]:
        def objects() -> dict[str, Any]:
            classes = self._numbers(self.config.num_labels, OBJECTS)
            return {"class_labels": classes, "boxes": torch.rand(OBJECTS, 4, device=self.device)}

        return {"labels": [objects() for _ in range(self.batch)]}

    def _universal_segmentation(self, inputs: dict[str, Any]) -> dict[str, Any]:
        sides = inputs["pixel_values"].shape[-2:]
        found: dict[str, Any] = {
            "mask_labels": [
                torch.rand(OBJECTS, *sides, device=self.device) for _ in range(self.batch)
            ],
            "class_labels": [
                self._numbers(self.config.num_labels, OBJECTS) for _ in range(self.batch)
            ],
        }
        if "task_inputs" in self.takes:
            length = getattr(self.config, "task_seq_len", 77)
            texts = self.config.num_queries - getattr(self.config, "text_encoder_n_ctx", 16)
            found["task_inputs"] = self._numbers(self._words(), self.batch, length)
            found["text_inputs"] = self._numbers(self._words(), self.batch, texts, length)
        return found

    def _masked_image_modeling(self, inputs: dict[str, Any]) -> dict[str, Any]:
        side = inputs["pixel_values"].shape[-1] // getattr(self.config, "patch_size", 16)
        hidden = torch.rand(self.batch, side * side, device=self.device) < 0.5
        return {"bool_masked_pos": hidden}

    def _pretraining(self, inputs: dict[str, Any]) -> dict[str, Any]:
        if "input_ids" in inputs:
            found = self._masked_lm(inputs) if "labels" in self.takes else {}
            if "next_sentence_label" in self.takes:
                found["next_sentence_label"] = self._numbers(2, self.batch)
            if "sentence_order_label" in self.takes:
                found["sentence_order_label"] = self._numbers(2, self.batch)
            return found
        if "mask_time_indices" in self.takes and "sampled_negative_indices" in self.takes:
            samples = inputs["input_values"].shape[1]
            frames = int(self.model._get_feat_extract_output_lengths(samples))
            negatives = self._numbers(frames, self.batch, frames, self.config.num_negatives)
            hidden = torch.rand(self.batch, frames, device=self.device) < 0.5
            return {"mask_time_indices": hidden, "sampled_negative_indices": negatives}
        return {}


_OF_IMAGES_AND_WORDS = ("image-text-to-text", "contrastive")
_WRITTEN_OUT = KNOWN_NUMBERS
"""The largest number of tokens in a batch whose values are known."""
