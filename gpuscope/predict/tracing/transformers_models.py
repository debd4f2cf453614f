"""Make a model and a batch from a transformers configuration.

The model is the one for a task, with a batch that is typical of that task.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..adapters import parse_lora
from ..request import TASKS, CannotPredict, Request
from . import adapters
from .failures import in_words, library
from .redirect import CUDA
from .transformers_inputs import Inputs, first_token, text_of

_GENERATING = ("causal-lm", "speech-seq2seq", "seq2seq-lm")
"""The tasks that count first where one class serves several."""


def make(
    request: Request, path: Path, device: torch.device = CUDA
) -> tuple[nn.Module, Callable[[], torch.Tensor], int]:
    """Return (model, loss of a micro-batch, its batch). Raises :class:`CannotPredict`."""
    config, task = _config_of(request, path)
    _complete(config, task)
    kind = getattr(library("transformers", "A transformers config"), TASKS[task])
    if request.lora:
        model = _adapted(_built(kind, config), config, request, task)
    else:
        with device:
            model = _built(kind, config)
    _check_positions(config, model, request.sequence, "--sequence")
    model.to(device).train()  # tensors that an old constructor made are on the host
    batch = request.batch or 8
    inputs = Inputs(config, model, batch, request, task, device).all()

    def loss() -> torch.Tensor:
        try:
            found = getattr(model(**inputs), "loss", None)
        except Exception as error:
            if not refused(request, error):
                raise
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
            f"--serve cannot predict a {config.model_type}.",
            f"its task is {task}; --serve is for causal-lm: models that generate text, and have no "
            "encoder.",
            "gpuscope predict without --serve    predicts its training",
        )
    transformers = library("transformers", "A transformers config")
    model = _built(transformers.AutoModelForCausalLM, config).to(_type(config))
    _check_positions(config, model, request.sequence, "--serve context=")
    if request.quantize:
        adapters.prepare(model, None, request.quantize, language=True)
    model.to(CUDA).eval()
    return config, model


def positions(config: Any) -> int:
    """Return for how many tokens a model that generates text has positions; 0: it does not say."""
    text = text_of(config)
    found = [getattr(text, name, None) for name in ("max_position_embeddings", "n_positions")]
    return next((one for one in found if isinstance(one, int) and one > 0), 0)


def _check_positions(config: Any, model: nn.Module, tokens: int | None, option: str) -> None:
    """Raise :class:`CannotPredict` where a model has too few rows in its table of positions.

    The first step stops at a row that is not there. A model that computes its positions takes more
    tokens than its config names.
    """
    most = positions(config)
    if not tokens or not most or tokens <= most:
        return
    for name, part in model.named_modules():
        rows = part.num_embeddings if isinstance(part, nn.Embedding) else 0
        last = name.rpartition(".")[2]
        if ("pos" in last or last == "wpe") and most <= rows < tokens:
            space = "" if option.endswith("=") else " "
            raise CannotPredict(
                f"A {config.model_type} with this config fails with {tokens:,} tokens.",
                f"its table of positions, {name}, has {rows:,} rows.",
                f"{option}{space}{most}    or a config with more positions",
            )


def refused(request: Request, error: Exception) -> bool:
    """Whether a model raised ``error`` because of the batch that it was given."""
    if isinstance(error, ImportError) or (
        # a GPU that is full raises a RuntimeError of another type
        isinstance(error, RuntimeError) and type(error) not in (RuntimeError, NotImplementedError)
    ):
        return False
    return in_words(request, error).code == "factory_failed"


def _built(kind: Any, config: Any) -> nn.Module:
    """Return the model of a config. Raises :class:`CannotPredict` if transformers makes none."""
    try:
        model: nn.Module = kind.from_config(config)
    except (ValueError, TypeError, AttributeError, AssertionError, LookupError) as error:
        raise CannotPredict(
            f"transformers makes no model from this config of a {config.model_type}.",
            f"{type(error).__name__}: {' '.join(str(error).split())[:300]}.",
            "complete the config; or MODULE:FACTORY, which makes the model itself",
        ) from error
    return model


def _plain_number(described: dict[str, Any]) -> Any:
    """Return the number that transformers writes as a table, because JSON has no infinity."""
    if described.keys() == {"__float__"}:
        return float(described["__float__"])
    return described


def _config_of(request: Request, path: Path) -> tuple[Any, str]:
    """Return the configuration and the task. Raises :class:`CannotPredict`."""
    transformers = library("transformers", "A transformers config")
    file = path / "config.json" if path.is_dir() else path
    try:
        described = json.loads(file.read_text(), object_hook=_plain_number)
        config = transformers.AutoConfig.for_model(**described)
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise CannotPredict(
            f"{file} is not a transformers config.", why, "name the folder of a saved model"
        ) from None
    found = {
        task: _names(getattr(transformers, name)._model_mapping, config)
        for task, name in TASKS.items()
    }
    has = {task: kinds for task, kinds in found.items() if kinds}
    task = request.task or _task(config, described, has)
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
        then = f"--task {next(iter(has))}" if has else "give MODULE:FACTORY"
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


def _names(mapping: Any, config: Any) -> set[str]:
    """Return the names of the classes that a task's mapping of transformers has for a config."""
    if type(config) not in mapping:
        return set()
    kinds = mapping[type(config)]
    return {kind.__name__ for kind in (kinds if isinstance(kinds, (tuple, list)) else (kinds,))}


def _task(config: Any, described: dict[str, Any], has: dict[str, set[str]]) -> str:
    """Return the task that the config's own architecture is for.

    One class may serve several tasks, of which the first of :data:`_GENERATING` counts. A config
    without an architecture gets one by whether its model has an encoder.
    """
    named = set(described.get("architectures") or ())
    fitting = [task for task, kinds in has.items() if kinds & named]
    for task in (*_GENERATING, *fitting):
        if task in fitting:
            return task
    for task, kind in TASKS.items():
        if kind.removeprefix("AutoModel") in " ".join(named):
            return task
    encodes = getattr(config, "is_encoder_decoder", False)
    likely = ("speech-seq2seq", "seq2seq-lm", "causal-lm") if encodes else ("causal-lm",)
    return next((task for task in (*likely, *has) if task in has), "causal-lm")


def _complete(config: Any, task: str) -> None:
    """Set what the owner of a tokenizer would set before training.

    These are a token for padding, and one that begins an answer.
    """
    text = text_of(config)
    first = first_token(getattr(text, "eos_token_id", None))
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
