"""What stands in place of the devices and charts of a host that has sent no reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from ...store.view import History, HistoryOf, HostView
from ...text import styled
from ...text.styled import Line
from ...text.width import cells as text_cells
from ..cells import fit
from ..charts.load_lanes import gpu_lanes
from ..charts.load_strips import Lane
from ..shell.keymap import key_of
from ..theme import Glyphs
from .findings import NEEDS
from .rows import mark_of
from .summary import HostSummary


def unread_lines(
    one: HostSummary, others: Sequence[HostSummary], names: Mapping[str, str], glyphs: Glyphs,
    cells: int,
) -> list[Line]:  # fmt: skip
    """Return what a host needs to be read, and all that is wrong on the ``others``."""
    name = names.get(one.key, one.name)
    first: Line = [
        (f"{name} has sent no reading yet. ", "text"),
        ("Its GPUs and their load appear here with the first one. It needs", "muted"),
    ]
    lines = list(styled.wrap(first, cells))
    for text in NEEDS:
        lines += styled.hang([("  · ", "faint")], [(text, "muted")], cells)
    again: Line = [
        ("  · ", "faint"),
        (key_of("connect_again"), "accent"),
        (" tries again now", "muted"),
    ]
    lines += [again, [], [("Wrong on the other hosts", "title")]]
    wrong = [host for host in others if host.key != one.key and host.words]
    width = max((len(names.get(host.key, host.name)) for host in wrong), default=0)
    for host in wrong:
        for at, word in enumerate(host.words):
            glyph, token = mark_of(word.grade, glyphs)
            shown = names.get(host.key, host.name) if at == 0 else ""
            head: Line = [(f"{glyph} ", token), (f"{shown:{width}}  ", "text")]
            lines += styled.hang(head, [(word.named, "text")], cells)
    asked = [host for host in others if host.key != one.key]
    read = [host for host in asked if host.answered]
    if not wrong and len(read) < len(asked):
        so_far = "nothing so far: " if read else ""
        lines.append([(f"{so_far}{len(read)} of {len(asked)} have answered", "muted")])
    elif not wrong:
        lines.append([(f"{glyphs.ok} ", "ok"), ("nothing", "muted")])
    return [styled.cut(line, cells) for line in lines]


def lanes_of_hosts(
    hosts: Sequence[tuple[str, HostView]],
    history_of: Callable[[HostView], HistoryOf],
    window: float,
    rows: int,
) -> list[Lane]:
    """Return the load of the GPUs of these hosts with their names, in at most ``rows`` lanes.

    Moments are seconds before the newest sample of each host, whose clocks differ. Where there are
    more GPUs than rows, each host has one lane: the mean of its GPUs.
    """
    found: list[tuple[str, list[Lane]]] = []
    width = max((text_cells(name) for name, _ in hosts), default=0)
    for name, host in hosts:
        lanes: list[Lane] = []
        for device in host.devices:
            if device.gone is None:
                index = device.definition.index
                label = f"{fit('' if lanes else name, width)}  GPU {index}"
                (lane,) = gpu_lanes(history_of(host), host, [device], window, 1)
                moved = _before_now(lane, host.sampled_seconds or 0.0)
                lanes.append(replace(moved, label=label, first=not lanes))
        found += [(name, lanes)] if lanes else []
    if sum(len(lanes) for _, lanes in found) > rows:
        return [Lane(name, _mean(lanes)) for name, lanes in found][:rows]
    return [lane for _, lanes in found for lane in lanes]


def _before_now(lane: Lane, now: float) -> Lane:
    def shifted(moment: float | None) -> float | None:
        return None if moment is None else moment - now

    past = lane.history
    history = History(tuple(second - now for second in past.seconds), past.values)
    wasted, begins = shifted(lane.wasted_since), shifted(lane.begins)
    return replace(lane, history=history, wasted_since=wasted, begins=begins)


def _mean(lanes: Sequence[Lane]) -> History:
    """Return the mean of the lanes of one host in every second.

    What the driver kept from before the look is of other moments for each GPU.
    """
    found = defaultdict[float, list[float]](list)
    for lane in lanes:
        for second, value in zip(lane.history.seconds, lane.history.values, strict=True):
            if value is not None:
                found[float(round(second))].append(value)
    return History(tuple(sorted(found)), tuple(fmean(found[second]) for second in sorted(found)))
