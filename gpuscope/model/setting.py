"""How a setting of the config file is declared: its default, and all that people are told of it.

What is declared here checks the file, explains the setting on the screen, and makes the example on
the page of settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any

from ..text.numbers import number

NOT_WATCHED = {None: "not watched", False: "not watched", True: "watched"}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is known of a setting beside its default.

    ``does`` is a sentence without its capital and full stop. ``means`` has what true, false, and
    nothing (None or an empty list) mean.
    """

    does: str
    example: object
    limits: tuple[float, float] | None = None
    unit: str = ""
    choices: Sequence[str] = ()
    means: Mapping[object, str] = field(default_factory=dict)
    takes: str = ""
    """What it may be, where neither limits nor choices say it."""

    @property
    def allowed(self) -> str:
        """The values that the file may have, with their unit."""
        if self.limits is not None:
            low, high = self.limits
            return f"{low:g} to {high:g} {self.unit}"
        return ", ".join(self.choices) or self.takes or "true or false"

    def value_text(self, value: object) -> str:
        """Return a value with its unit, or with what it means, in a few words."""
        if isinstance(value, bool):
            return f"{written(value)}: {self.means[value]}"
        if isinstance(value, (int, float)):
            return f"{value:g} {self.unit}"
        if value is None or value == ():
            return self.means[value]
        return " ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def setting(default: Any, does: str, example: object, **more: Any) -> Any:
    """Return a field of a dataclass of settings."""
    return field(default=default, metadata={"setting": Setting(does, example, **more)})


def of(one: Field[Any]) -> Setting | None:
    """Return what is known of a field; None where it is a table of settings itself."""
    return one.metadata.get("setting")


def declared(kind: type[Any]) -> dict[str, Setting]:
    """Return the settings of a dataclass by name."""
    return {one.name: found for one in fields(kind) if (found := of(one)) is not None}


def out_of_range(value: object, limits: tuple[float, float], then: str) -> str:
    """Say what is wrong with a setting that is to be a number within ``limits``.

    The bounds are included, and ``then`` says what happens; "" when it is fine. True and False are
    no numbers here, nor is NaN.
    """
    (low, high), found = limits, number(value)
    if found is None or not low <= found <= high:
        return f"must be a number from {low:g} to {high:g}; {then}"
    return ""


def written(value: object) -> str:
    """Return a value as the file has it."""
    return json.dumps(value, ensure_ascii=False)
