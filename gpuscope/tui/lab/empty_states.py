"""What stands in the list of the Lab's runs before there is one."""

from __future__ import annotations

from ...lab.toggles import TOGGLES
from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of

NO_RUN: tuple[Line, ...] = (
    [("No run yet.", "text")],
    [(f"{key_of('lab_run')}  ", "accent"), ("starts one with these switches", "muted")],
    [("   ", "accent"), ("two finished runs are compared here", "muted")],
    [(f"{key_of('lab_repeat')}  ", "accent"), ("repeats A and B interleaved", "muted")],
    [(f"{key_of('lab_pitfalls')}  ", "accent"), ("known mistakes and their fixes", "muted")],
)
NAME_CELLS = 21
LEAST_CELLS = 70
"""Where there are fewer, the descriptions of the switches would be more wrapping than text."""


def no_run(on_cpu: bool, cells: int, rows: int) -> list[Line]:
    """Return how to start a run, and where there is room for all of it what each switch does.

    ``on_cpu``: the trainer runs on a CPU, where some do something else. What does not fit into
    ``rows`` lines of ``cells`` cells is left out as a whole.
    """
    out: list[Line] = [*NO_RUN, [], [("What the switches do", "title")]]
    for toggle in TOGGLES:
        name = toggle.name.replace("_", " ")
        does = (on_cpu and toggle.on_cpu) or toggle.help
        out += styled.hang([(f"{name:{NAME_CELLS}}", "accent")], [(does, "muted")], cells)
    return out if cells >= LEAST_CELLS and len(out) <= rows else list(NO_RUN)
