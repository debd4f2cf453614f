"""This table says what each fix would free, predicted or from what was measured."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ...model.allocator_account import NO_SIZES, peak_sizes
from ...model.cuda_devices import visible_devices
from ...store.view import HostView
from ...text import styled
from ...text.styled import Line
from ...text.units import MIB, age_text, bytes_text, percent_text, sides_text
from ..runs.devices import family
from ..shell.keymap import key_of
from ..shell.session import Session
from ..widgets.pane import set_title
from ..widgets.table import Cell, Column, LiveTable, TableRow
from ..widgets.text import Lines
from .cure_list import Cure, cure_lines
from .growing_what_if import Growing, about, cures_of, growing, rows_of, stopping
from .more_text import measured_fixes
from .subjects import Subject

if TYPE_CHECKING:
    from ...lab.config import LabConfig
    from ...predict.answer import Answer, Card, Tried
    from ...predict.errors import Estimate
    from ...predict.trainer_what_if import Freed
    from ..background.predictions import Question

COLUMNS = (
    Column("freed", "FREES", 10, align="right"),
    Column("error", "±", 9, align="right", priority=2),
    Column("then", "PEAK THEN", 9, align="right", priority=1),
    Column("fits", "VERDICT", 12, priority=3),
    Column("fix", "FIX", 34, flex=2, most=52),
    Column("change", "HOW", 60, flex=3, most=72, priority=4),
)
OF_A_GROWTH = (
    Column("freed", "THE GROWTH", 10),
    Column("error", "SURE", 9, priority=2),
    Column("fix", "FIX", 34, flex=2, most=64),
    Column("change", "HOW", 60, flex=3, most=72, priority=4),
)
TOKENS = {"fits": "ok", "too_close": "warn", "does_not_fit": "bad"}
LEAST = MIB
"""Less than this is nothing."""
MEASURED = "measured"
"""Stands for an error where what is freed was measured itself, and is no range."""
ABOUT_ROWS = 4
"""Below the table, for the fix under the cursor."""
FRAME_ROWS, TABLE_FRAME_ROWS = 2, 3
LEAST_IN_FULL, CHART_ROWS = 8, 12
"""Rows below the table from which on every fix stands there in full, in a panel."""


class WhatIfView:
    """The fixes and what each of them frees.

    For the Lab's model they are simulated; for any other trainer this says what its measured
    bytes allow to say.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self.table = LiveTable(COLUMNS, id="what-if", classes="panel")
        self.table.border_title = "What if"
        self.about = Lines(id="about-fix")
        """How the fix under the cursor is made, and what it costs, in full."""
        self.rows = 0
        """Rows for the table and what is below it."""
        self.roomy = False
        """Whether a chart has room besides."""
        self._prediction: Question | None = None
        self._top: str | None = None
        """The key of the first row, as last shown."""

    def show(self, host: HostView, subject: Subject | None) -> None:
        """Show what is known by now, and start to compute the rest."""
        if subject is None or subject.trainer is None or self._is_the_labs(host, subject):
            self._show_lab(host, subject)
        else:
            self._show_measured(host, subject)

    def _is_the_labs(self, host: HostView, subject: Subject) -> bool:
        assert subject.trainer is not None
        runs = self.session.labs
        return runs.pid is not None and subject.trainer.definition.pid in family(host, runs.pid)

    # ── the lab's model ──

    def _config(self, subject: Subject | None) -> LabConfig:
        """Return the switches of the run where that is looked at, else those that are set.

        The run is the one in progress. Its model is the preset that it trains: the name of a
        family stands for a larger one on a GPU than on a CPU.
        """
        runs = self.session.labs
        looked_at = subject is not None and subject.trainer is not None
        run = runs.current if looked_at or runs.busy else None
        if run is None:
            return runs.config
        return replace(run.config, model=run.preset) if run.started else run.config

    def _show_lab(self, host: HostView, subject: Subject | None) -> None:
        config = self._config(subject)
        found = self._prediction = self.session.predictions.want(config, card_of(host, subject))
        answer = found.answer
        name = f"{config.preset('cuda')}" + (f", batch {answer.batch}" if answer else "")
        if answer is None:
            self.table.show([])
            waits = "" if found.done else f"{found.doing}{_for_how_long(found)}"
            self.table.show_empty(" ".join(found.problem[:2]) or waits)
            set_title(self.table, f"What if: {name}")
            self.table.subtitle([(found.problem[2], "accent")] if len(found.problem) > 2 else [])
            self._tell({}, None, ())
            return
        tried_ones = answer.what_if or ()
        rows = [_row(one) for one in tried_ones]
        self.table.show_columns(
            _columns([_error_of(one.subject_of(one.prediction)) for one in tried_ones])
        )
        at_top = self.table.cursor_key in (None, self._top)
        self.table.show(rows)
        self._top = rows[0].key if rows else None
        # fixes come one by one: who has not moved stays with the best
        if at_top and self._top is not None:
            self.table.move_to(self._top)
        self.table.show_empty(
            f"{found.doing} …" if found.doing else "none of the fixes frees memory"
        )
        set_title(self.table, f"What if: {name}: {_need(answer)}")
        tried = self._under_cursor(answer)
        tail = (
            f"{found.doing} …"
            if found.doing
            else f"{key_of('try_fix')}: try it in the Lab"
            if rows and not self.session.why_not("try_fix")
            else ""
        )
        from ...predict.measured_kernels import measured

        kernels = f"kernels measured with torch {measured().torch}"
        self.table.subtitle([(f"{kernels}   {tail}".rstrip(), "faint")])
        self._tell(
            {one.fix.key: _about(one) for one in tried_ones},
            tried.fix.key if tried is not None else None,
            [
                Cure(one.fix.key, one.fix.title, one.fix.change, "", [("costs", one.fix.cost)])
                for one in tried_ones
            ],
        )

    def _tell(
        self, abouts: Mapping[str, Sequence[Line]], key: str | None, cures: Sequence[Cure]
    ) -> None:
        """Show every fix in full where the table leaves room, else the lines about ``key``.

        Those take as many rows as the longest of all, so that the table stands still while the
        cursor moves.
        """
        cells = max(30, self.about.content_size.width or 76)
        high = len(self.table.rows) + TABLE_FRAME_ROWS
        left = self.rows - high - FRAME_ROWS
        in_full = bool(cures) and left >= LEAST_IN_FULL
        lines = cure_lines(cures, key, cells, left, self.about.tokens.glyphs) if in_full else []
        self.roomy = in_full and left - len(lines) >= CHART_ROWS
        self.about.set_class(in_full, "panel")
        self.about.styles.height = "1fr" if in_full and not self.roomy else "auto"
        self.table.styles.height = high if in_full else "1fr"
        set_title(self.about, "How each is done, and what it costs" if in_full else "")
        if in_full:
            self.about.show(lines)
            return
        broken = {one: styled.hang_lines(lines, cells) for one, lines in abouts.items()}
        rows = min(ABOUT_ROWS, max(map(len, broken.values()), default=0))
        shown = styled.first_rows(
            broken.get(key or "", []), rows, cells, self.about.tokens.glyphs.ellipsis
        )
        self.about.show([*shown, *([()] * (rows - len(shown)))])

    def _under_cursor(self, answer: Answer) -> Tried | None:
        key = self.table.cursor_key
        return next((one for one in answer.what_if or () if one.fix.key == key), None)

    def chosen(self) -> tuple[LabConfig, Tried] | str:
        """The fix under the cursor and the switches it is for, or why there is none."""
        found = self._prediction
        if found is None or found.answer is None:
            return "only a fix for the Lab's model can be tried there"
        tried = self._under_cursor(found.answer)
        return (found.config, tried) if tried is not None else "no fix is selected"

    # ── any other trainer ──

    def _show_measured(self, host: HostView, subject: Subject) -> None:
        self._prediction = None
        assert subject.trainer is not None
        allocator, trainer = subject.allocator, subject.trainer
        peak, *_, fixed = peak_sizes(allocator) if allocator is not None else NO_SIZES
        rows = measured_fixes(host, subject)
        now = growing(host, subject, self.session.history)
        if now is not None:
            self._show_growing(trainer.definition.pid, rows, now)
            return
        known, rows = bool(rows), [one for one in rows if one.middle >= LEAST]
        self.table.show_columns([one for one in COLUMNS if one.key != "fits"])  # no verdict here
        of = f"of the {bytes_text(peak)} allocated at the peak since the start" if peak else ""
        set_title(self.table, f"What if: {of}" if of else "What if")
        self.table.show(
            [
                TableRow(
                    one.key,
                    {
                        "freed": _size(one.middle),
                        "error": [(_error(one.error) or MEASURED, "muted")],
                        "then": [(bytes_text((peak or 0) - one.middle), "text")],
                        "fix": [(one.title, "text")],
                        "change": [(one.change, "muted")],
                    },
                )
                for one in rows
            ]
        )
        self._tell(
            {one.key: [[("how: ", "muted"), (one.change, "text")]] for one in rows},
            self.table.cursor_key,
            [
                Cure(
                    one.key,
                    one.title,
                    one.change,
                    one.code,
                    [("frees", one.why), ("costs", one.cost)],
                )
                for one in rows
            ],
        )
        why = (
            "torch has no memory statistics on the CPU"
            if not peak
            else _no_fix(peak, fixed)
            if known
            else "the bytes of its parameters are unknown yet"
        )
        self.table.show_empty(why)
        if not rows:
            self.table.styles.height = 1 + TABLE_FRAME_ROWS
            self.roomy = self.rows - 1 - TABLE_FRAME_ROWS >= CHART_ROWS
        self.table.subtitle([("for its model: gpuscope predict MODULE:FACTORY --what-if", "faint")])

    def _show_growing(self, pid: int, freed: Sequence[Freed], now: Growing) -> None:
        """Show what stops the growth, and in one row what only delays the end."""
        stops = stopping(self.session.doctor.cases, pid)
        self.table.show_columns(OF_A_GROWTH)
        set_title(self.table, now.title)
        self.table.show(rows_of(stops, freed, now))
        self.table.show_empty("the doctor has not judged it yet")
        cures = cures_of(stops, freed, now, self.session.doctor.table)
        self._tell(about(stops, freed, now), self.table.cursor_key, cures)
        self.table.subtitle([(f"{key_of('doctor')}: the evidence, and what helps now", "faint")])


def _no_fix(peak: int, workspaces: int) -> str:
    """Say that no fix frees anything, and why where workspaces are most of the memory."""
    if 2 * workspaces <= peak:
        return f"no fix frees {bytes_text(LEAST)} or more"
    shares = f"{bytes_text(workspaces)} of the {bytes_text(peak)}"
    return f"no fix helps: {shares} are cuBLAS workspaces, which stay"


def card_of(host: HostView, subject: Subject | None) -> Card | None:
    """Return the card that is looked at, else the first that a run would take.

    It is None where this host has none.
    """
    from ...cli.commands.predict.card import of_device

    seen = (
        [subject.device]
        if subject is not None and subject.device is not None
        else visible_devices(host.devices)
    )
    device = next((one for one in seen if one.definition.total_bytes), None)
    if device is None:
        return None
    card = of_device(device)
    return replace(card, name=card.gpu, in_use_bytes=None)


def _columns(errors: Sequence[str]) -> tuple[Column, ...]:
    """Return the columns, with room for errors of two sides where there are any."""
    wide = max(map(len, errors), default=0)
    return tuple(
        column._replace(width=max(column.width, wide)) if column.key == "error" else column
        for column in COLUMNS
    )


def _row(one: Tried) -> TableRow:
    judged = one.verdict
    fits: Cell = [(judged.outcome.replace("_", " "), TOKENS[judged.outcome])] if judged else "–"
    then = one.subject_of(one.prediction)
    return TableRow(
        one.fix.key,
        {
            "freed": _size(one.freed),
            "error": [(_error_of(then), "muted")],
            "then": [(bytes_text(then.bytes), "text")],
            "fits": fits,
            "fix": [(one.fix.title, "text")],
            "change": [(one.fix.change, "muted")],
        },
    )


def _about(one: Tried) -> list[Line]:
    """Return what a narrow table has no column for, and the price."""
    judged = one.verdict
    verdict: Line = (
        [(f"   {judged.outcome.replace('_', ' ')}", TOKENS[judged.outcome])] if judged else []
    )
    return [
        [("how: ", "muted"), (one.fix.change, "text"), *verdict],
        [("cost: ", "muted"), (one.fix.cost, "muted")],
    ]


def _for_how_long(found: Question) -> str:
    """Return for how long the model has been traced, and the key that leaves this view."""
    if found.since is None:
        return " …"
    seconds = time.monotonic() - found.since
    return f", {age_text(max(seconds, 1.0))} … {key_of('what_if')} stops waiting"


def _need(answer: Answer) -> str:
    device = answer.prediction.device
    error = (
        f"({sides_text(device.error_bytes, device.less_bytes)})"
        if device.lopsided
        else f"± {percent_text(device.error_percent / 100)}"
    )
    need = f"{bytes_text(device.bytes)} {error} of the GPU"
    judged = answer.verdict
    need += "" if judged is None else f", {judged.outcome.replace('_', ' ')}"
    return f"{need}; peak of torch {bytes_text(answer.prediction.allocated.bytes)}"


def _size(size: int) -> Cell:
    if size >= LEAST:
        return [(bytes_text(size), "ok")]
    return [("nothing", "faint") if size > -LEAST else (f"+{bytes_text(-size)}", "warn")]


def _error_of(figure: Estimate) -> str:
    return (
        sides_text(figure.error_bytes, figure.less_bytes)
        if figure.lopsided
        else _error(figure.error_bytes)
    )


def _error(size: int) -> str:
    return f"±{bytes_text(size)}" if size >= LEAST else ""
