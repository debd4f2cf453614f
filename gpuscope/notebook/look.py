"""Examine one process for its notebook, in a child process, and answer with what a cell shows.

It is a separate process so that the driver, the store and the doctor take neither time nor memory
from the kernel, and so that no failure here can reach it. Like every viewer, it reads what is
inside torch from the probe's socket.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..cli.commands.doctor import live as doctor_live
from ..doctor import report as reports
from ..doctor import table as pitfalls
from ..doctor.finding import Report
from ..model.memory_layers import of_the_card
from ..report.content import Waterfall
from ..report.memory import device_name, waterfall
from ..store.view import by_id
from ..text.units import bytes_text
from ..wire.frames import Unknown
from . import findings, markup

if TYPE_CHECKING:
    from ..store.view import HistoryOf, HostView, TrainerView

TIMEOUT_SECONDS = 5.0
EVERY_SECONDS = 1.0
JUDGED_SECONDS = 5.0
"""Seconds between two runs of the doctor during a live look."""
MAX_OTHER_DEVICES = 8


def main(words: Sequence[str]) -> None:
    """Write one line of JSON, and in a live look another line for each change.

    ``words`` are the pid, the seconds of a live look (0: look once), and the width of the text in
    columns.
    """
    pid, seconds, width = int(words[0]), float(words[1]), int(words[2])
    parent = os.getppid()
    watched = doctor_live.LocalWatch(ask=True)
    try:
        complete = watched.first(TIMEOUT_SECONDS, pid)
        began, last, judged = time.monotonic(), None, None
        report = Report()
        while os.getppid() == parent:
            now = time.monotonic()
            if judged is None or now - judged >= JUDGED_SECONDS:
                judged = now
                report = _diagnose(watched, pid, complete)
            shown = output(watched.store.view().host, pid, watched.history, report, width)
            if shown != last:
                last = shown
                used = resource.getrusage(resource.RUSAGE_SELF)
                answer = {"html": shown.html, "text": shown.text}
                cost = {"cpu_seconds": used.ru_utime + used.ru_stime}
                print(json.dumps({**answer, **cost}), flush=True)
            if time.monotonic() - began >= seconds:
                return
            time.sleep(EVERY_SECONDS)
            watched.tick()
    finally:
        watched.stop()


def _diagnose(watched: doctor_live.LocalWatch, pid: int, complete: bool) -> Report:
    late = (
        f"Not everything here answered within {TIMEOUT_SECONDS:g} s: the missing parts were "
        "not checked."
    )
    found = doctor_live.judge(watched.store, {pid})
    found += Report(problems=() if complete else (late,))
    return reports.finish(found, pitfalls.load())


def output(
    host: HostView | None, pid: int, history: HistoryOf, report: Report, width: int
) -> markup.Output:
    """Return what a cell shows of a process: its device memory, and the findings."""
    if host is None:
        silent = "Nothing on this machine answered."
        return markup.Output(markup.note_html(silent), silent)
    trainer = next((t for t in host.trainers if t.gone is None and t.definition.pid == pid), None)
    tables, notes = memory(host, trainer, history)
    html = markup.as_html(tables) + "".join(map(markup.note_html, notes))
    text = [markup.as_text(tables).rstrip("\n"), *notes]
    if trainer is not None:
        html += findings.as_html(report)
        text += ["", findings.as_text(report, width)]
    return markup.Output(html, "\n".join(text).lstrip("\n"))


def memory(
    host: HostView, trainer: TrainerView | None, history: HistoryOf
) -> tuple[list[Waterfall], list[str]]:
    """Return a waterfall for each device that the process uses, and what is to be said besides."""
    devices = {device.id: device for device in host.devices}
    allocators = [a for a in trainer.allocators if a.gone is None] if trainer is not None else []
    tables = [waterfall(host, trainer, devices.get(a.gpu or -1), a, history) for a in allocators]
    notes = [] if tables else [_why_none(host, trainer)]
    used = {a.gpu for a in allocators}
    others = [device for device in host.devices if device.id not in used]
    for device in others[:MAX_OTHER_DEVICES]:
        taken = device.reading("used_bytes")
        amount = (
            taken.text if isinstance(taken, Unknown) else bytes_text(device.number("used_bytes"))
        )
        notes.append(
            f"{device_name(device)}: {amount} used, {of_the_card(device)}; "
            "none of it by torch here."
        )
    nvml = host.readings.get("nvml")
    if isinstance(nvml, Unknown):
        notes.append(f"No GPU found here: {nvml.text}.")
    return tables, notes


def _why_none(host: HostView, trainer: TrainerView | None) -> str:
    if trainer is None:
        return (
            "The probe of this process did not answer, so what torch uses is unknown. "
            "GPUSCOPE_DEBUG=1 in the kernel's environment says why."
        )
    process = by_id(host.processes, trainer.process)
    resident = process.number("rss_bytes") if process is not None else None
    held = f" The process uses {bytes_text(resident)} of host memory." if resident else ""
    version = trainer.definition.torch_version
    why = "torch is not imported here"
    if version is not None:
        why = f"torch {version} has not initialised CUDA here"
    return f"This process has no GPU memory through torch: {why}.{held}"
