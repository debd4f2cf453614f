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


def _yes_no(
    name: str,
    group: str,
    default: bool | None,
    text: str,
    on_cpu: str = "",
    unset: str = "",
    predicts: str = "",
) -> Toggle:
    return Toggle(name, group, default, text, on_cpu, yes_no=True, unset=unset, predicts=predicts)


_NOTHING = "no effect: for CUDA only"
TOGGLES: tuple[Toggle, ...] = (
    Toggle(
        "model",
        "model",
        "gpt",
        "the model to train, on synthetic data that can be learned; a family name picks a size "
        "for the GPU",
        "a family name picks its small preset",
        choices=(*PRESETS, *EVERY_PRESET),
        factory=True,
        predicts="model",
    ),
    Toggle(
        "device",
        "model",
        "auto",
        "where it runs; auto uses a GPU if torch finds one",
        choices=("auto", "cpu", "cuda"),
    ),
    Toggle(
        "seed",
        "model",
        0,
        "seed of the weights and of the data",
        minimum=0,
        maximum=(1 << 32) - 1,
        predicts="seed",
    ),
    Toggle(
        "amp",
        "precision",
        "off",
        "automatic mixed precision: autocast to bf16, or to fp16 with a GradScaler",
        "bf16 works and is often faster; fp16 works, but is 10 to 30 times slower than off",
        choices=("off", "bf16", "fp16"),
        predicts="amp",
    ),
    _yes_no(
        "tf32",
        "precision",
        False,
        "float32 matmuls and convolutions in TF32, with 10 bits of mantissa",
        _NOTHING,
        predicts="tf32",
    ),
    Toggle(
        "batch",
        "batch",
        None,
        "samples per micro-batch, per GPU under DDP and FSDP",
        minimum=1,
        maximum=1 << 20,
        unset="preset",
        predicts="batch",
    ),
    Toggle(
        "accumulate",
        "batch",
        1,
        "micro-batches whose gradients add up to one optimizer step",
        minimum=1,
        maximum=4096,
        predicts="accumulate",
    ),
    Toggle(
        "compile",
        "compile",
        "off",
        "torch.compile in one of its modes",
        "works with a C++ compiler; the first step takes many seconds, and reduce-overhead has "
        "no CUDA graphs",
        choices=("off", "default", "reduce-overhead", "max-autotune"),
        predicts="doubts",
    ),
    _yes_no(
        "fullgraph", "compile", False, "compile the model as one graph: a graph break is an error"
    ),
    Toggle(
        "parallel",
        "parallel",
        "none",
        "DataParallel in one process, or DDP or FSDP2 with one process per GPU",
        "DDP runs over gloo, and the processes share the cores; DataParallel does nothing",
        choices=("none", "dp", "ddp", "fsdp"),
        predicts="sharding",
    ),
    Toggle(
        "nproc",
        "parallel",
        None,
        "processes of DDP and FSDP, GPUs of DataParallel",
        minimum=1,
        maximum=1024,
        unset="one per GPU, 2 on a CPU",
        predicts="ranks",
    ),
    _yes_no(
        "checkpoint",
        "memory",
        False,
        "activation checkpointing: keep each block's input, recompute the rest in backward",
        predicts="checkpoint",
    ),
    Toggle(
        "optimizer",
        "memory",
        "adamw",
        "AdamW keeps two values per parameter, SGD with momentum one",
        choices=("adamw", "sgd"),
        predicts="optimizer",
    ),
    _yes_no(
        "foreach",
        "memory",
        None,
        "the optimizer works on lists of parameters: fewer kernels, more temporary memory",
        unset="torch's choice",
        predicts="foreach",
    ),
    _yes_no(
        "fused",
        "memory",
        None,
        "the whole optimizer step in one kernel per list",
        unset="torch's choice",
        predicts="fused",
    ),
    _yes_no(
        "set_to_none",
        "memory",
        True,
        "zero_grad frees the gradients instead of writing zeros",
        predicts="set_to_none",
    ),
    Toggle(
        "validate",
        "memory",
        "off",
        "a validation of 4 micro-batches every 10 steps, with or without no_grad",
        choices=("off", "no-grad", "grad"),
    ),
    _yes_no(
        "empty_cache",
        "memory",
        False,
        "torch.cuda.empty_cache() after every step and validation",
        _NOTHING,
    ),
    _yes_no(
        "expandable_segments",
        "memory",
        False,
        "the allocator grows its segments instead of adding new ones",
        _NOTHING,
        predicts="settings",
    ),
    Toggle(
        "loader",
        "input",
        "synthetic",
        "where batches come from: created on the GPU, from a DataLoader, or from one that "
        "takes 200 ms per batch",
        choices=("synthetic", "workers", "slow"),
    ),
    Toggle(
        "workers",
        "input",
        None,
        "worker processes of the DataLoader",
        minimum=0,
        maximum=64,
        unset="2",
    ),
    _yes_no(
        "pin_memory",
        "input",
        False,
        "the DataLoader puts batches in pinned (page-locked) memory",
        _NOTHING,
    ),
    _yes_no(
        "non_blocking",
        "input",
        False,
        "copy to the GPU without waiting; needs pinned memory",
        _NOTHING,
    ),
    Toggle(
        "prefetch",
        "input",
        None,
        "batches each DataLoader worker prepares ahead",
        minimum=1,
        maximum=64,
        unset="default 2",
    ),
    _yes_no(
        "cudnn_benchmark",
        "cudnn",
        False,
        "cuDNN times its algorithms for each new shape and keeps the fastest",
        _NOTHING,
        predicts="cudnn_benchmark",
    ),
    _yes_no(
        "channels_last",
        "cudnn",
        False,
        "keep convolution weights and activations in torch's channels_last memory format",
        predicts="channels_last",
    ),
    _yes_no(
        "deterministic",
        "cudnn",
        False,
        "use only algorithms that give identical bits in every run",
        "works; most CPU kernels are deterministic anyway",
        predicts="deterministic",
    ),
    Toggle(
        "fsdp_wrap",
        "fsdp",
        "blocks",
        "what FSDP2 gathers at a time: one block, or the whole model (root)",
        choices=("blocks", "root"),
        predicts="fsdp_wrap",
    ),
    Toggle(
        "fsdp_reshard",
        "fsdp",
        "blocks",
        "what FSDP2 reshards after the forward pass: blocks, the root too (always), or nothing",
        choices=("blocks", "always", "never"),
        predicts="fsdp_reshard",
    ),
    Toggle(
        "fsdp_params",
        "fsdp",
        "fp32",
        "the dtype in which FSDP2 gathers parameters and the model computes (param_dtype)",
        choices=("fp32", "bf16"),
        predicts="fsdp_params",
    ),
    Toggle(
        "fsdp_reduce",
        "fsdp",
        "as-params",
        "the dtype in which FSDP2 reduces gradients (reduce_dtype)",
        choices=("as-params", "fp32", "bf16"),
        predicts="fsdp_reduce",
    ),
    _yes_no(
        "fsdp_offload",
        "fsdp",
        False,
        "FSDP2 keeps parameters, gradients and optimizer on the CPU (CPUOffloadPolicy)",
        _NOTHING,
        predicts="fsdp_offload",
    ),
    Toggle(
        "fsdp_ahead",
        "fsdp",
        0,
        "blocks that FSDP2 prefetches in both passes; 0: FSDP2 decides",
        minimum=0,
        maximum=64,
        predicts="fsdp_ahead",
    ),
)
GROUPS: tuple[str, ...] = tuple(dict.fromkeys(toggle.group for toggle in TOGGLES))


def help_groups(parser: argparse.ArgumentParser) -> dict[str, argparse._ArgumentGroup]:
    """Return the heading of each group of toggles in a verb's help: ``precision settings``."""
    names = {"cudnn": "cuDNN", "fsdp": "FSDP"}
    return {name: parser.add_argument_group(f"{names.get(name, name)} settings") for name in GROUPS}


STEPS = Toggle(
    "steps",
    "length",
    None,
    "optimizer steps to run",
    minimum=1,
    maximum=1_000_000_000,
    unset="until stopped",
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
