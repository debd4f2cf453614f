"""This module says what ran here before, and what could run here, where nothing trains."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from ...model.device_state import broken, judge, processes_on
from ...store.view import HostView
from ...text import styled
from ...text.numbers import number
from ...text.ranges import ranges_text
from ...text.styled import Line
from ...text.units import bytes_text, short_age_text
from ..cells import fit

if TYPE_CHECKING:
    from ...lab.ledger import Entry
    from ..background.unseen_deaths import DeadTrainer

AGE_CELLS, LEAST_CELLS = 4, 24
MOST_NAMES = 12
"""Hosts of the ssh configuration that are named; the dialog for another host lists more."""
USUAL_MODEL = "gpt-small"
NO_DEATHS = "no trainer of yours failed or was killed here in the last day"


class Idea(NamedTuple):
    """A command, and what it is for."""

    command: str
    does: str


ANYWHERE = (
    Idea("gpuscope doctor FILE", "a script, a log, a traceback, a snapshot, a recording"),
    Idea("gpuscope snapshot FILE", "a snapshot of torch's memory: which lines hold how much"),
)


def ideas(host: HostView) -> list[Idea]:
    """Return what can be done on a host on which nothing trains, the likeliest first."""
    return [*(_with_gpus(host) if host.devices else _without_gpus()), *ANYWHERE]


def _with_gpus(host: HostView) -> list[Idea]:
    free = [
        (device.definition.index, device.number("free_bytes"))
        for device in host.devices
        if judge(host, device).word == "free"
    ]
    found = []
    if free:
        index, room = free[0]
        size = f", {bytes_text(room)}" if room is not None else ""
        start = f"CUDA_VISIBLE_DEVICES={index} gpuscope run train.py"
        found.append(Idea(start, f"your training on a free GPU{size}, with a probe in it"))
    else:
        found.append(Idea("gpuscope run train.py", "your own training, with a probe in it"))
        found.append(Idea("gpuscope wait --free 40GiB", "return once a GPU has this much free"))
    if len(free) > 1:
        start = f"gpuscope run -- torchrun --nproc-per-node {len(free)} train.py"
        indices = ranges_text([index for index, _ in free])
        found.append(Idea(start, f"the same on GPU {indices}, one rank each"))
    others = {
        process.key: process
        for device in host.devices
        if broken(device) is None
        for process in processes_on(host, device)
    }
    for process in list(others.values())[:1]:
        name = process.definition.name or "a process"
        does = f"look inside {name} of {process.definition.user or 'an unknown owner'}"
        found.append(Idea(f"gpuscope attach {process.definition.pid}", does))
    found.append(Idea("gpuscope lab", "a small training to try settings with (tab 5)"))
    gpu = host.devices[0].definition.index
    does = "the peak memory of a model on this GPU, without running it"
    found.append(Idea(f"gpuscope predict --model {USUAL_MODEL} --gpu {gpu}", does))
    return found


def _without_gpus() -> list[Idea]:
    predicts = "whether a model fits on a GPU, without one"
    return [
        Idea("gpuscope attach user@host", "another machine through ssh; nothing to install there"),
        Idea("gpuscope run train.py", "your own training on the CPU, with a probe in it"),
        Idea("gpuscope lab", "a small training to try settings with, on the CPU (tab 5)"),
        Idea(f"gpuscope predict --model {USUAL_MODEL} --gpu 4090", predicts),
        Idea("gpuscope replay FILE", "a recording; see demos/recordings/"),
    ]


def idea_lines(found: Sequence[Idea], names: Sequence[str], width: int, rows: int) -> list[Line]:
    """Return commands with what they do, and the hosts of the ssh configuration.

    Where there are ``rows`` for it each has a line for the command and one for what it does.
    """
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    hosts: list[Line] = []
    if names:
        label = ("in ~/.ssh/config  ", "faint")
        hosts = styled.hang_lines([[label, (", ".join(names[:MOST_NAMES]) + more, "text")]], width)
    cells = max(len(idea.command) for idea in found)
    told = max(len(idea.does) for idea in found)
    lines: list[Line] = []
    if rows >= 2 * len(found) + len(hosts) and cells + 2 + told > width:
        apart = rows >= 3 * len(found) + len(hosts)
        for idea in found:
            lines += [[(idea.command, "accent")], [("    ", "text"), (idea.does, "muted")]]
            lines += [[]] if apart else []
    else:
        told = width - cells - 2  # a few letters of a sentence say nothing
        for idea in found:
            does = idea.does if told >= LEAST_CELLS else ""
            lines.append([(fit(idea.command, cells), "accent"), ("  ", "text"), (does, "muted")])
    return [styled.cut(line, width) for line in (*lines, *hosts)][: max(rows, 0) or None]


def earlier_lines(
    deaths: Sequence[DeadTrainer] | None,
    runs: Sequence[Entry] | None,
    width: int,
    rows: int,
    ended_here: str = "",
) -> list[Line]:
    """Return what ran on this machine before, the newest first, as ``rows`` lines at most.

    ``deaths`` are the newest trainers that ended badly; ``ended_here`` says how many in all;
    ``runs`` are those of the Lab. None means that they are not read yet.
    """
    dated: list[tuple[float, Line]] = []
    for dead in deaths or ():
        dated.append((dead.ended, [("▲ ", "warn"), (dead.words, "text")]))
    for entry in runs or ():
        dated.append((entry.at, _run(entry)))
    dated.sort(key=lambda one: -one[0])
    now = time.time()
    lines: list[Line] = []
    for at, line in dated:
        age = fit(short_age_text(max(now - at, 0.0)), AGE_CELLS, "right")
        lines.append([(f"{age} ago  ", "faint"), *line])
    if ended_here and rows > len(dated):
        lines.insert(0, [(ended_here, "muted")])
    if deaths is not None and not deaths and not ended_here:
        lines += styled.wrap([(NO_DEATHS, "muted")], width)
    if runs is not None and not runs:
        lines.append([("no run of the Lab yet", "muted")])
    whole = styled.hang_lines(lines, width, 2)
    if len(whole) > rows:  # more of them say more than the whole of a few
        whole = [styled.cut(line, width) for line in lines]
    return whole[:rows] or [[("looking for what ran here before", "muted")]]


def _run(entry: Entry) -> Line:
    """Return a run of the Lab with its figures."""
    if entry.failure:
        return [("▲ ", "warn"), (f"Lab {entry.name}: ", "text"), (entry.failure, "muted")]
    parts = []
    for key, unit in (("steps", "steps"), ("samples_per_second", "samples/s")):
        value = number(entry.document.get(key))
        if value is not None:
            parts.append(f"{value:,.0f} {unit}")
    peak, loss = (entry.document.get(key) for key in ("peak_allocated_bytes", "loss_last"))
    parts += [f"peak {bytes_text(peak)}"] if isinstance(peak, (int, float)) and peak else []
    parts += [f"loss {loss:.4g}"] if isinstance(loss, float) else []
    model = entry.document.get("preset") or (entry.config.model if entry.config else "")
    what = " · ".join(filter(None, (str(model), entry.device or "", *parts)))
    return [("● ", "ok"), (f"Lab {entry.name}: ", "text"), (what, "muted")]
