"""Says what the Lab says in words.

That is what speaks against the switches, what a switch does, and what is under way.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ...lab.config import LabConfig
from ...lab.toggles import BY_NAME, Toggle
from ...text import styled
from ...text.styled import Line
from ...text.units import age_text, bytes_text
from ..runs.choices import SWITCHES, DeviceChoice, note
from ..shell.keymap import key_of
from .tune_text import search_line

if TYPE_CHECKING:
    from ...model.occupants import Occupant
    from ..runs.runs import LabRuns

STATE_TOKENS = {"running": "ok", "failed": "bad", "starting": "warn", "stopping": "warn"}


def title_of_run(runs: LabRuns) -> tuple[str, str]:
    """Return the title of the run's panel, and the token of its state."""
    state = runs.state
    run = runs.current
    name = (
        "Run" if run is None or runs.busy else f"Run {run.name}" if run.entry is not None else "Run"
    )
    if state == "running" and run is not None and run.compiling_seconds is not None:
        word = f"compiling… {age_text(run.compiling_seconds)}"
    else:
        word = (
            "warming up"
            if state == "running" and run and run.last and run.last.warming_up
            else state
        )
    parts = [name, word, f"pid {runs.pid}" if runs.pid else ""]
    return " · ".join(part for part in parts if part), STATE_TOKENS.get(state, "muted")


def change_text(before: LabConfig, after: LabConfig) -> str:
    """Return what ``after`` has otherwise, as ``parallel off, nproc 2``."""
    changes = [
        f"{name.replace('_', ' ')} {toggle.text(getattr(after, name))}"
        for name, toggle in BY_NAME.items()
        if getattr(before, name) != getattr(after, name)
    ]
    return ", ".join(changes)


def occupant_text(one: Occupant) -> str:
    """Return who is on a GPU, as ``GPU 0: pid 51120 (lin) jupyter holds 21.6 GiB``."""
    held = bytes_text(one.used_bytes) if one.used_bytes is not None else "an unknown amount"
    who = f"pid {one.pid} ({one.user}) " if one.pid else ""
    return f"GPU {one.index}: {who}{one.command} holds {held}"


def notes_of(runs: LabRuns, toggle: Toggle, cells: int, least: int, most: int) -> list[Line]:
    """Return ``least`` to ``most`` lines below the panels.

    What matters before a start comes first, then the switch under the cursor. How many lines
    there are does not depend on ``toggle``: nothing moves when the cursor does.
    """
    search = [search_line(runs.tuning)] if runs.tuning is not None else []
    notes: list[Line] = [*search, *_series(runs), *_verdicts(runs)]
    if runs.state == "stopping":
        notes.append(
            [
                ("◆ ", "warn"),
                ("stops after the step in progress: ", "text"),
                (key_of("lab_stop"), "accent"),
                (" ends it now, and its speed is not measured", "muted"),
            ]
        )
    if runs.dirty and not (runs.refusal or (runs.repeats and not runs.repeats.over)):
        notes.append(
            [
                ("* ", "warn"),
                ("changed: ", "text"),
                (key_of("lab_run"), "accent"),
                (" restarts with these settings", "muted"),
            ]
        )
    if runs.held:
        more = f", and {len(runs.held) - 1} more" if len(runs.held) > 1 else ""
        notes.append(
            [
                ("▲ ", "warn"),
                ("not started: ", "text"),
                (occupant_text(runs.held[0]) + more, "muted"),
                (f"  {key_of('lab_run')}", "accent"),
                (": retry", "muted"),
            ]
        )
    if runs.book.problem is not None:
        what, why, _ = runs.book.problem
        notes.append([("◆ ", "warn"), (f"{what} ", "text"), (why, "muted")])
    needed = _rows_of_the_longest(runs.config, runs.device, cells)
    kept = _fit_notes(notes, cells, most - needed, most - 1)
    rows = max(least, min(most, len(kept) + needed))
    own = styled.first_rows(
        _about(toggle, runs.config, runs.device, cells), rows - len(kept), cells
    )
    return [*kept, *own, *([[]] * (rows - len(kept) - len(own)))]


def _fit_notes(notes: list[Line], cells: int, easy: int, most: int) -> list[Line]:
    """Return the notes in full or a row each, in ``easy`` rows where that can be.

    Else they take ``most``: the text of the switch is cut then. Where there are more of them,
    the last row says how many.
    """
    full = styled.hang_lines(notes, cells)
    for room in (easy, most):
        if len(full) <= room:
            return full
        if len(notes) <= room:
            return [_one_row(line, cells) for line in notes]
    tail = f"  and {len(notes) - most} more"
    kept = [_one_row(line, cells) for line in notes[: most - 1]]
    return [*kept, [*_one_row(notes[most - 1], cells - len(tail)), (tail, "warn")]]


@lru_cache(maxsize=8)
def _rows_of_the_longest(config: LabConfig, device: DeviceChoice, cells: int) -> int:
    """Return the rows that the longest description of a switch takes.

    Wrapping all of them took a third of the time of each picture, and they change only with a
    switch or the terminal's width.
    """
    return max(len(_about(one, config, device, cells)) for one in SWITCHES)


def _about(toggle: Toggle, config: LabConfig, device: DeviceChoice, cells: int) -> list[Line]:
    """Return what a switch is, and what it does here."""
    about, here = note(toggle, config, device)
    pieces: Line = [(f"{toggle.name.replace('_', ' ')}  ", "accent"), (about, "muted")]
    return styled.hang_lines(
        [styled.join([pieces, [(here, "text")] if here else []], "; ", "muted")], cells
    )


def _one_row(line: Line, cells: int) -> Line:
    """Return a note in one row; a key at its end and what that does stay."""
    key = line[-2:] if len(line) > 2 and line[-2][1] == "accent" else []
    return [*styled.cut(line[: len(line) - len(key)], cells - styled.cells(key)), *key]


def _verdicts(runs: LabRuns) -> list[Line]:
    """Return refusals, then warnings.

    The key for the nearest combination stands with the first that has one.
    """
    out: list[Line] = []
    offered = False
    for verdict in runs.verdicts():
        refused = verdict.level == "refuse"
        line: Line = [("▲ ", "bad"), ("cannot start: ", "bad")] if refused else [("◆ ", "warn")]
        line += [(verdict.what, "text"), (f" {verdict.why[:1].upper()}{verdict.why[1:]}", "muted")]
        nearest = verdict.nearest
        if not offered and nearest is not None and nearest != runs.config:
            line += [
                (f"  {key_of('lab_nearest')}", "accent"),
                (f": {change_text(runs.config, nearest)}", "text"),
            ]
            offered = True
        out.append(line)
    return out


def _series(runs: LabRuns) -> list[Line]:
    """Return a series of repeats: where it stands, or how it ended."""
    series = runs.repeats
    if series is None:
        return []
    done = sum(map(len, series.entries.values()))
    if series.state == "running":
        turn = series.turns[series.at]
        where = f"A/B interleaved: run {series.at + 1} of {len(series.turns)}"
        which = f", {turn.side} of repeat {turn.repeat + 1}   "
        return [
            [
                ("▸ ", "ok"),
                (where, "title"),
                (which, "muted"),
                (key_of("lab_stop"), "accent"),
                (": stop", "muted"),
            ]
        ]
    if series.state == "done":
        return []
    token = "warn" if series.state == "failed" else "muted"
    return [
        [
            (f"A/B interleaved {series.state}: ", token),
            (f"{series.why}; {done} runs are kept", "muted"),
        ]
    ]
