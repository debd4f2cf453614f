"""One setting of every toggle: from a command line, from JSON, and back."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from .toggles import (
    BY_NAME,
    FACTORY,
    PRESETS,
    STEPS,
    TOGGLES,
    ConfigError,
    Toggle,
    Value,
    default,
    help_groups,
    short_repr,
)

__all__ = [
    "PRESETS",
    "STEPS",
    "TOGGLES",
    "ConfigError",
    "LabConfig",
    "Toggle",
    "Value",
    "add_toggles",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabConfig:
    """One setting of every toggle, with the defaults of :data:`TOGGLES`.

    Made with a value that a toggle cannot have, it raises :class:`ConfigError`.
    """

    model: str = default("model")
    device: str = default("device")
    seed: int = default("seed")
    amp: str = default("amp")
    tf32: bool = default("tf32")
    batch: int | None = default("batch")
    accumulate: int = default("accumulate")
    compile: str = default("compile")
    fullgraph: bool = default("fullgraph")
    parallel: str = default("parallel")
    nproc: int | None = default("nproc")
    fsdp_wrap: str = default("fsdp_wrap")
    fsdp_reshard: str = default("fsdp_reshard")
    fsdp_params: str = default("fsdp_params")
    fsdp_reduce: str = default("fsdp_reduce")
    fsdp_offload: bool = default("fsdp_offload")
    fsdp_ahead: int = default("fsdp_ahead")
    checkpoint: bool = default("checkpoint")
    optimizer: str = default("optimizer")
    foreach: bool | None = default("foreach")
    fused: bool | None = default("fused")
    set_to_none: bool = default("set_to_none")
    validate: str = default("validate")
    empty_cache: bool = default("empty_cache")
    expandable_segments: bool = default("expandable_segments")
    loader: str = default("loader")
    workers: int | None = default("workers")
    pin_memory: bool = default("pin_memory")
    non_blocking: bool = default("non_blocking")
    prefetch: int | None = default("prefetch")
    cudnn_benchmark: bool = default("cudnn_benchmark")
    channels_last: bool = default("channels_last")
    deterministic: bool = default("deterministic")
    steps: int | None = default("steps")

    def __post_init__(self) -> None:
        for name, toggle in BY_NAME.items():
            object.__setattr__(self, name, toggle.parse(getattr(self, name)))

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> LabConfig:
        """Make it from names and values; a toggle that is left out has its default.

        Unknown names raise :class:`ConfigError`.
        """
        unknown = sorted(set(values) - set(BY_NAME))
        if unknown:
            raise ConfigError(
                f"There is no lab setting {short_repr(unknown[0])}. Settings: {', '.join(BY_NAME)}."
            )
        return cls(**dict(values))  # type: ignore[arg-type]  # __post_init__ checks and converts every value

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> LabConfig:
        """Make it from the namespace of a parser that :func:`add_toggles` has extended."""
        given = {name: getattr(arguments, name, None) for name in BY_NAME}
        return cls.from_mapping({name: value for name, value in given.items() if value is not None})

    @classmethod
    def from_json(cls, text: str) -> LabConfig:
        """Read what :meth:`to_json` wrote. Raises :class:`ConfigError`."""
        try:
            values = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"The lab's configuration is not JSON: {error}.") from None
        if not isinstance(values, dict):
            raise ConfigError("The lab's configuration must be a JSON object of settings.")
        return cls.from_mapping(values)

    def to_mapping(self) -> dict[str, Any]:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(self.to_mapping())

    def changed(self, name: str, value: object) -> LabConfig:
        """Return a copy with one toggle set. Raises :class:`ConfigError`."""
        return self.from_mapping({**self.to_mapping(), name: value})

    @property
    def factory(self) -> str | None:
        """``MODULE:FACTORY`` where the model is the user's own."""
        return self.model if FACTORY.fullmatch(self.model) else None

    @property
    def has_convolutions(self) -> bool:
        """Whether the model has convolutions; a user's own may have."""
        return bool(self.factory) or self.model.startswith("conv")

    @property
    def processes(self) -> bool:
        """Whether it trains in several processes, one for each GPU, under torchrun's agent."""
        return self.parallel in ("ddp", "fsdp")

    def preset(self, device_type: str) -> str:
        """Return the preset that ``model`` means on ``device_type`` (``cpu`` or ``cuda``)."""
        return PRESETS[self.model][device_type] if self.model in PRESETS else self.model

    def flags(self, with_model: bool = False) -> list[str]:
        """Return the words of a command line that make this configuration.

        Toggles that have their default are left out, except the model ``with_model``.
        """
        usual = LabConfig()
        words: list[str] = []
        for field in fields(self):
            value = getattr(self, field.name)
            named = with_model and field.name == "model"
            if value is not None and (named or value != getattr(usual, field.name)):
                words += BY_NAME[field.name].words(value)
        return words

    def command(self, **changes: object) -> str:
        """Return the shell command that runs this configuration with ``changes``, for messages."""
        return " ".join(["gpuscope", "lab", *replace(self, **changes).flags()])  # type: ignore[arg-type]


def add_toggles(parser: argparse.ArgumentParser, hidden: Collection[Toggle] = ()) -> None:
    """Add every toggle and ``--steps`` to a parser, without a line of help for ``hidden`` ones.

    Values stay text until :meth:`LabConfig.from_arguments` checks them, so that a wrong one is
    answered by the same message everywhere.
    """
    groups = help_groups(parser)
    for toggle in (*TOGGLES, STEPS):
        group = groups.get(toggle.group, parser)
        unset = toggle.text(toggle.default).removeprefix("default ")
        note = f"; on a CPU: {toggle.on_cpu}" if toggle.on_cpu else ""
        choices = f" ({toggle.takes})" if toggle.choices else ""
        text = f"{toggle.help}{choices}; default: {unset}{note}".replace("%", "%%")
        add_toggle(group, toggle, argparse.SUPPRESS if toggle in hidden else text)


def add_toggle(group: argparse._ActionsContainer, toggle: Toggle, text: str) -> None:
    """Add the option of a toggle to a parser or a group of it, with its help."""
    if toggle.yes_no:
        group.add_argument(
            toggle.flag, action=argparse.BooleanOptionalAction, default=None, help=text
        )
    else:
        value = "MODEL" if toggle.factory else "VALUE" if toggle.choices else "N"
        group.add_argument(toggle.flag, metavar=value, help=text)
