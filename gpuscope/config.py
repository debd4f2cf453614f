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
from .model.setting import declared, out_of_range, setting, written
from .text.units import bytes_text
from .wire.files import open_regular

MAX_CONFIG_BYTES = 64 * 1024
THEMES = ("dark", "light", "colour-blind", "ansi")


@dataclass(frozen=True, slots=True)
class Settings:
    """What a user may set.

    ``None`` means: decided by the situation (a link over ssh is slower than a local one).
    """

    theme: str = setting(
        "dark", "the colours; key t chooses others, which are remembered", "light", choices=THEMES
    )
    rate_hz: float | None = setting(
        None, "how often the GPUs and trainings are sampled, per second", 2.0,
        limits=(0.1, 10.0), unit="Hz", means={None: "1 Hz"},
    )  # fmt: skip
    charts_seconds: float | None = setting(
        None, "the time between two updates of a chart", 2.0,
        limits=(0.5, 60.0), unit="s", means={None: "2 s here, 5 s over ssh"},
    )  # fmt: skip
    mouse: bool | None = setting(
        None, "take clicks and the wheel from the terminal", False,
        means={None: "taken here, not over ssh", True: "taken", False: "not taken"},
    )  # fmt: skip
    ascii: bool = setting(
        False, "draw with ASCII characters only", True, means={True: "ASCII", False: "Unicode"}
    )
    readonly: bool = setting(
        False, "no signal, attach, snapshot or profile from the screen", True,
        means={True: "only looks", False: "may act"},
    )  # fmt: skip
    redact: bool = setting(
        True, "leave out the arguments of other users' processes", True,
        means={True: "left out", False: "shown"},
    )  # fmt: skip
    on_call: bool = setting(
        False, "gpuscope run --on-call by default: ready for a post-mortem", True,
        means={True: "by default", False: "if asked"},
    )  # fmt: skip
    alerts: AlertSettings = field(default_factory=AlertSettings)


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
    known = declared(Settings)
    for key, value in table.items():
        if key == "alerts":
            alerts, wrong = alerts_settings.read(value)
            settings = replace(settings, alerts=alerts)
            problems += [
                f"{path}:{_line_of(text, name)}: alerts.{name}: {why}" for name, why in wrong
            ]
            continue
        problem = _problem(key, value)
        if problem:
            problems.append(f"{path}:{_line_of(text, key)}: {key}: {problem}")
        else:
            change: dict[str, Any] = {key: float(value) if known[key].limits else value}
            settings = replace(settings, **change)
    return settings, problems


def _problem(key: str, value: Any) -> str:
    """What is wrong with this value, "" when it is fine."""
    one = declared(Settings).get(key)
    if one is None:
        known = ", ".join(field.name for field in fields(Settings))
        return f"no such setting (there are: {known}); ignored"
    if one.limits is not None:
        return out_of_range(value, one.limits, "using the default")
    if one.choices:
        if value not in one.choices:
            return f"must be one of {one.allowed}; using the default"
    elif not isinstance(value, bool):
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


def example() -> str:
    """Return a file with every setting, each with what it does and what it may be."""
    lines = []
    for head, kind in (("", Settings), ("[alerts]", AlertSettings)):
        if head:
            lines += ["", f"{head}  # only what is named here is watched"]
        for name, one in declared(kind).items():
            note = one.does if isinstance(one.example, bool) else f"{one.does}; {one.allowed}"
            if kind is Settings and None in one.means:
                note += f"; by default {one.means[None]}"
            line = f"{name} = {written(one.example)}"
            lines += [f"{line:26}# {note}"] if len(line) < 26 else [f"# {note}", line]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(example(), end="")
