"""Print this machine's GPUs and trainings in one line: ``gpuscope --oneline``.

It is for a status bar, and looks like ``0 97% 70/140G 61° · 1 free · train.py ◆ input-bound 94 %``.

It has colours only on a terminal and without NO_COLOR, because a status bar would show the escape
sequences. For tmux: ``set -g status-right '#(gpuscope --oneline)'``.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

from ...exit_status import ExitStatus
from ...model.device_state import judge
from ...model.device_trainings import warned_starving
from ...model.job_order import worst_first
from ...model.job_state import job_state
from ...model.late_rank import late_rank
from ...model.pace import pace_of
from ...model.ranks import name_of, pid_of
from ...store.view import DeviceView, HostView, JobView
from ...text.units import GIB, count_text, duration_text, percent_text
from ...wire.clean import clean
from ...wire.frames import Reading, Unknown
from .. import dead_trainers, output
from ..local_look import LocalLook, look
from .devices import document as devices_document

TIMEOUT_SECONDS = 5.0
MAX_DEVICES = 16
MAX_JOBS = 3
_SIGNS = {"bad": "▲ ", "warn": "◆ "}
_COLOURS = {"bad": "31", "warn": "33", "free": "32"}


def run(
    args: argparse.Namespace,
    look: Callable[..., LocalLook] = look,
    out: TextIO | None = None,
    remembered: Callable[[], HostView | None] | None = None,
) -> int:
    """Print the line, once or every ``args.watch`` seconds.

    The exit code is the same as that of ``gpuscope devices``.
    """
    stream, remembered = out or sys.stdout, remembered or _remembered
    colours = output.coloured(stream)
    while True:
        began = time.monotonic()
        host = look(timeout=TIMEOUT_SECONDS).host
        if any(map(_waits_unseen, host.jobs)):
            host = remembered() or host
        problems = devices_document.find_problems(host)
        again = args.watch is not None
        print(line(host, colours, dead_trainers.brief()), file=stream, flush=True)
        if not again:
            return output.exit_code(problems) if host.devices else ExitStatus.UNCHECKED
        time.sleep(max(0.0, args.watch - (time.monotonic() - began)))


def _waits_unseen(job: JobView) -> bool:
    """Tell whether ranks may wait for another of them unseen in the parts of their steps.

    On the CPU the wait is inside of the backward pass. Only the samples of the training threads
    tell it, which the probes remember for some minutes.
    """
    ranks = [one for one in job.trainers if one.gone is None]
    return len(ranks) > 1 and not any(one.definition.cuda for one in ranks)


def _remembered() -> HostView | None:
    """Return this machine with what the probes remember, which takes two seconds longer."""
    from .doctor.live import watch

    return watch(TIMEOUT_SECONDS, ask=True)[0].view().host


def line(host: HostView, colours: bool = False, ended: str = "") -> str:
    """All devices, at most ``MAX_DEVICES`` of them; without a driver the reason in short.

    Then come the trainings, the worst first, at most ``MAX_JOBS`` of them. ``ended`` says how many
    jobs ended badly here, which stands last.
    """
    jobs = _jobs(host)
    parts = [_painted(*_device(host, device), colours) for device in host.devices[:MAX_DEVICES]]
    if not host.devices:
        reason = host.nvml.text if host.nvml is not None else "the driver reports no GPUs"
        parts = ["no GPU" if jobs else f"no GPU: {clean(_short(reason), 80)}"]
    more, more_jobs = len(host.devices) - MAX_DEVICES, len(jobs) - MAX_JOBS
    parts += [f"and {more} more"] if more > 0 else []
    parts += [_painted(*job, colours) for job in jobs[:MAX_JOBS]]
    parts += [f"and {count_text(more_jobs, 'more job')}"] if more_jobs > 0 else []
    return " · ".join([*parts, _painted(ended, "warn", colours)] if ended else parts)


def _jobs(host: HostView) -> list[tuple[str, str]]:
    """Return the trainings that run, the worst first, each with how grave it is."""
    running = [job for job in worst_first(host) if any(one.gone is None for one in job.trainers)]
    titles = Counter(job.title for job in running)
    found = [_job(host, job, titles[job.title] > 1) for job in running]
    return sorted(found, key=lambda job: ("bad", "warn", "ok").index(job[1]))


def _job(host: HostView, job: JobView, is_one_of_many: bool) -> tuple[str, str]:
    """Return what is told of a job. ``is_one_of_many`` says that another of its name runs."""
    living = [one for one in job.trainers if one.gone is None]
    state, title = job_state(host, job), clean(job.title, 30)
    if is_one_of_many:
        title = f"{title} ({pid_of(job)})"
    waits = max(warned_starving(host, one) for one in living)
    if waits and state.kind != "bad":
        return f"{title} {_SIGNS['warn']}input-bound {percent_text(waits, whole=True)}", "warn"
    late = late_rank(living, host=host)
    if late is not None and late.warns and state.kind != "bad":
        share = percent_text(late.share, whole=True)
        return f"{title} {_SIGNS['warn']}{name_of(late.trainer)} late {share}", "warn"
    if state.kind in _SIGNS:
        return f"{title} {_SIGNS[state.kind]}{state.word}", state.kind
    step = pace_of(living).seconds
    return f"{title} {duration_text(step)}/step" if step is not None else title, "ok"


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
    words = [str(index), output.number(load, "%"), size, output.number(heat, "°")]
    return " ".join([*words, state.word] if state.kind in ("warn", "bad") else words), state.kind


def _gib(value: Reading | None) -> str:
    return f"{value / GIB:.0f}" if isinstance(value, (int, float)) else "–"


def _painted(text: str, token: str, colours: bool) -> str:
    code = _COLOURS.get(token)
    return f"\x1b[{code}m{text}\x1b[0m" if colours and code else text
