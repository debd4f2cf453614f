"""Say in a few lines what a host's processor and memory do."""

from __future__ import annotations

from ...store.view import HistoryOf, HostView
from ...text import styled
from ...text.styled import Line
from ...text.units import bytes_text, percent_text
from ..cells import fit
from ..charts.bins import Bins
from ..charts.spark import spark
from ..theme import Glyphs
from ..widgets.bars import meter
from .job_series import missing

LABEL, VALUE, WORDS = 9, 7, 27
COURSE_ROWS = 3
FULL_PERCENT = 95.0
"""Of the host's memory: what is beyond may be ended by the kernel."""
SPARK_SECONDS = 60.0


def host_lines(
    host: HostView,
    history: HistoryOf,
    cells: int,
    glyphs: Glyphs,
    rows: int = 0,
    charted: bool = False,
) -> list[Line]:
    """Return CPU with its last minute, load, memory and what shares it; unknown parts are left out.

    Where ``rows`` are too few for CPU, its last minute and memory, the minute is left out, and
    where it is ``charted`` elsewhere. Where nothing is known, they say why.
    """
    bar = max(6, min(24, cells - LABEL - VALUE - WORDS))
    d, n = host.definition, host.number
    lines: list[Line] = []

    def gauge(label: str, used: float | None, total: float | None, words: str) -> None:
        if used is None or not total:
            return
        share = 100 * used / total
        full = label != "CPU" and share >= FULL_PERCENT
        token = "warn" if full else "series1"
        lines.append(
            [
                (fit(label, LABEL), "muted"),
                *meter(share, bar, token, glyphs, slim=True),
                (f" {percent_text(share / 100, whole=True):>5} ", "text"),
                (words, "muted"),
            ]
        )

    load = n("load_1m")
    words = (
        f"of {d.cpu_count} cores" if d.cpu_count else "",
        f"load {load:.2f}" if load is not None else "",
    )
    gauge("CPU", n("cpu_percent"), 100.0, ", ".join(filter(None, words)))
    if host.sampled_seconds is not None and not charted and not 0 < rows < COURSE_ROWS:
        lines += _last_minute(host, history, host.sampled_seconds, bar, glyphs)
    free, total = n("memory_available_bytes"), d.memory_total_bytes
    if free is not None and total:
        gauge("memory", total - free, total, f"{bytes_text(free)} of {bytes_text(total)} free")
    limit, held = d.cgroup_memory_limit_bytes, n("cgroup_memory_used_bytes")
    if limit and held is not None:
        gauge("cgroup", held, limit, f"{bytes_text(held)} of {bytes_text(limit)}")
    shm, room = n("shm_used_bytes"), d.shm_total_bytes
    if room and shm is not None:
        gauge("/dev/shm", shm, room, f"{bytes_text(shm)} of {bytes_text(room)} used")
    swap = n("swap_used_bytes")
    if swap is not None:
        text = f"{bytes_text(swap)} in use" if swap else "none in use"
        lines.append([(fit("swap", LABEL), "muted"), (text, "text" if swap else "muted")])
    agent = n("agent_cpu_percent")
    if agent is not None:
        text = f"{percent_text(agent / 100)} of a core"
        lines.append([(fit("agent", LABEL), "muted"), (text, "muted")])
    if not lines and (why := why_unknown(host)):
        return styled.wrap([(why, "muted")], cells)
    return [styled.cut(line, cells) for line in lines]


def why_unknown(host: HostView, otherwise: str = "") -> str:
    """Return why nothing is read of a host itself, as in a black box, where that is told."""
    return missing(host, "load_1m", otherwise)


def _last_minute(
    host: HostView, history: HistoryOf, now: float, cells: int, glyphs: Glyphs
) -> list[Line]:
    """Return the CPU's last minute as a row of columns, whose full height is 100 %, and its peak.

    Each column is the peak of its time, so that the highest one is the peak that is named. There
    is no row before the first value.
    """
    bins = Bins.ending(now, SPARK_SECONDS, cells)
    past = history(host.id, "cpu_percent", SPARK_SECONDS)
    peaks: list[float | None] = [None] * cells
    for moment, value in zip(past.seconds, past.values, strict=True):
        # the first column begins later by up to its width: the minute is whole
        place = min(max(bins.index(moment), 0), cells - 1)
        if value is not None and moment >= now - SPARK_SECONDS:
            peaks[place] = max(value, peaks[place] or 0.0)
    known = [value for value in peaks if value is not None]
    if not known:
        return []
    drawn = spark(peaks, cells, 100.0, glyphs).replace(glyphs.unknown, " ")
    return [
        [
            (fit("CPU 60 s", LABEL), "muted"),
            (drawn, "series1"),
            (f" {percent_text(max(known) / 100, whole=True):>5} ", "text"),
            ("at most", "muted"),
        ]
    ]
