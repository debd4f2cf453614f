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
from ..model.fullest_account import WORTH_SAYING_BYTES, account_at_the_fullest
from ..model.memory_account import Account, Part, inside_torch, largest_freeable, on_cpu
from ..model.memory_layers import of_the_card
from ..text.units import bytes_text
from ..wire.frames import Unknown
from . import findings, markup

if TYPE_CHECKING:
    from ..store.view import AllocView, DeviceView, HistoryOf, HostView, TrainerView

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
        complete = watched.first(TIMEOUT_SECONDS)
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
) -> tuple[list[markup.Waterfall], list[str]]:
    """Return a waterfall for each device that the process uses, and what is to be said besides."""
    devices = {device.id: device for device in host.devices}
    allocators = [a for a in trainer.allocators if a.gone is None] if trainer is not None else []
    tables = [_of_device(host, trainer, devices.get(a.gpu or -1), a, history) for a in allocators]
    notes = [] if tables else [_why_none(host, trainer)]
    used = {a.gpu for a in allocators}
    others = [device for device in host.devices if device.id not in used]
    for device in others[:MAX_OTHER_DEVICES]:
        taken = device.reading("used_bytes")
        amount = (
            taken.text if isinstance(taken, Unknown) else bytes_text(device.number("used_bytes"))
        )
        notes.append(
            f"{_name(device)}: {amount} used, {of_the_card(device)}; none of it by torch here."
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
    process = next((p for p in host.processes if p.id == trainer.process), None)
    resident = process.number("rss_bytes") if process is not None else None
    held = f" The process uses {bytes_text(resident)} of host memory." if resident else ""
    version = trainer.definition.torch_version
    why = "torch is not imported here"
    if version is not None:
        why = f"torch {version} has not initialised CUDA here"
    return f"This process has no device memory through torch: {why}.{held}"


def _name(device: DeviceView) -> str:
    return f"GPU {device.definition.index} {device.definition.name or ''}".rstrip()


def _of_device(
    host: HostView,
    trainer: TrainerView | None,
    device: DeviceView | None,
    allocator: AllocView,
    history: HistoryOf,
) -> markup.Waterfall:
    ordinal = allocator.definition.ordinal
    if device is not None:
        found, _, seconds = account_at_the_fullest(host, device, allocator, history)
        title = f"{_name(device)} (cuda:{ordinal})"
        if seconds >= 1:
            title += f": the fullest moment of {seconds:.0f} s"
        notes = [of_the_card(device), *_advice(found), *found.notes]
        return _waterfall(title, found, "used (= nvidia-smi)", notes)
    if ordinal >= 0:
        parts, notes = inside_torch(trainer, allocator)
        why = "Which GPU this is, and what else uses it, is unknown here."
        return _waterfall(f"cuda:{ordinal}", _added(parts), "in torch", [*notes, why])
    notes = ["On a CPU torch has no caching allocator and keeps no statistics."]
    parts = on_cpu(allocator)
    reasons = [part.size.text for part in parts if isinstance(part.size, Unknown)]
    if len(reasons) == len(parts):
        notes.append(f"Parameters, optimizer state and gradients are unknown: {reasons[0]}.")
        return markup.Waterfall("CPU", [], None, notes)
    return _waterfall("CPU, as far as the probe counts", _added(parts), "known", notes)


def _added(parts: list[Part]) -> Account:
    return Account(parts, sum(part.known for part in parts if not part.inside))


def _advice(found: Account) -> list[str]:
    largest = largest_freeable(found.parts)
    if largest is None:
        return [f"Nothing of {bytes_text(WORTH_SAYING_BYTES)} or more to free."]
    amount = bytes_text(largest.known)
    return [f"Biggest saving: {largest.name}, {amount}: {largest.free_by}."]


def _waterfall(title: str, found: Account, whole: str, notes: list[str]) -> markup.Waterfall:
    known = not isinstance(found.total, Unknown)
    scale = float(found.total) if isinstance(found.total, (int, float)) else 0.0
    scale = scale or max((part.known for part in found.parts), default=0.0)

    def bar(part: Part) -> markup.Bar:
        if isinstance(part.size, Unknown):
            return markup.Bar(part.name, f"unknown: {part.size.text}", None, "", bool(part.inside))
        about = "≈ " if part.about else ""
        share = part.known / scale if scale else None
        value = about + bytes_text(part.size)
        return markup.Bar(part.name, value, share, part.token, bool(part.inside))

    text = found.total.text if isinstance(found.total, Unknown) else bytes_text(found.total)
    total = markup.Bar(whole, text, 1.0 if known and scale else None)
    others = [f"{part.name}: {bytes_text(part.known)}" for part in found.beside]
    return markup.Waterfall(title, [bar(part) for part in found.parts], total, notes + others)
