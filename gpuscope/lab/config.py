"""Every toggle of the lab, defined once: the command line, the worker's JSON and the TUI's switches read ``TOGGLES``.

Standard library only: a viewer without torch shows the same switches.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

Value = str | int | None

PRESETS: dict[str, dict[str, str]] = {
    "mlp": {"cpu": "mlp-small", "cuda": "mlp-large"},
    "conv": {"cpu": "conv-small", "cuda": "conv-large"},
    "gpt": {"cpu": "gpt-tiny", "cuda": "gpt-small"},
}
"""A family's name stands for the preset that loads the device in use: a CPU step of 10–50 ms, real work for a GPU."""


class ConfigError(ValueError):
    """A toggle has a value it cannot have. The message names the toggle and lists what it takes: a usage error."""


@dataclass(frozen=True, slots=True)
class Toggle:
    """One switch. With ``choices`` it takes one of these words, otherwise a whole number from ``minimum`` to
    ``maximum``. ``unset`` says in words what leaving it out (``None``) means; empty where it always has a value."""

    name: str
    default: Value
    help: str
    on_cpu: str = ""
    """What it does on a CPU where that differs from a GPU."""
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    unset: str = ""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def takes(self) -> str:
        """What it can be set to, in words."""
        if self.choices:
            return ", ".join(self.choices)
        return f"a whole number from {self.minimum:,} to {self.maximum:,}"

    def parse(self, value: object) -> Value:
        """``value`` (text of a command line, or JSON) as this toggle holds it. Raises :class:`ConfigError`."""
        if value is None and (self.unset or self.default is None):
            return None
        if self.choices:
            if isinstance(value, str) and value in self.choices:
                return value
            raise ConfigError(f"{self.flag} cannot be {_shown(value)}. Choices: {self.takes}.")
        number = _whole(value)
        if number is None or not self.minimum <= number <= self.maximum:
            raise ConfigError(f"{self.flag} cannot be {_shown(value)}. It takes {self.takes}.")
        return number

    def text(self, value: Value) -> str:
        """A value as the screen and messages show it."""
        return self.unset if value is None else str(value)


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.strip().isdigit():
        return int(value)
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


TOGGLES: tuple[Toggle, ...] = (
    Toggle(
        "model",
        "gpt",
        "what is trained, on synthetic data that can be learned; a family's name picks the size for the device",
        "a family's name picks its small preset",
        choices=(*PRESETS, *(preset for sizes in PRESETS.values() for preset in sizes.values())),
    ),
    Toggle(
        "amp",
        "off",
        "automatic mixed precision: autocast to bf16, or to fp16 with a GradScaler",
        "bf16 is real and often faster; fp16 works, but 10 to 30 times slower than off",
        choices=("off", "bf16", "fp16"),
    ),
    Toggle(
        "batch",
        None,
        "samples in a micro-batch",
        minimum=1,
        maximum=1 << 20,
        unset="the preset's",
    ),
    Toggle(
        "accumulate",
        1,
        "micro-batches whose gradients are added up before one optimizer step",
        minimum=1,
        maximum=4096,
    ),
    Toggle(
        "device",
        "auto",
        "where it runs; auto takes a CUDA device where torch finds one",
        choices=("auto", "cpu", "cuda"),
    ),
    Toggle("seed", 0, "seed of the weights and of the data", minimum=0, maximum=(1 << 32) - 1),
)
STEPS = Toggle("steps", None, "optimizer steps to run", minimum=1, maximum=1_000_000_000, unset="until stopped")
"""Not a switch of the training but its length; on the command line and in JSON it stands beside the toggles."""
_ALL = {toggle.name: toggle for toggle in (*TOGGLES, STEPS)}


@dataclass(frozen=True, slots=True)
class LabConfig:
    """One setting of every toggle. Made with a value a toggle cannot have, it raises :class:`ConfigError`."""

    model: str = "gpt"
    amp: str = "off"
    batch: int | None = None
    accumulate: int = 1
    device: str = "auto"
    seed: int = 0
    steps: int | None = None

    def __post_init__(self) -> None:
        for name, toggle in _ALL.items():
            object.__setattr__(self, name, toggle.parse(getattr(self, name)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> LabConfig:
        """From names and values; what is left out has its default. Unknown names raise :class:`ConfigError`."""
        unknown = sorted(set(values) - set(_ALL))
        if unknown:
            raise ConfigError(f"There is no lab toggle {_shown(unknown[0])}. Toggles: {', '.join(_ALL)}.")
        return cls(**dict(values))  # type: ignore[arg-type]  # __post_init__ checks and converts every value

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> LabConfig:
        """From the namespace of a parser that :func:`add_toggles` has extended."""
        given = {name: getattr(arguments, name, None) for name in _ALL}
        return cls.from_mapping({name: value for name, value in given.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> LabConfig:
        """Inverse of :meth:`to_json`."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"The lab's configuration is not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise ConfigError("The lab's configuration must be a JSON object of toggles.")
        return cls.from_mapping(values)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_mapping())

    def changed(self, name: str, value: object) -> LabConfig:
        """A copy with one toggle set; raises :class:`ConfigError`."""
        return self.from_mapping({**self.to_mapping(), name: value})

    def preset(self, device_type: str) -> str:
        """The preset that ``model`` stands for on ``device_type`` (``cpu`` or ``cuda``)."""
        return PRESETS[self.model][device_type] if self.model in PRESETS else self.model

    def flags(self) -> list[str]:
        """The command line that makes this configuration: only what differs from the defaults."""
        default = LabConfig()
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and value != getattr(default, field.name):
                words += [_ALL[field.name].flag, str(value)]
        return words

    def command(self, **changes: object) -> str:
        """The shell command that runs this configuration with ``changes``, for messages."""
        return " ".join(["gpuscope", "lab", *replace(self, **changes).flags()])  # type: ignore[arg-type]

    def warnings(self, device_type: str) -> tuple[str, ...]:
        """What a user should know before this runs on ``device_type`` (``cpu`` or ``cuda``)."""
        if device_type == "cpu" and self.amp == "fp16":
            return (
                "fp16 autocast on a CPU works, but a step takes 10 to 30 times as long as without; bf16 is fast here.",
            )
        return ()


def add_toggles(parser: argparse.ArgumentParser) -> None:
    """Adds every toggle and ``--steps``. Values stay text until :meth:`LabConfig.from_arguments` checks them, so that a
    wrong one is answered by the same message everywhere."""
    group = parser.add_argument_group("toggles")
    for toggle in (*TOGGLES, STEPS):
        default = toggle.text(toggle.default)
        note = f"; on a CPU: {toggle.on_cpu}" if toggle.on_cpu else ""
        choices = f" ({toggle.takes})" if toggle.choices else ""
        text = f"{toggle.help}{choices}; default: {default}{note}".replace("%", "%%")
        group.add_argument(toggle.flag, metavar=toggle.name.upper() if toggle.choices else "N", help=text)
