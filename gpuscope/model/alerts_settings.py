"""The table ``[alerts]`` of the config file.

Only what it names is watched; without it there are no alerts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from .setting import NOT_WATCHED, declared, out_of_range, setting

MAX_WORDS, MAX_WORD_CHARS = 32, 1024


def _watch(does: str) -> Any:
    return setting(False, f"alert when {does}", True, means=NOT_WATCHED)


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """None and False: not watched."""

    temperature_celsius: float | None = setting(
        None, "alert when a GPU is this hot", 87,
        limits=(20.0, 120.0), unit="°C", means=NOT_WATCHED,
    )  # fmt: skip
    memory_percent: float | None = setting(
        None, "alert when so much of a GPU's memory is used", 97,
        limits=(1.0, 100.0), unit="%", means=NOT_WATCHED,
    )  # fmt: skip
    throttle: bool = _watch("heat, power or hardware lowers a GPU's clock")
    ecc: bool = _watch("a GPU has an uncorrected memory error")
    xid: bool = _watch("the driver reports an error of a GPU (an XID)")
    lost: bool = _watch("a GPU is lost, hangs or has failed")
    stall: bool = _watch("a training of mine makes no more steps")
    not_finite: bool = _watch("the loss of a training of mine stays NaN or infinite")
    slower: bool = _watch("a training of mine becomes slower and stays so")
    spinning: bool = _watch("a GPU waits for a rank that hangs")
    filling: bool = _watch("a training is about to run out of GPU memory")
    starved: bool = _watch("a GPU waits for the input of its training")
    tensor_idle: bool = _watch("tensor cores are idle on a busy GPU: float32?")
    gone: bool = _watch("a training or GPU process of mine ends")
    for_seconds: float = setting(
        10.0, "how long it must last to alert, and be over to clear", 10,
        limits=(0.0, 3600.0), unit="s",
    )  # fmt: skip
    bell: bool = setting(
        False, "ring the terminal's bell at each alert", True,
        means={True: "rings", False: "silent"},
    )  # fmt: skip
    on_alert: tuple[str, ...] = setting(
        (), "run this at each alert; its stdin gets the alert as JSON",
        ["notify-send", "gpuscope"],
        takes="a list of words, which no shell reads", means={(): "no command"},
    )  # fmt: skip
    on_alert_seconds: float = setting(
        10.0, "how long that command may run before it is stopped", 10,
        limits=(0.5, 600.0), unit="s",
    )  # fmt: skip

    @property
    def any(self) -> bool:
        """Whether something is watched."""
        return (
            self.temperature_celsius is not None
            or self.memory_percent is not None
            or any(getattr(self, name) for name in WATCHED)
        )


WATCHED = (
    "throttle", "ecc", "xid", "lost", "stall", "not_finite", "slower", "spinning", "filling",
    "starved", "tensor_idle", "gone",
)  # fmt: skip
"""Settings that are true where something is watched."""


def read(table: object) -> tuple[AlertSettings, list[tuple[str, str]]]:
    """Return the settings, and (key, what is wrong and what to do) for each wrong one.

    A wrong one is then not watched.
    """
    if not isinstance(table, Mapping):
        return AlertSettings(), [
            ("alerts", "must be a table: write [alerts] and its settings below; no alerts now")
        ]
    settings, problems = AlertSettings(), []
    known = declared(AlertSettings)
    for key, value in table.items():
        problem = _problem(key, value)
        if problem:
            problems.append((str(key), problem))
        else:
            change: dict[str, Any] = {key: float(value) if known[key].limits else value}
            if key == "on_alert":
                change = {key: tuple(value)}
            settings = replace(settings, **change)
    return settings, problems


def _problem(key: str, value: Any) -> str:
    known = declared(AlertSettings)
    if key not in known:
        return f"no such alert setting (there are: {', '.join(known)}); ignored"
    limits = known[key].limits
    if limits is not None:
        return out_of_range(value, limits, "not watched until it is")
    if key == "on_alert":
        if isinstance(value, str):
            return (
                "must be a list of words, because no shell splits it: "
                f'["{value.split(" ")[0][:40]}", …]; not run'
            )
        words = isinstance(value, list) and 0 < len(value) <= MAX_WORDS
        if not words or not all(
            isinstance(w, str) and w and "\0" not in w and len(w) <= MAX_WORD_CHARS for w in value
        ):
            return 'must be a list of words, such as ["notify-send", "gpuscope"]; not run'
    elif not isinstance(value, bool):
        return "must be true or false; not watched until it is"
    return ""
