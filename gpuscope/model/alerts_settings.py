"""The table ``[alerts]`` of the config file.

Only what it names is watched; without it there are no alerts.

::

    [alerts]
    temperature_celsius = 87            # of a device's core
    memory_percent = 97                 # of a device
    throttle = true                     # its clock is held down by heat, power or hardware
    ecc = true                          # uncorrected memory errors
    xid = true                          # the driver reported an error of a device
    lost = true                         # no program can rely on a device: it is lost, hangs, has failed
    stall = true                        # a trainer of mine makes no step
    slower = true                       # steps of a trainer of mine take longer than before, to stay
    spinning = true                     # a device waits for a rank that hangs
    filling = true                      # the training on a device is about to run out of memory
    starved = true                      # a device waits for the input of its training
    tensor_idle = true                  # a device works hard beside idle tensor cores
    gone = true                         # a trainer or a GPU process of mine ended
    for_seconds = 10                    # so long must it last before it fires, and be over before it clears
    bell = true
    on_alert = ["notify-send", "gpuscope"]   # started without a shell; the alert is on its standard input, as JSON
    on_alert_seconds = 10               # then it is ended
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

MAX_WORDS, MAX_WORD_CHARS = 32, 1024


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """None and False: not watched."""

    temperature_celsius: float | None = None
    memory_percent: float | None = None
    throttle: bool = False
    ecc: bool = False
    xid: bool = False
    lost: bool = False
    stall: bool = False
    slower: bool = False
    spinning: bool = False
    filling: bool = False
    starved: bool = False
    tensor_idle: bool = False
    gone: bool = False
    for_seconds: float = 10.0
    bell: bool = False
    on_alert: tuple[str, ...] = ()
    on_alert_seconds: float = 10.0

    @property
    def any(self) -> bool:
        """Whether something is watched."""
        return (
            self.temperature_celsius is not None
            or self.memory_percent is not None
            or any(getattr(self, name) for name in WATCHED)
        )


WATCHED = (
    "throttle", "ecc", "xid", "lost", "stall", "slower", "spinning", "filling", "starved",
    "tensor_idle", "gone",
)  # fmt: skip
"""Settings that are true where something is watched."""
RANGES = {
    "temperature_celsius": (20.0, 120.0),
    "memory_percent": (1.0, 100.0),
    "for_seconds": (0.0, 3600.0),
    "on_alert_seconds": (0.5, 600.0),
}


def read(table: object) -> tuple[AlertSettings, list[tuple[str, str]]]:
    """Return the settings, and (key, what is wrong and what to do) for each wrong one.

    A wrong one is then not watched.
    """
    if not isinstance(table, Mapping):
        return AlertSettings(), [
            ("alerts", "must be a table: write [alerts] and its settings below; no alerts now")
        ]
    settings, problems = AlertSettings(), []
    known = [field.name for field in fields(AlertSettings)]
    for key, value in table.items():
        problem = _problem(key, value, known)
        if problem:
            problems.append((str(key), problem))
        else:
            change: dict[str, Any] = {key: float(value) if key in RANGES else value}
            if key == "on_alert":
                change = {key: tuple(value)}
            settings = replace(settings, **change)
    return settings, problems


def out_of_range(value: object, limits: tuple[float, float], then: str) -> str:
    """Say what is wrong with a setting that is to be a number within ``limits``.

    The bounds are included, and ``then`` says what happens; "" when it is fine. True and False are
    no numbers here, nor is NaN.
    """
    low, high = limits
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        return f"must be a number from {low:g} to {high:g}; {then}"
    return ""


def _problem(key: str, value: Any, known: list[str]) -> str:
    if key not in known:
        return f"no such alert setting (there are: {', '.join(known)}); ignored"
    if key in RANGES:
        return out_of_range(value, RANGES[key], "not watched until it is")
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
