"""Print this machine's GPUs in one line, for a status bar: ``gpuscope --oneline``.

The line looks like ``0 97% 70/140G 61° · 1 free``.

It has colours only on a terminal and without NO_COLOR, because a status bar would show the escape
sequences. For tmux: ``set -g status-right '#(gpuscope --oneline)'``.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from ...exit_status import ExitStatus
from ...model.device_state import judge
from ...store.view import DeviceView, HostView
from ...text.units import GIB
from ...wire.clean import clean
from ...wire.frames import Reading, Unknown
from .. import dead_trainers
from ..local_look import LocalLook, look
from ..output import exit_code
from .devices import document as devices_document

TIMEOUT_SECONDS = 5.0
MAX_DEVICES = 16
_COLOURS = {"bad": "31", "warn": "33", "free": "32"}


def run(
    args: argparse.Namespace, look: Callable[..., LocalLook] = look, out: TextIO | None = None
) -> int:
    """Print the line, once or every ``args.watch`` seconds.

    The exit code is the same as that of ``gpuscope devices``.
    """
    stream = out or sys.stdout
    colours = coloured(stream, os.environ)
    while True:
        began = time.monotonic()
        host = look(timeout=TIMEOUT_SECONDS).host
        problems = devices_document.find_problems(host)
        again = args.watch is not None
        print(line(host, colours, dead_trainers.brief()), file=stream, flush=True)
        if not again:
            return exit_code(problems) if host.devices else ExitStatus.UNCHECKED
        time.sleep(max(0.0, args.watch - (time.monotonic() - began)))


def coloured(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether the line may have colours."""
    return (
        stream.isatty()
        and not environ.get("NO_COLOR")
        and environ.get("TERM", "") not in ("", "dumb")
    )


def line(host: HostView, colours: bool = False, ended: str = "") -> str:
    """All devices, at most ``MAX_DEVICES`` of them; without a driver the reason in short.

    ``ended`` says how many jobs ended badly here, which stands last.
    """
    parts = [_painted(*_device(host, device), colours) for device in host.devices[:MAX_DEVICES]]
    if not host.devices:
        reason = host.nvml.text if host.nvml is not None else "the driver reports no GPUs"
        parts = [f"no GPU: {clean(_short(reason), 80)}"]
    more = len(host.devices) - MAX_DEVICES
    parts += [f"and {more} more"] if more > 0 else []
    return " · ".join([*parts, _painted(ended, "warn", colours)] if ended else parts)


def _short(reason: str) -> str:
    """Return the beginning of a reason that says it all, as there is little room in a status bar.

    What follows are its next step, an explanation in parentheses, and the file it was read from.
    """
    sentence = re.split(r"\. | \(", reason, maxsplit=1)[0]
    words = sentence.partition(": ")[0]
    return (words if " " in words else sentence).removesuffix(" here")


def _device(host: HostView, device: DeviceView) -> tuple[str, str]:
    get: Callable[[str], Any] = device.readings.get
    index, total = device.definition.index, device.definition.total_bytes
    used, load, heat = get("used_bytes"), get("utilization_percent"), get("temperature_celsius")
    state = judge(host, device)
    if state.word == "free" or (isinstance(used, Unknown) and isinstance(load, Unknown)):
        return f"{index} {state.word}", "free" if state.word == "free" else "bad"
    size = f"{_gib(used)}/{_gib(total)}G"
    words = [str(index), _number(load, "%"), size, _number(heat, "°")]
    return " ".join([*words, state.word] if state.kind in ("warn", "bad") else words), state.kind


def _number(value: Reading | None, unit: str) -> str:
    return f"{value:.0f}{unit}" if isinstance(value, (int, float)) else "–"


def _gib(value: Reading | None) -> str:
    return f"{value / GIB:.0f}" if isinstance(value, (int, float)) else "–"


def _painted(text: str, token: str, colours: bool) -> str:
    code = _COLOURS.get(token)
    return f"\x1b[{code}m{text}\x1b[0m" if colours and code else text
