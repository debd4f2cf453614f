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
LEAST_CELLS = 60
"""Where there are fewer, the descriptions of the switches would be more wrapping than text."""
FIRST = ("amp", "batch", "compile", "checkpoint", "fused", "workers")
"""The switches that change most for most trainings."""


def no_run(on_cpu: bool, cells: int, rows: int) -> list[Line]:
    """Return how to start a run, and what the switches do: all of them, or the first to try.

    ``on_cpu``: the trainer runs on a CPU, where some do something else. What does not fit into
    ``rows`` lines of ``cells`` cells is left out as a whole.
    """
    if cells < LEAST_CELLS:
        return list(NO_RUN)
    first = [toggle for toggle in TOGGLES if toggle.name in FIRST]
    for title, toggles in (("What the switches do", TOGGLES), ("Switches to try first", first)):
        out: list[Line] = [*NO_RUN, [], [(title, "title")]]
        for toggle in toggles:
            name = toggle.name.replace("_", " ")
            does = (on_cpu and toggle.on_cpu) or toggle.help
            out += styled.hang([(f"{name:{NAME_CELLS}}", "accent")], [(does, "muted")], cells)
        if len(out) <= rows:
            return out
    return list(NO_RUN)
