"""Make batches for a transformers model, from its config and the arguments of ``forward()``."""

from __future__ import annotations

import contextlib
import inspect
import math
from typing import Any

import torch
from torch import nn

from ..request import Request
from .fakes import KNOWN_NUMBERS

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


def first_token(token: Any) -> int:
    token = token[0] if isinstance(token, (list, tuple)) and token else token
    return token if isinstance(token, int) and token >= 0 else 0


def text_of(config: Any) -> Any:
    """Return the part of a config that describes its text."""
    find = getattr(config, "get_text_config", None)
    if find is None:
        return config
    try:
        return find()
    except ValueError:  # it has two, such as a text encoder beside a decoder
        return config


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
        self.text = text_of(config)
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
            inputs.update(self._pictures(main))
        elif main == "input_values":
            inputs[main] = self._sound()
        elif main == "input_features":
            inputs[main] = self._spectrum()
            if self.takes.get("attention_mask") and "input_ids" not in self.takes:
                length = inputs[main].shape[-1 if self._upright() else 1]
                inputs["attention_mask"] = self._ones(self.batch, length)
        else:
            if "pixel_values" in self.takes and self._required("pixel_values"):
                inputs.update(self._pictures("pixel_values"))
            inputs["input_ids"] = self._tokens(inputs)
        if "input_ids" not in inputs and "input_ids" in self.takes and self._required("input_ids"):
            inputs["input_ids"] = self._tokens(inputs)
        if "mm_token_type_ids" in self.takes and "input_ids" in inputs:
            token = self._picture_token()
            of_picture = inputs["input_ids"] == (-1 if token is None else token)
            inputs["mm_token_type_ids"] = of_picture.to(torch.int64)
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

    def _tokens(self, given: dict[str, Any]) -> torch.Tensor:
        """Return whole sentences: each row ends with its last token.

        ``given`` holds the images that come before them, if any.

        Small batches have known values, so that a program which searches them finds a token where
        it would be.
        """
        length, words = self._length(), self._words()
        end = min(first_token(getattr(self.text, "eos_token_id", None)), words - 1)
        special = {end, first_token(getattr(self.text, "pad_token_id", None))}
        plain = next((word for word in range(words) if word not in special), 0)
        pictures = self._picture(given)
        row = [*pictures, *([plain] * (length - 1)), end]
        length = len(row)
        if self.batch * length > _WRITTEN_OUT and not pictures:
            return self._numbers(words, self.batch, length)
        return torch.tensor([row] * self.batch, device=self.device)

    def _picture(self, given: dict[str, Any]) -> list[int]:
        """Return the tokens that represent an image in a model of images and text.

        There are as many as the model makes of the image, else as many as the image has patches.
        """
        config, token = self.config, self._picture_token()
        if token is None or self.task not in _OF_IMAGES_AND_WORDS:
            return []
        count = (
            self._features(given)
            or getattr(config, "image_seq_length", None)
            or getattr(config, "mm_tokens_per_image", None)
        )
        if not count:
            patch = getattr(self.vision, "patch_size", None)
            height, width = self._pixels()
            count = (height // patch) * (width // patch) if isinstance(patch, int) and patch else 0
        return [token] * count

    def _picture_token(self) -> int | None:
        config = self.config
        token = getattr(config, "image_token_id", getattr(config, "image_token_index", None))
        return token if isinstance(token, int) else None

    def _features(self, given: dict[str, Any]) -> int:
        """Return how many vectors the model makes of an image; 0 if it does not say."""
        find = getattr(self.model, "get_image_features", None)
        if find is None:
            return 0
        takes = inspect.signature(find).parameters
        mode = getattr(next(self.model.parameters()), "fake_mode", None)
        # a training does not ask, so nothing of it is recorded
        unrecorded = contextlib.nullcontext() if mode is None else mode.unrecorded()
        try:
            with torch.no_grad(), unrecorded:
                found = find(**{name: one for name, one in given.items() if name in takes})
        except Exception:  # the first step says what is wrong
            return 0
        found = getattr(found, "pooler_output", found)
        parts = found if isinstance(found, (list, tuple)) else [found]
        rows = [one.numel() // one.shape[-1] for one in parts if isinstance(one, torch.Tensor)]
        return int(sum(rows)) // self.batch

    def _pictures(self, main: str) -> dict[str, torch.Tensor]:
        """Return the images, and what says how they are cut into patches or tiles."""
        if "image_grid_thw" in self.takes:
            return self._patches("image_grid_thw", merged=True)
        if "spatial_shapes" in self.takes:
            return self._patches("spatial_shapes", merged=False)
        images = self._images(video=main.endswith("videos"))
        sizes = torch.tensor([self._pixels()] * self.batch, device=self.device)
        if "image_sizes" in self.takes and getattr(self.config, "image_grid_pinpoints", None):
            return {main: images[:, None].repeat(1, _TILES, 1, 1, 1), "image_sizes": sizes}
        if "pixel_attention_mask" in self.takes:
            mask = self._ones(self.batch, 1, *images.shape[-2:])
            return {main: images[:, None], "pixel_attention_mask": mask}  # one image in a sample
        return {main: images, **({"image_sizes": sizes} if "image_sizes" in self.takes else {})}

    def _patches(self, shapes: str, merged: bool) -> dict[str, torch.Tensor]:
        """Return images that the processor has cut into patches, and how many lie side by side.

        ``merged``: patches of all images in one list, of which some become one token together.
        """
        vision, (height, width) = self.vision, self._pixels()
        patch = getattr(vision, "patch_size", 14)
        together = getattr(vision, "spatial_merge_size", 1) if merged else 1
        rows, columns = (side // patch // together * together for side in (height, width))
        numbers = patch * patch * (getattr(vision, "num_channels", None) or 3)
        if not merged:
            return {
                "pixel_values": torch.randn(
                    self.batch, rows * columns, numbers, device=self.device
                ),
                "pixel_attention_mask": self._ones(self.batch, rows * columns),
                shapes: torch.tensor([[rows, columns]] * self.batch, device=self.device),
            }
        count, times = self.batch * rows * columns, getattr(vision, "temporal_patch_size", 1)
        return {
            "pixel_values": torch.randn(count, numbers * times, device=self.device),
            shapes: torch.tensor([[1, rows, columns]] * self.batch, device=self.device),
        }

    def _ones(self, *shape: int) -> torch.Tensor:
        return torch.ones(shape, dtype=torch.int64, device=self.device)

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


_TILES = 5
"""The tiles of an image that is cut into two by two, with the whole image as the fifth."""
_OF_IMAGES_AND_WORDS = ("image-text-to-text", "contrastive")
_WRITTEN_OUT = KNOWN_NUMBERS
"""The largest number of tokens in a batch whose values are known."""
