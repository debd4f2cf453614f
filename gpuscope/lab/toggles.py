"""Every switch of a training, defined once: its name, its values, its default, its meaning.

The lab's command line, its worker's JSON and the TUI's switches read ``TOGGLES``, and so do a
prediction's request and the command line of ``gpuscope predict``. Only the standard library is
needed: a viewer without torch shows the same switches.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..wire.clean import limited

if TYPE_CHECKING:
    import argparse

Value = str | int | bool | None

PRESETS: dict[str, dict[str, str]] = {
    "mlp": {"cpu": "mlp-small", "cuda": "mlp-large"},
    "conv": {"cpu": "conv-small", "cuda": "conv-large"},
    "gpt": {"cpu": "gpt-tiny", "cuda": "gpt-small"},
}
"""A family's name means the preset that suits the device: a CPU step of 10–50 ms, or enough
work for a GPU.
"""
MORE_PRESETS = ("mlp-tiny", "gpt-medium", "gpt-large", "gpt-1.3b")
"""Presets that no family's name means: some are so small that a GPU has nothing to do, others
so large that they fill one.
"""
EVERY_PRESET = (*(preset for sizes in PRESETS.values() for preset in sizes.values()), *MORE_PRESETS)
_PART = r"[^\W\d]\w*(?:\.[^\W\d]\w*)*"
FACTORY = re.compile(rf"{_PART}:{_PART}")
"""``MODULE:FACTORY``, a user's own model."""


class ConfigError(UsageError, ValueError):
    """A toggle has a value that it cannot have, which is a usage error.

    The message names the toggle and lists what it takes.
    """


@dataclass(frozen=True, slots=True)
class Toggle:
    """One switch of a training.

    With ``choices`` it takes one of these words (and ``MODULE:FACTORY`` with ``factory``), with
    ``yes_no`` it is on or off, otherwise it takes a whole number from ``minimum`` to
    ``maximum``. ``unset`` says in words what leaving it out (``None``) means; empty where it
    always has a value. ``predicts`` is the field of a prediction's request that it sets,
    ``settings`` for the allocator's settings, ``doubts`` where it only makes a prediction less
    certain, and empty where no prediction knows it.
    """

    name: str
    group: str
    default: Value
    help: str
    on_cpu: str = ""
    """What it does on a CPU if that differs from a GPU."""
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    unset: str = ""
    yes_no: bool = False
    factory: bool = False
    predicts: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def takes(self) -> str:
        """What it can be set to, in words."""
        if self.yes_no:
            return "on, off"
        if self.choices:
            return ", ".join(self.choices) + (
                ", or your own MODULE:FACTORY" if self.factory else ""
            )
        return f"a whole number from {self.minimum:,} to {self.maximum:,}"

    def parse(self, value: object) -> Value:
        """Return a value (text of a command line, or JSON) as this toggle holds it.

        Raises :class:`ConfigError`.
        """
        if value is None and (self.unset or self.default is None):
            return None
        if self.yes_no:
            if isinstance(value, bool):
                return value
            if value in ("on", "off"):
                return value == "on"
            raise ConfigError(f"{self.flag} cannot be {short_repr(value)}. Choices: {self.takes}.")
        if self.choices:
            if isinstance(value, str) and (
                value in self.choices or (self.factory and FACTORY.fullmatch(value))
            ):
                return value
            near = get_close_matches(str(value)[:80].lower(), self.choices, 1)
            meant = f"Did you mean {near[0]}? " if near else ""
            raise ConfigError(
                f"{self.flag} cannot be {short_repr(value)}. {meant}Choices: {self.takes}."
            )
        number = _whole(value)
        if number is None or not self.minimum <= number <= self.maximum:
            raise ConfigError(f"{self.flag} cannot be {short_repr(value)}. It takes {self.takes}.")
        return number

    def text(self, value: Value) -> str:
        """Return a value as the screen and messages show it."""
        if isinstance(value, bool):
            return "on" if value else "off"
        return self.unset if value is None else str(value)

    def words(self, value: Value) -> list[str]:
        """Return the words of a command line that set it to ``value``, which is not None."""
        if self.yes_no:
            return [self.flag if value else self.flag.replace("--", "--no-", 1)]
        return [self.flag, str(value)]


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.strip().isdigit():
        return int(value)
    return None


def short_repr(value: object) -> str:
    return limited(repr(value), 60)


def _word(
    name: str, group: str, default: str, choices: tuple[str, ...], text: str, **more: Any
) -> Toggle:
    return Toggle(name, group, default, text, choices=choices, **more)


def _number(
    name: str, group: str, default: int | None, least: int, most: int, text: str, **more: Any
) -> Toggle:
    return Toggle(name, group, default, text, minimum=least, maximum=most, **more)


def _yes_no(name: str, group: str, default: bool | None, text: str, **more: Any) -> Toggle:
    return Toggle(name, group, default, text, yes_no=True, **more)


_NOTHING = "no effect: for CUDA only"
TOGGLES: tuple[Toggle, ...] = (
    _word("model", "model", "gpt", (*PRESETS, *EVERY_PRESET),
        "the model to train, on synthetic data that can be learned; a family name picks a size for "
        "the GPU", on_cpu="a family name picks its small preset", factory=True, predicts="model"),
    _word("device", "model", "auto", ("auto", "cpu", "cuda"),
        "where it runs; auto uses a GPU if torch finds one"),
    _number("seed", "model", 0, 0, (1 << 32) - 1, "seed of the weights and of the data",
        predicts="seed"),
    _word("amp", "precision", "off", ("off", "bf16", "fp16"),
        "automatic mixed precision: autocast to bf16, or to fp16 with a GradScaler",
        on_cpu="bf16 works and is often faster; fp16 works, but is 10 to 30 times slower than off",
        predicts="amp"),
    _yes_no("tf32", "precision", False, "float32 matmuls and convolutions in TF32, with 10 bits of "
        "mantissa", on_cpu=_NOTHING, predicts="tf32"),
    _number("batch", "batch", None, 1, 1 << 20,
        "samples per micro-batch, per GPU under DDP and FSDP", unset="preset", predicts="batch"),
    _number("accumulate", "batch", 1, 1, 4096,
        "micro-batches whose gradients add up to one optimizer step", predicts="accumulate"),
    _word("compile", "compile", "off", ("off", "default", "reduce-overhead", "max-autotune"),
        "torch.compile in one of its modes",
        on_cpu="works with a C++ compiler; the first step takes many seconds, and reduce-overhead "
        "has no CUDA graphs", predicts="doubts"),
    _yes_no("fullgraph", "compile", False,
        "compile the model as one graph: a graph break is an error"),
    _word("parallel", "parallel", "none", ("none", "dp", "ddp", "fsdp"),
        "DataParallel in one process, or DDP or FSDP2 with one process per GPU",
        on_cpu="DDP runs over gloo, and the processes share the cores; DataParallel does nothing",
        predicts="sharding"),
    _number("nproc", "parallel", None, 1, 1024, "processes of DDP and FSDP, GPUs of DataParallel",
        unset="one per GPU, 2 on a CPU", predicts="ranks"),
    _yes_no("checkpoint", "memory", False,
        "activation checkpointing: keep each block's input, recompute the rest in backward",
        predicts="checkpoint"),
    _word("optimizer", "memory", "adamw", ("adamw", "sgd"),
        "AdamW keeps two values per parameter, SGD with momentum one", predicts="optimizer"),
    _yes_no("foreach", "memory", None, "the optimizer works on lists of parameters: fewer kernels, "
        "more temporary memory", unset="torch's choice", predicts="foreach"),
    _yes_no("fused", "memory", None, "the whole optimizer step in one kernel per list",
        unset="torch's choice", predicts="fused"),
    _yes_no("set_to_none", "memory", True,
        "zero_grad frees the gradients instead of writing zeros", predicts="set_to_none"),
    _word("validate", "memory", "off", ("off", "no-grad", "grad"),
        "a validation of 4 micro-batches every 10 steps, with or without no_grad"),
    _yes_no("empty_cache", "memory", False,
        "torch.cuda.empty_cache() after every step and validation", on_cpu=_NOTHING),
    _yes_no("expandable_segments", "memory", False,
        "the allocator grows its segments instead of adding new ones", on_cpu=_NOTHING,
        predicts="settings"),
    _word("loader", "input", "synthetic", ("synthetic", "workers", "slow"),
        "where batches come from: created on the GPU, from a DataLoader, or from one that takes "
        "200 ms per batch"),
    _number("workers", "input", None, 0, 64, "worker processes of the DataLoader", unset="2"),
    _yes_no("pin_memory", "input", False,
        "the DataLoader puts batches in pinned (page-locked) memory", on_cpu=_NOTHING),
    _yes_no("non_blocking", "input", False, "copy to the GPU without waiting; needs pinned memory",
        on_cpu=_NOTHING),
    _number("prefetch", "input", None, 1, 64, "batches each DataLoader worker prepares ahead",
        unset="default 2"),
    _yes_no("cudnn_benchmark", "cudnn", False,
        "cuDNN times its algorithms for each new shape and keeps the fastest", on_cpu=_NOTHING,
        predicts="cudnn_benchmark"),
    _yes_no("channels_last", "cudnn", False,
        "keep convolution weights and activations in torch's channels_last memory format",
        predicts="channels_last"),
    _yes_no("deterministic", "cudnn", False,
        "use only algorithms that give identical bits in every run",
        on_cpu="works; most CPU kernels are deterministic anyway", predicts="deterministic"),
    _word("fsdp_wrap", "fsdp", "blocks", ("blocks", "root"),
        "what FSDP2 gathers at a time: one block, or the whole model (root)", predicts="fsdp_wrap"),
    _word("fsdp_reshard", "fsdp", "blocks", ("blocks", "always", "never"),
        "what FSDP2 reshards after the forward pass: blocks, the root too (always), or nothing",
        predicts="fsdp_reshard"),
    _word("fsdp_params", "fsdp", "fp32", ("fp32", "bf16"),
        "the dtype in which FSDP2 gathers parameters and the model computes (param_dtype)",
        predicts="fsdp_params"),
    _word("fsdp_reduce", "fsdp", "as-params", ("as-params", "fp32", "bf16"),
        "the dtype in which FSDP2 reduces gradients (reduce_dtype)", predicts="fsdp_reduce"),
    _yes_no("fsdp_offload", "fsdp", False,
        "FSDP2 keeps parameters, gradients and optimizer on the CPU (CPUOffloadPolicy)",
        on_cpu=_NOTHING, predicts="fsdp_offload"),
    _number("fsdp_ahead", "fsdp", 0, 0, 64,
        "blocks that FSDP2 prefetches in both passes; 0: FSDP2 decides", predicts="fsdp_ahead"),
)  # fmt: skip
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(toggle.group for toggle in TOGGLES))


def help_groups(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    """Return the heading of each group of toggles in a verb's help: ``precision settings``."""
    names = {"cudnn": "cuDNN", "fsdp": "FSDP"}
    return {name: parser.add_argument_group(f"{names.get(name, name)} settings") for name in GROUPS}


STEPS = _number(
    "steps", "length", None, 1, 1_000_000_000, "optimizer steps to run", unset="until stopped"
)
"""This is not a switch of the training but its length. On the command line and in JSON it is
listed with the toggles.
"""
BY_NAME = {toggle.name: toggle for toggle in (*TOGGLES, STEPS)}

PREDICTED = {toggle.predicts: toggle for toggle in TOGGLES if toggle.predicts}
"""The switches that a prediction uses, by the field of its request."""


FSDP = tuple(toggle.name for toggle in TOGGLES if toggle.group == "fsdp")


def fsdp_given(config: Any) -> list[str]:
    """Return FSDP's switches whose value in a configuration, or a request, is not the default."""
    return [name for name in FSDP if getattr(config, name) != BY_NAME[name].default]


def default(name: str) -> Any:
    """Return the value of a switch that nobody sets.

    Both a configuration and a request use this function.
    """
    return BY_NAME[name].default
