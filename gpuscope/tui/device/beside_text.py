"""This module says what a broad terminal has room for beside a GPU: its training and its peers."""

from __future__ import annotations

from ...model.device_state import NEARLY_FULL, judge, mute, processes_on
from ...store.view import DeviceView, HistoryOf, HostView, no_history
from ...text import styled
from ...text.styled import Line
from ...text.units import amount_text, percent_text
from ..cells import fit
from ..processes.idle import BUSY
from ..processes.training_text import memory_lines, training_lines
from ..shared.device_bar import memory_bar
from ..shared.device_state_text import glyph_of, in_short, token_of
from ..theme import UNICODE, Glyphs
from ..widgets.bars import meter

TRACK = 12
MOST_PEERS = 16


def training_here(
    host: HostView, device: DeviceView, cells: int, glyphs: Glyphs = UNICODE
) -> list[Line]:
    """Return what the training on a device does, and its memory; none without a probe."""
    inside = [one for one in processes_on(host, device) if one.trainer is not None]
    if not inside:
        return []
    held = {use.process: use.number("used_bytes") or 0.0 for use in device.uses}
    largest = max(inside, key=lambda one: held.get(one.id, 0.0))
    return [
        *training_lines(host, largest, BUSY, cells, glyphs),
        *memory_lines(host, largest, cells, glyphs),
    ]


def peer_lines(
    host: HostView,
    device: DeviceView,
    cells: int,
    glyphs: Glyphs = UNICODE,
    history: HistoryOf = no_history,
) -> list[Line]:
    """Return a line for each GPU of the host, with the one that is looked at marked.

    What is odd about one GPU shows beside the others.
    """
    devices = [one for one in host.devices if one.gone is None]
    if len(devices) < 2:
        return []
    title = (
        f"  {'GPU':<4}{'UTIL':<{TRACK + 8}}{'SM':>6}{'TENSOR':>8}  "
        f"{'MEMORY GiB':<{TRACK + 10}}{'POWER':>8}{'TEMP':>7}  STATE"
    )
    at = devices.index(device) if device in devices else 0
    first = max(0, min(at - MOST_PEERS // 2, len(devices) - MOST_PEERS))
    rows = [
        _peer(host, one, one is device, glyphs, history)
        for one in devices[first : first + MOST_PEERS]
    ]
    lines: list[Line] = [[(title, "muted")], *rows]
    more = len(devices) - len(rows)
    if more:
        lines.append([(f"  and {more} more", "muted")])
    return [styled.cut(line, cells) for line in lines]


def _peer(
    host: HostView, device: DeviceView, here: bool, glyphs: Glyphs, history: HistoryOf
) -> Line:
    n, total = device.number, device.definition.total_bytes
    state = judge(host, device, history)
    token = "title" if here else "text"
    load, used = (None, None) if mute(device) else (n("utilization_percent"), n("used_bytes"))
    full = 100 * used / total if used is not None and total else None
    tight = full is not None and full > 100 * NEARLY_FULL

    def share(column: str) -> str:
        value = n(column)
        return "–" if value is None else percent_text(value / 100, whole=True)

    def amount(column: str, unit: str) -> str:
        value = n(column)
        return "–" if value is None else f"{value:.0f}{unit}"

    sizes = "–" if used is None else amount_text(used)
    return [
        (f"{glyphs.cursor if here else ' '} ", "accent"),
        (f"{device.definition.index:<4}", token),
        *meter(load, TRACK, "series1", glyphs, slim=True),
        (f"{'–' if load is None else percent_text(load / 100, whole=True):>6}  ", token),
        (f"{share('sm_active_percent'):>6}{share('tensor_active_percent'):>8}  ", token),
        *memory_bar(host, device).draw(TRACK, glyphs),
        (f" {fit(sizes, 8, 'right')} ", "warn" if tight else token),
        (f"{amount('power_watts', ' W'):>8}{amount('temperature_celsius', ' °C'):>7}  ", token),
        (f"{glyph_of(state, glyphs)} {state.word}", token_of(state)),
        (f"  {in_short(state.reason)}" if state.reason else "", "muted"),
    ]
