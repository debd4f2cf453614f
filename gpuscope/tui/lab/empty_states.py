"""What stands in the list of the Lab's runs before there is one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lab.toggles import TOGGLES
from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of

if TYPE_CHECKING:
    from ...predict.answer import Answer
    from ..background.predictions import Question
    from ..theme import Glyphs

KEYS = (
    ("lab_run", "train with these settings", "; speed, loss and memory appear here"),
    ("lab_repeat", "compare: repeat A and B in turns", "; the last two that differ"),
    ("lab_tune", "tune: the fastest settings that fit", ", searched from these on"),
    ("lab_pitfalls", "pitfalls: run a known mistake", ", then its fix"),
    ("lab_next", "change this setting", f"; {key_of('open')}: type a value"),
)
"""The keys of the Lab: what each does, and the rest of the sentence where there is room."""
KEY_CELLS = 3
NAME_CELLS = 21
LEAST_CELLS = 60
"""Where there are fewer, the descriptions of the switches would be more wrapping than text."""
BESIDE_CELLS, LEFT_CELLS, BETWEEN_CELLS = 130, 64, 4
"""From which width on the keys and the prediction stand side by side, with so many cells for the
keys and between them.
"""
FIRST = ("amp", "batch", "compile", "checkpoint", "fused", "workers")
"""The switches that change most for most trainings."""
ON_CPU = (
    "Nothing is predicted for a CPU: torch counts no memory there. For a GPU: "
    "gpuscope predict --model gpt-small --gpu h200"
)


def keys(cells: int) -> list[Line]:
    """Return how to start a run, and what else can be done, in lines of ``cells`` cells."""
    out: list[Line] = [[("No run yet.", "title")]]
    for action, does, more in KEYS:
        head: Line = [(f"{key_of(action):{KEY_CELLS}}", "bold accent")]
        text = does + more if cells >= LEAST_CELLS else does
        out += styled.hang(head, [(text, "muted")], cells)
    return out


def _first_comparison(cells: int) -> list[Line]:
    """Return how to learn what a switch is worth, step by step."""
    run, stop, change, repeat = map(key_of, ("lab_run", "lab_stop", "lab_next", "lab_repeat"))
    steps = (
        f"{run} trains; after some steps {stop} ends it: run A",
        f"{change} on amp, then {run} again: run B",
        f"A and B are compared; {repeat} runs them alternately, to tell a real difference from "
        "noise",
    )
    out: list[Line] = [[], [("A first comparison", "title")]]
    for number, text in enumerate(steps, 1):
        out += styled.hang([(f"{number:<{KEY_CELLS}}", "accent")], [(text, "muted")], cells)
    return out


def no_run(
    on_cpu: bool, question: Question | None, chosen: str, glyphs: Glyphs, cells: int, rows: int
) -> list[Line]:
    """Return how to start a run, what it would take, and what the switches do.

    ``on_cpu``: the trainer runs on a CPU, where some switches do something else. ``question`` is
    the prediction for the switches, None where there is none. ``chosen`` is the switch under the
    cursor. What does not fit into ``rows`` lines of ``cells`` cells is left out as a whole.
    """
    if cells >= BESIDE_CELLS:
        rest = cells - LEFT_CELLS - BETWEEN_CELLS
        start = _beside(_left(question), _predicted(on_cpu, question, glyphs, rest))
    else:
        start = keys(cells)
        whole = [*start, [], *_predicted(on_cpu, question, glyphs, cells)]
        short = [*start, [], *_predicted(on_cpu, question, glyphs, cells, brief=True)]
        start = next((one for one in (whole, short) if len(one) <= rows), start)
    if cells < LEAST_CELLS:
        return start
    for title, names in (("What the settings do", None), ("Settings to try first", FIRST)):
        out: list[Line] = [*start, [], [(title, "title")]]
        for toggle in TOGGLES:
            if names is None or toggle.name in names:
                name = toggle.name.replace("_", " ")
                does = (on_cpu and toggle.on_cpu) or toggle.help
                here = toggle.name == chosen
                head: Line = [(f"{name:{NAME_CELLS}}", "bold accent" if here else "accent")]
                out += styled.hang(head, [(does, "text" if here else "muted")], cells)
        if len(out) <= rows:
            more = [] if cells >= BESIDE_CELLS else _first_comparison(cells)
            return [*out, *more] if len(out) + len(more) <= rows else out
    return start


def _left(question: Question | None) -> list[Line]:
    """Return the keys, a first comparison, and the modules that own most of the memory."""
    out = [*keys(LEFT_CELLS), *_first_comparison(LEFT_CELLS)]
    if question is not None and question.answer is not None:
        from ...predict.report import by_module, table_unit

        modules = by_module(question.answer, LEFT_CELLS)[1:]
        unit = table_unit(question.answer)[0]
        out += [[], [(f"Predicted at the peak, by module, {unit}", "title")], *modules]
    return out


def _predicted(
    on_cpu: bool, question: Question | None, glyphs: Glyphs, cells: int, brief: bool = False
) -> list[Line]:
    """Return what a run with these switches would take, or why that is not known."""
    title: Line = [("Predicted for these settings", "title")]
    if on_cpu:
        return [title, *styled.wrap([(ON_CPU, "muted")], cells)]
    if question is None:
        return []
    if question.answer is not None:
        return [title, *_answer_lines(question.answer, glyphs, cells, brief)]
    if question.problem:
        what, why, then = (*question.problem, "", "")[:3]
        pieces: Line = [(f"{what} ", "text"), (f"{why} ", "muted"), (then, "accent")]
        return [title, *styled.wrap(pieces, cells)]
    return [title, [(f"peak memory: {question.doing} …", "muted")]]


def _answer_lines(answer: Answer, glyphs: Glyphs, cells: int, brief: bool) -> list[Line]:
    from ...predict import report
    from ...snapshot.drawing import ASCII, BLOCKS

    if brief:
        return [part for line in report.headline(answer) for part in styled.wrap(line, cells, 2)]
    return report.brief(answer, cells, ASCII if glyphs.cursor.isascii() else BLOCKS)


def _beside(left: list[Line], right: list[Line]) -> list[Line]:
    """Return lines beside lines, of which the left ones have :data:`LEFT_CELLS` cells."""
    if not right:
        return left
    gap = (" " * BETWEEN_CELLS, "text")
    rows = max(len(left), len(right))
    left, right = (side + [[]] * (rows - len(side)) for side in (left, right))
    return [[*styled.pad(a, LEFT_CELLS), gap, *b] for a, b in zip(left, right, strict=True)]
