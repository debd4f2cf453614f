"""Make the chapter of a search for settings, from the document of ``gpuscope tune --json``."""

from __future__ import annotations

from typing import Any

from ..lab.tables import figure
from ..lab.tune.findings import STATUS
from ..lab.tune.goal import Goal, goal_of
from ..lab.tune.judge import Speed
from ..lab.tune.result import text_of
from ..text.numbers import number
from ..text.units import DASH, age_text
from . import documents as read
from .content import (
    Chapter,
    Code,
    Figure,
    Figures,
    Intervals,
    Part,
    Ratio,
    Section,
    Sentences,
    Table,
    Tone,
)
from .documents import Document

KEYS = ("samples_per_second", "warmup_seconds", "peak_reserved_bytes")
BAD = frozenset(("failed", "loss", "does_not_fit", "refused"))


def chapter(document: Document, name: str) -> Chapter:
    group = read.text(document.get("group"))
    source = f"runs of {group} in the ledger" if group else "runs of gpuscope tune"
    spent = read.said(document.get("seconds"), lambda seconds: age_text(max(seconds, 1.0)))
    runs = read.count(document.get("runs"))
    when = f"{runs} run{'s' * (runs != '1')} in {spent}"
    stopped = read.text(document.get("stopped"))
    goal = goal_of(document.get("goal"))
    best: list[Part] = [_sides(document, goal, source, when)]
    best += [Sentences([f"The search ended early: {stopped}."], "warn")] if stopped else []
    lines = read.texts(document.get("lines"))
    best += [Code("To paste into a training", lines)] if lines else []
    sections = [
        Section("What was found", best, read.text(document.get("sentence"))),
        Section("Gain of each setting", _switches(document, goal, source, when)),
        Section("Everything that was tried", _candidates(document, goal, source, when)),
    ]
    facts = [("Search", group)] if group else []
    command = read.text(document.get("command"))
    facts += [("In the Lab", command)] if command else []
    sections = [one for one in sections if one.parts]
    return Chapter(name, f"Search for the {goal.best} settings", sections, facts)


def speed_of(value: Any) -> Speed | None:
    """Return a ratio of a document with its interval, None if it has no ratio."""
    found = read.mapping(value)
    ratio = number(found.get("ratio"))
    if ratio is None:
        return None
    low, high = number(found.get("low")), number(found.get("high"))
    return Speed(ratio, low, high, read.text(found.get("basis")))


def _sides(document: Document, goal: Goal, source: str, when: str) -> Figures:
    speed = speed_of(document.get("speed"))
    figures = []
    if speed is not None:
        tone: Tone = "ok" if speed.certain else ""
        figures.append(Figure(goal.times, speed.text, speed.basis, tone))
    for key, label in (("baseline", "baseline"), ("best", "best")):
        side = read.mapping(document.get(key))
        values = {one: number(side.get(one)) for one in KEYS}
        note = f"{figure('peak_reserved_bytes', values['peak_reserved_bytes'])} reserved"
        pace = figure("samples_per_second", values["samples_per_second"])
        figures.append(Figure(f"{label}, samples/s", pace, note))
    return Figures(figures, source=source, when=when)


def _switches(document: Document, goal: Goal, source: str, when: str) -> list[Part]:
    rows = []
    for one in read.rows(document.get("switches")):
        name = read.text(one.get("name"))
        change = f"{name}: {text_of(name, one.get('before'))} → {text_of(name, one.get('after'))}"
        rows.append(_interval(change, speed_of(one.get("brings")), read.text(one.get("reason"))))
    if not rows:
        return []
    what = "as fast it is" if not goal.by_cost else f"{goal.times} it makes"
    note = f"How many times {what} with the setting, as with all others; the line is at 1."
    return [Intervals("", rows, [note], source=source, when=when)]


def _interval(label: str, speed: Speed | None, reason: str) -> Ratio:
    if speed is None:
        return Ratio(label, None, None, None, DASH, f"unknown: {reason}" if reason else "")
    tone: Tone = "muted"
    if speed.certain:
        tone = "ok"
    elif speed.high is not None and speed.high < 1:
        tone = "bad"
    return Ratio(label, speed.ratio, speed.low, speed.high, speed.text, reason, tone)


def _candidates(document: Document, goal: Goal, source: str, when: str) -> list[Part]:
    rows: list[tuple[str, ...]] = []
    tones: dict[int, Tone] = {}
    compared = []
    for place, one in enumerate(read.rows(document.get("candidates"))):
        status, reason = read.text(one.get("status")), read.text(one.get("reason"))
        words = goal.worse if status == "slower" else STATUS.get(status, status)
        label = read.text(one.get("label"))
        figures = [figure(key, number(one.get(key))) for key in KEYS]
        rows.append((label, *figures, f"{words}: {reason}" if reason else words))
        speed = speed_of(one.get("speed"))
        if status == "kept":
            tones[place] = "ok"
        elif status in BAD:
            tones[place] = "bad"
        if speed is not None:
            against = read.text(one.get("against"))
            compared.append(_interval(label, speed, f"{words}; against {against}"))
    if not rows:
        return []
    head = ("Settings", "Samples/s", "Warm-up", "Reserved", "Result")
    parts: list[Part] = []
    if compared:
        title = f"{'Cost' if goal.by_cost else 'Speed'} against the best then"
        parts.append(Intervals(title, compared, source=source, when=when))
    parts.append(Table("", head, rows, (1, 2, 3), (), tones, source=source, when=when))
    return parts
