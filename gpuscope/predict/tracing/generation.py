"""Generate text with a transformers model of fake tensors: the prompt, then two tokens more.

It does what ``generate()`` of transformers does with its caches, by its public source: the logits
of the last token alone where the model can leave out the others, and a copy of them in 32 bits.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from ..request import CannotPredict, Request
from ..trace import Mark
from . import adapters, transformers_models
from .failures import library
from .fakes import Fakes
from .modules import Modules
from .recorder import END, FORWARD, Recorder
from .redirect import CUDA

NEW_TOKENS = 2
"""Tokens that are generated after the prompt: with the second one the cache has grown twice."""


class Generation:
    """One generation, with the same members as a training."""

    def __init__(self, request: Request, recorder: Recorder, fakes: Fakes, modules: Modules):
        self.request, self.recorder, self.fakes = request, recorder, fakes
        recorder.trace.marks.append(Mark(0, "build"))
        self._config, self.model = transformers_models.for_generation(
            request, Path(request.model[3:])
        )
        modules.name(self.model)
        self.batch, self.source = request.batch or 1, ""
        self.parameters = adapters.numbers(self.model)
        for name, one in (*self.model.named_parameters(), *self.model.named_buffers()):
            self._decide(one, "parameter", name.rpartition(".")[0])

    def run(self) -> None:
        with torch.no_grad():
            self._run()
        self.recorder.mark(END)

    def _run(self) -> None:
        request, recorder = self.request, self.recorder
        context = request.sequence or 0
        words = torch.zeros(self.batch, context - NEW_TOKENS, dtype=torch.int64, device=CUDA)
        mask = torch.ones_like(words)
        cache = self._cache(context)
        for step in range(1 + NEW_TOKENS):
            recorder.mark(f"step {step + 1}")
            recorder.mark(FORWARD)
            out = self._forward(words if step == 0 else words[:, -1:], mask, cache)
            cache = out.past_key_values
            self._mark_cache(cache)
            last = out.logits[:, -1, :].to(copy=True, dtype=torch.float32)
            del out
            words = torch.cat([words, last.argmax(-1, keepdim=True)], dim=-1)
            mask = torch.cat([mask, mask.new_ones((self.batch, 1))], dim=-1)
            del last

    def _forward(self, words: torch.Tensor, mask: torch.Tensor, cache: Any) -> Any:
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        takes = inspect.signature(self.model.forward).parameters
        if "logits_to_keep" in takes:
            options["logits_to_keep"] = 1
        if "cache_position" in takes:
            end = mask.shape[1]
            options["cache_position"] = torch.arange(end - words.shape[1], end, device=CUDA)
        if cache is not None:
            options["past_key_values"] = cache
        try:
            return self.model(input_ids=words, attention_mask=mask, **options)
        except (ValueError, TypeError, AttributeError, AssertionError, LookupError) as error:
            raise CannotPredict(
                f"{type(self.model).__name__} cannot generate here.",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
                "--serve is for models that generate text token by token",
            ) from error

    def _cache(self, context: int) -> Any:
        if self.request.serve != "static":
            return None
        transformers = library("transformers", "A transformers config")
        return transformers.StaticCache(config=self._config, max_cache_len=context)

    def _mark_cache(self, cache: Any) -> None:
        for layer in getattr(cache, "layers", ()):
            for name in ("keys", "values"):
                kept = getattr(layer, name, None)
                if isinstance(kept, torch.Tensor):
                    self._decide(kept, "cache", None)

    def _decide(self, tensor: torch.Tensor, category: str, module: str | None) -> None:
        block = self.fakes.block(tensor)
        if block is not None:
            self.recorder.decide(block, category, module)
