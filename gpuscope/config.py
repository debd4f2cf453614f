"""Settings: one dataclass, read from ``$XDG_CONFIG_HOME/gpuscope/config.toml``.

The file is only ever read.

A key that is wrong is named with file, line and key; its default holds, and everything else in the
file still counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from . import paths
from .model import alerts_settings
from .model.alerts_settings import AlertSettings
from .text.units import bytes_text
from .wire.files import open_regular

MAX_CONFIG_BYTES = 64 * 1024
THEMES = ("dark", "light", "colour-blind", "ansi")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set.

    ``None`` means: decided by the situation (a link over ssh is slower than a local one).
    """

    rate_hz: float | None = None  # samples a second asked of the agent, 0.1..10
    charts_seconds: float | None = None  # between two drawings of a chart, 0.5..60
    theme: str = "dark"  # one of THEMES
    mouse: bool | None = None
    redact: bool = True  # arguments of other users' processes
    ascii: bool = False  # nothing but ASCII is drawn
    readonly: bool = False  # no signal, attach, snapshot or profile from the screen
    on_call: bool = False  # gpuscope run sets what a post-mortem needs
    alerts: AlertSettings = field(default_factory=AlertSettings)


_RANGES = {"rate_hz": (0.1, 10.0), "charts_seconds": (0.5, 60.0)}
_CHOICES = {"theme": THEMES}
_BOOLEANS = ("mouse", "redact", "ascii", "readonly", "on_call")


def config_path() -> Path:
    """Where the file is looked for; it need not exist."""
    return paths.config_folder() / "config.toml"


def load(path: Path | None = None) -> tuple[Settings, list[str]]:
    """The settings, and one line for each thing in the file that is wrong.

    Never raises for what a file holds.
    """
    path = path or config_path()
    try:
        with open_regular(path) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
        if len(data) > MAX_CONFIG_BYTES:
            return Settings(), [
                f"{path}: larger than {bytes_text(MAX_CONFIG_BYTES)}, not read; using the defaults"
            ]
        text = data.decode("utf-8")
    except FileNotFoundError:
        return Settings(), []
    except (OSError, UnicodeDecodeError) as error:
        return Settings(), [f"{path}: not readable ({_reason(error)}); using the defaults"]
    from . import toml

    try:
        table = toml.loads(text)
    except toml.TOMLDecodeError as error:
        return Settings(), [f"{path}: not TOML: {error}; using the defaults"]
    return _checked(table, text, path)


def _checked(table: dict[str, Any], text: str, path: Path) -> tuple[Settings, list[str]]:
    settings, problems = Settings(), []
    known = [one.name for one in fields(Settings)]
    for key, value in table.items():
        if key == "alerts":
            alerts, wrong = alerts_settings.read(value)
            settings = replace(settings, alerts=alerts)
            problems += [
                f"{path}:{_line_of(text, name)}: alerts.{name}: {why}" for name, why in wrong
            ]
            continue
        problem = _problem(key, value, known)
        if problem:
            problems.append(f"{path}:{_line_of(text, key)}: {key}: {problem}")
        else:
            change: dict[str, Any] = {key: float(value) if key in _RANGES else value}
            settings = replace(settings, **change)
    return settings, problems


def _problem(key: str, value: Any, known: list[str]) -> str:
    """What is wrong with this value, "" when it is fine."""
    if key not in known:
        return f"no such setting (there are: {', '.join(known)}); ignored"
    if key in _RANGES:
        return alerts_settings.out_of_range(value, _RANGES[key], "using the default")
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            return f"must be one of {', '.join(_CHOICES[key])}; using the default"
    elif key in _BOOLEANS and not isinstance(value, bool):
        return "must be true or false; using the default"
    return ""


def _line_of(text: str, key: str) -> int:
    pattern = re.compile(rf"""^\s*\[*["']?{re.escape(key)}["']?\s*(=|\]|\.)""")
    for number, line in enumerate(text.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1


def _reason(error: Exception) -> str:
    return (error.strerror or "") if isinstance(error, OSError) else "it is not UTF-8"
