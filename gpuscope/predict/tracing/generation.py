"""Generate text with a transformers model of fake tensors: the prompt, and the first tokens.

The loop, its caches, masks and logits are those of transformers' own ``generate()``. It is left
after the first tokens, because each later one needs what the one before needed, and a little more.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch

from ..request import CannotPredict, Doubt, Request
from ..trace import Growth, PhaseMark
from . import quantised, transformers_models
from .failures import library
from .fakes import CALCULATED_NUMBERS, Fakes
from .modules import Modules
from .recorder import END, FORWARD, Recorder
from .redirect import CUDA

TRACED_TOKENS = 5
"""Tokens that are traced, at most: of two that follow the second one, the prompt is no part."""
ALIGNED_BATCH = 8
TRIAL_BYTES = 64 << 20


class Generation:
    """One generation, with the same members as a training."""

    def __init__(self, request: Request, recorder: Recorder, fakes: Fakes, modules: Modules):
        self.request, self.recorder, self.fakes = request, recorder, fakes
        fakes.known_numbers = CALCULATED_NUMBERS  # the mask of a batch of long prompts
        recorder.trace.marks.append(PhaseMark(0, "build"))
        config, self.model = transformers_models.for_generation(request, Path(request.model[3:]))
        modules.name(self.model)
        self.batch, self.source = request.batch or 1, ""
        self.positions = transformers_models.positions(config)
        self._made = 0
        self._windows: dict[str, int] = {}
        self.parameters = quantised.numbers(self.model)
        self.setup = [] if request.quantize else [quantised.weights_text(self.model)]
        for name, one in (*self.model.named_parameters(), *self.model.named_buffers()):
            fakes.decide(one, "parameter", name.rpartition(".")[0])

    def run(self) -> None:
        request, model = self.request, self.model
        new = request.new
        words = torch.zeros(
            self.batch, (request.sequence or 0) - new, dtype=torch.int64, device=CUDA
        )
        options: dict[str, Any] = {"attention_mask": torch.ones_like(words), "max_new_tokens": new}
        if request.serve == "static":
            options["cache_implementation"] = "static"
        model.generation_config.eos_token_id = None  # so that no sequence ends early
        model.register_forward_hook(self._mark_cache)
        self._begin(1)
        with contextlib.suppress(_Enough):
            self._generate(words, options)
        if request.serve == "static" and self.batch % ALIGNED_BATCH:
            self._doubt_compiling()
        if new > TRACED_TOKENS:
            self.recorder.trace.growth = Growth(TRACED_TOKENS, new - TRACED_TOKENS, self._windows)

    def _generate(self, words: torch.Tensor, options: dict[str, Any]) -> None:
        transformers = library("transformers", "A transformers config")
        stopping = transformers.StoppingCriteriaList([self._count])
        try:
            self.model.generate(
                words, do_sample=False, pad_token_id=0, disable_compile=True,
                stopping_criteria=stopping, **options,
            )  # fmt: skip
        except Exception as error:
            if isinstance(error, _Enough) or not transformers_models.refused(self.request, error):
                raise
            raise CannotPredict(
                f"{type(self.model).__name__} cannot generate here.",
                f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
                "--serve is for models that generate text token by token",
            ) from error

    def _doubt_compiling(self) -> None:
        """Doubt what compiling takes, which ``generate()`` does for a whole cache.

        A product whose rows are no multiple of eight may be tried with padding, on a copy of its
        weight and with a buffer that empties the card's cache. On an H200 one model of two did.
        """
        weight = max((one.nbytes for one in self.model.parameters()), default=0)
        percent = 100 * (weight + TRIAL_BYTES) / max(1, self.recorder.peak_bytes)
        text = (
            "generate() compiles the model for a whole cache. Torch may try the largest product on "
            f"a copy of its weight, because {self.batch} is no multiple of {ALIGNED_BATCH}."
        )
        self.fakes.doubt(Doubt("compiled", text, "generate", round(percent, 1), upward=True))

    def _count(self, words: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        """Begin a step with each token, and end the generation after the last one."""
        self._made += 1
        if self._made == min(TRACED_TOKENS, self.request.new):
            self.recorder.mark(END)
            raise _Enough
        self._begin(self._made + 1)
        return torch.zeros(words.shape[0], dtype=torch.bool, device=words.device)

    def _begin(self, step: int) -> None:
        self.recorder.mark(f"step {step}")
        self.recorder.mark(FORWARD)

    def _mark_cache(self, model: Any, arguments: Any, out: Any) -> None:
        """Note which blocks are the cache, and for how many more tokens its windows grow."""
        cache = getattr(out, "past_key_values", None)
        for number, layer in enumerate(getattr(cache, "layers", ())):
            window = getattr(layer, "sliding_window", None)
            if isinstance(window, int) and self.request.serve == "dynamic":
                self._windows[str(number)] = window - int(layer.get_seq_length())
            for name in ("keys", "values"):
                kept = getattr(layer, name, None)
                if isinstance(kept, torch.Tensor):
                    self.fakes.decide(kept, "cache")


class _Enough(Exception):
    """The generation has made as many tokens as are traced."""
