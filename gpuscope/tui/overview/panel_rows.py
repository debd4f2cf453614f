"""Share the rows of a terminal among the panels of the Overview."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

WIDE = 160
"""From so many columns on there is more of each device."""
FOOT_COLUMNS = 100
"""From so many columns on there are processes beside the host's own load."""
CHART_ROWS, CHART_COLUMNS = 7, 76
"""The least room that charts are drawn in: rows left over by the lists, columns of the terminal."""
MOST_CHART_ROWS = 16
"""A chart with its frame is no higher while something else can use the rows."""
MOST_FIRST_ROWS = 14
"""Of the first row of charts on a wide terminal: the job under the cursor has what is left."""
ROOMY_ROWS = 32
"""From so many rows on charts take room from a long list of jobs."""
MOST_DEVICE_ROWS = 17
"""Sixteen devices with their heading are shown at once on a roomy terminal; more are scrolled, so
that they do not hide everything else.
"""
SPLIT_COLUMNS = 100
"""From so many columns on, in a roomy terminal, a job shows what its step is made of."""
TINY_ROWS = 20
AROUND_ROWS = 3
"""Status line, tabs and footer."""
AXIS_ROWS = 2
FOOT_ROWS, MOST_PROCESSES = 8, 8
"""The usual height of the panels at the foot, and how many processes they show at least where
there are so many.
"""
LEAST_QUIET_ROWS, USUAL_QUIET_ROWS, QUIET_CHART_ROWS = 6, 9, 11
LEAST_FOOT_ROWS = 6
"""Less is not worth a panel: a heading and three processes in their frame."""
BARE_ROWS, FRAMED_ROWS, MOST_HOST_ROWS = 2, 4, 8
"""Where no chart has room the host has what is left: lines without a frame, or with one."""


class Needs(NamedTuple):
    """Lines that the lists would fill.

    ``findings`` has its frame in it. ``lanes`` is how many GPUs want a line of the first row of
    charts each. ``many_charts``: there are trainers, so that a second row has something to
    show. ``has_host``: there is a host whose own load can be shown. ``quiet`` is how many lines
    there are to say of a host on which nothing trains. ``alarmed``: a job stands still, runs
    out of memory or has lost a device, so that all its lines come before charts.
    ``jobs_folded`` is what the jobs fill with at most one line below each.
    """

    jobs: int
    jobs_in_full: int
    devices: int
    findings: int
    processes: int
    lanes: int
    many_charts: bool
    has_host: bool = True
    quiet: int = 0
    alarmed: bool = False
    jobs_folded: int = 0


def spare_rows(height: int, findings: int, devices: int, jobs: int) -> int | None:
    """Return how many more lines the jobs may take before the charts lose their place.

    None stands for any number: on a roomy terminal there are charts all the same, and where these
    panels leave no room for any, there is none to lose.
    """
    left = height - AROUND_ROWS - findings - (devices + 2) - (jobs + 2)
    return None if height >= ROOMY_ROWS or left < CHART_ROWS else left - CHART_ROWS


class Given(NamedTuple):
    """Rows of each panel with its frame; 0 where it is not shown.

    ``chart_rows`` is what the first row of charts has inside, ``second`` whether there is
    another, and ``least_charts`` the rows without which the first says too little.
    """

    jobs: int
    devices: int
    charts: bool
    chart_rows: int
    second: bool
    foot: int
    in_full: bool
    quiet: int = 0
    least_charts: int = 0


@lru_cache(maxsize=16)
def share_out(needs: Needs, width: int, height: int, charts: bool) -> Given:
    """Give lists the height they need, charts what is left, and a foot what charts do not need.

    Charts are shown only where both lists are satisfied, or where a roomy terminal can do
    with a shorter list of jobs. Beside several GPUs no job is hidden for charts of few rows.
    """
    frame = 0 if height < TINY_ROWS else 2
    room = height - AROUND_ROWS - needs.findings
    most = max(height * 2 // 5, MOST_DEVICE_ROWS) if height >= ROOMY_ROWS else needs.devices
    devices, jobs = min(needs.devices, most) + frame, needs.jobs + frame
    charts = charts and width >= CHART_COLUMNS and height >= TINY_ROWS
    if charts and room - devices - jobs < CHART_ROWS:
        charts = height >= ROOMY_ROWS and room - devices - (5 + frame) >= CHART_ROWS
    if needs.alarmed and height < ROOMY_ROWS:
        charts = charts and room - devices - needs.jobs_in_full - frame >= CHART_ROWS
    lanes = needs.lanes if needs.lanes < most else 0
    if lanes and width < WIDE and height >= ROOMY_ROWS:  # else the rows of GPUs draw the load
        folded = min(needs.jobs, needs.jobs_folded) + frame
        charts = charts and room - devices - folded >= CHART_ROWS + AXIS_ROWS
    full, first = needs.jobs_in_full + frame, max(CHART_ROWS + 2, lanes + AXIS_ROWS + 2)
    foot, least = 0, CHART_ROWS if width >= WIDE else first
    if charts and width >= FOOT_COLUMNS:
        smallest = FOOT_ROWS if width >= WIDE else LEAST_FOOT_ROWS
        lists = devices + (full if room - devices - full >= least + smallest else jobs)
        if room - lists >= least + smallest and (needs.processes or not needs.quiet):
            usual = smallest if needs.quiet else FOOT_ROWS
            foot = max(usual, min(needs.processes, MOST_PROCESSES) + 1 + frame)
            foot = min(foot, room - lists - least)
    below = ((least if foot else CHART_ROWS) if charts else 0) + foot
    in_full = full <= room - devices - below
    jobs = full if in_full else jobs
    least_jobs = min(jobs, max(3, height // 5)) if frame else 0
    jobs = max(min(jobs, room - devices - below), least_jobs)
    devices = min(devices, room - jobs)
    left = room - jobs - devices - foot
    if not charts and frame and needs.has_host and left >= BARE_ROWS:
        foot = min(left, MOST_HOST_ROWS)
        devices, left = devices + left - foot, 0
    quiet = 0
    if charts and needs.quiet and width >= FOOT_COLUMNS:
        usual = min(left - CHART_ROWS, USUAL_QUIET_ROWS)
        below = MOST_CHART_ROWS if width >= WIDE else QUIET_CHART_ROWS
        quiet = min(needs.quiet + frame, max(left - below, usual))
        quiet = quiet if quiet >= LEAST_QUIET_ROWS else 0
        left -= quiet
    second = False
    if foot and left > MOST_CHART_ROWS:
        second = needs.many_charts and left >= first + CHART_ROWS
        if not second:  # more processes, where there are more
            more = max(min(left - MOST_CHART_ROWS, needs.processes + 1 + frame - foot), 0)
            foot, left = foot + more, left - more
    half = min(left // 2, left - CHART_ROWS)
    half = min(half, MOST_FIRST_ROWS) if width >= WIDE else half
    chart_rows = (max(half, first) if second else left) - 2
    chart_rows = max(chart_rows, 0) if charts else 0
    return Given(jobs, devices, charts, chart_rows, second, foot, in_full, quiet, first)
