"""Generate text with a transformers model of fake tensors: the prompt, and the first tokens.

The loop, its caches, masks and logits are those of transformers' own ``generate()``. It is left
after the first tokens, because each later one needs what the one before needed, and a little more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from ..request import CannotPredict, Request
from ..serving import NEW_TOKENS
from ..trace import Mark
from . import adapters, transformers_models
from .failures import library
from .fakes import CALCULATED_NUMBERS, Fakes
from .modules import Modules
from .recorder import END, FORWARD, Recorder
from .redirect import CUDA

TRACED_TOKENS = 4
"""Tokens that are traced, at most."""


class Generation:
    """One generation, with the same members as a training."""

    def __init__(self, request: Request, recorder: Recorder, fakes: Fakes, modules: Modules):
        self.request, self.recorder, self.fakes = request, recorder, fakes
        fakes.known_numbers = CALCULATED_NUMBERS  # the mask of a batch of long prompts
        recorder.trace.marks.append(Mark(0, "build"))
        _, self.model = transformers_models.for_generation(request, Path(request.model[3:]))
        modules.name(self.model)
        self.batch, self.source = request.batch or 1, ""
        self.parameters = adapters.numbers(self.model)
        for name, one in (*self.model.named_parameters(), *self.model.named_buffers()):
            self._decide(one, "parameter", name.rpartition(".")[0])

    def run(self) -> None:
        request, model = self.request, self.model
        new = NEW_TOKENS
        words = torch.zeros(self.batch, (request.sequence or 0) - new, dtype=torch.int64, device=CUDA)
        options: dict[str, Any] = {"attention_mask": torch.ones_like(words), "max_new_tokens": new}
        if request.serve == "static":
            options["cache_implementation"] = "static"
        model.generation_config.eos_token_id = None  # so that no sequence ends early
        model.register_forward_hook(self._mark_cache)
        self._begin(1)
        with contextlib.suppress(_Enough):
            self._generate(words, options)
        self.recorder.mark(END)

    def _generate(self, words: torch.Tensor, options: dict[str, Any]) -> None:
        transformers = library("transformers", "A transformers config")
        count = 0

        class Counted(transformers.StoppingCriteria):
            """Begins a step with each token, and ends the generation after the last one."""

            def __call__(_, words: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
                nonlocal count
                count += 1
                if count == TRACED_TOKENS:
                    raise _Enough
                self._begin(count + 1)
                return torch.zeros(words.shape[0], dtype=torch.bool, device=words.device)

        stopping = transformers.StoppingCriteriaList([Counted()])
        try:
            self.model.generate(
                words, do_sample=False, pad_token_id=0, disable_compile=True,
                stopping_criteria=stopping, **options,
            )  # fmt: skip
        except (ValueError, TypeError, AttributeError, AssertionError, LookupError) as error:
            raise CannotPredict(
                f"{type(self.model).__name__} cannot generate here.",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
                "--serve is for models that generate text token by token",
            ) from error

    def _begin(self, step: int) -> None:
        self.recorder.mark(f"step {step}")
        self.recorder.mark(FORWARD)

    def _mark_cache(self, model: Any, arguments: Any, out: Any) -> None:
        cache = getattr(out, "past_key_values", None)
        for layer in getattr(cache, "layers", ()):
            for name in ("keys", "values"):
                kept = getattr(layer, name, None)
                if isinstance(kept, torch.Tensor):
                    self._decide(kept, "cache", None)

    def _decide(self, tensor: torch.Tensor, category: str, module: str | None) -> None:
        block = self.fakes.block(tensor)
        if block is not None:
            self.recorder.decide(block, category, module)


class _Enough(Exception):
    """The generation has made as many tokens as are traced."""
