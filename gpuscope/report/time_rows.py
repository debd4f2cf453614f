"""Make sections of where a training's time goes, from the document of ``gpuscope why --json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum

from ..model.look import words_of
from ..model.pace import PARTS_STEPS
from ..model.step_colours import LOOK_TOKENS, REST, SPLIT_TOKENS, tokens_of_rows
from ..model.step_time import MIXED, SPLIT_WORDS
from ..model.time_ledger import SOURCE, WORDS
from ..text.numbers import number
from ..text.units import DASH, duration_text, percent_text
from . import documents as read
from .content import (
    BarRow,
    Chapter,
    Code,
    Figure,
    Figures,
    Findings,
    Part,
    Section,
    Sentences,
    Table,
    Waterfall,
)
from .documents import Document
from .findings import of_cause

MAX_RANKS = 64
OF_PARTS = f"{PARTS_STEPS} steps"
"""What the parts of a step are the mean of, and the readings without a clock."""


def chapter(document: Document, name: str) -> Chapter:
    facts = [("Training", read.text(document.get("name"), DASH))]
    if read.text(document.get("job")):
        facts.append(("Job", read.text(document.get("job"))))
    return Chapter(name, "Where the time goes, of gpuscope why", sections(document), facts)


def sections(document: Document, named: bool = False) -> list[Section]:
    """Return the wall clock, the ranks, the causes, and what was seen on the GPU.

    ``named``: the titles name the training, because the page has several.
    """
    of = f": {read.text(document.get('name'), DASH)}" if named else ""
    looks = read.count(document.get("looks"))
    window = read.said(document.get("window_seconds"), duration_text)
    # a job that hangs may have no ledger, or too few looks for one: its sentence says so
    known = _is_known(document)
    when = f"{window}, {read.count(document.get('steps'))} steps" if known else OF_PARTS
    parts: list[Part] = [_figures(document, when)] if known else []
    causes = [*read.rows(document.get("causes")), *read.rows(document.get("readings"))]
    note = read.text(document.get("note"))
    parts += [Sentences([note])] if note else []
    tune = read.text(document.get("tune"))
    parts += [Code("What searches for faster settings, and proves them", [tune])] if tune else []
    parts += [_clock(document, f"{looks} {SOURCE}", when)] if known else []
    split = [] if known else read.rows(document.get("parts"))
    parts += [_split(split)] if split else []
    trainers = read.rows(document.get("trainers"))
    if len(trainers) > 1 and any(map(_is_known, trainers)):
        parts.append(_ranks(trainers, when))
    lead = _lead(document)
    # a section without parts is left out
    said: list[Part] = [] if known else [Sentences([lead])]
    found = [Section(f"Where the time goes{of}", [*said, *parts], lead if known else "")]
    if causes:
        shown = Findings(list(map(of_cause, causes)), source="gpuscope why", when=when)
        order = "The largest gain comes first." if len(causes) > 1 else ""
        found.append(Section(f"What makes it slow{of}", [shown], order))
    look = read.mapping(document.get("look"))
    if look:
        found.append(Section(f"On the GPU{of}", _look(look)))
    return found


def _is_known(document: Document) -> bool:
    """Return whether shares of the wall clock are told: with few looks they mean nothing."""
    return bool(read.rows(document.get("rows"))) and document.get("enough_looks") is not False


def _lead(document: Document) -> str:
    slow = read.mapping(document.get("slower"))
    said = [text] if (text := read.text(document.get("sentence"))) else []
    if slow:
        said.append(
            f"Steps became slower: {read.said(slow.get('step_seconds_before'), duration_text)} "
            f"before, {read.said(slow.get('step_seconds_after'), duration_text)} after."
        )
    return " ".join(said)


def _figures(document: Document, when: str) -> Figures:
    figures = [
        Figure(
            "a step",
            read.said(document.get("step_seconds"), duration_text),
            "wall clock, everything between steps included",
        )
    ]
    work = read.mapping(document.get("useful_work"))
    mfu, floor = number(work.get("mfu")), number(work.get("floor_seconds"))
    if mfu is not None:
        figures.append(Figure("MFU", percent_text(mfu), "model FLOPs of the GPU's dense peak"))
    if floor is not None:
        figures.append(
            Figure("shortest step", duration_text(floor), "at the GPU's peak and bandwidth")
        )
    causes = read.rows(document.get("causes"))
    least = number(causes[0].get("step_seconds_at_least")) if causes else None
    if least is not None:
        figures.append(
            Figure("at least, if fixed", duration_text(least), read.text(causes[0].get("title")))
        )
    return Figures(figures, source="probe", when=when)


def _clock(document: Document, source: str, when: str) -> Waterfall:
    step, window = (number(document.get(f"{key}_seconds")) for key in ("step", "window"))
    rows = read.rows(document.get("rows"))
    tokens = tokens_of_rows([read.text(row.get("row")) for row in rows])
    bars = [bar for row in rows if (bar := _row(row, step, tokens)) is not None]
    whole = duration_text(step) if step is not None else read.said(window, duration_text)
    total = BarRow("wall clock", whole, 1.0, detail="100 %" if bars else "")
    notes = ["The line on a bar is the 95 % interval of its share."] if bars else []
    return Waterfall(
        "The wall clock of the training thread",
        bars,
        total,
        notes,
        "share, and where",
        source=source,
        when=when,
    )


def _split(rows: Sequence[Document]) -> Waterfall:
    """Return the parts of a step, by the marks of the probe: what is known without a clock."""
    tokens = {SPLIT_WORDS[name]: token for name, token in SPLIT_TOKENS.items()}
    tokens[MIXED] = SPLIT_TOKENS["compute"]
    whole = fsum(number(row.get("seconds")) or 0.0 for row in rows)
    bars = []
    for row in rows:
        name, seconds = read.text(row.get("part")), number(row.get("seconds"))
        if seconds is None or whole <= 0:
            continue
        token, share = tokens.get(name, REST), seconds / whole
        bars.append(BarRow(name, duration_text(seconds), share, token, False, percent_text(share)))
    total = BarRow("step", duration_text(whole), 1.0, detail="100 %")
    return Waterfall("The parts of a step", bars, total, (), "share", source="probe", when=OF_PARTS)


def _row(row: Document, step: float | None, tokens: Mapping[str, str]) -> BarRow | None:
    share = number(row.get("share"))
    if share is None:
        return None
    name = read.text(row.get("row"))
    low, high = number(row.get("share_low")), number(row.get("share_high"))
    each = duration_text(step * share) if step is not None else DASH
    detail = percent_text(share)
    places = [text for one in read.rows(row.get("places")) if (text := read.text(one.get("place")))]
    detail += f" · {places[0]}" if places else ""
    words = WORDS.get(name, WORDS["unattributed"])
    return BarRow(words, each, share, tokens.get(name, REST), False, detail, low, high)


def _ranks(trainers: Sequence[Document], when: str) -> Table:
    rows = []
    for one in trainers[:MAX_RANKS]:
        most = [
            f"{WORDS.get(read.text(row.get('row')), WORDS['unattributed'])} {percent_text(share)}"
            for row in read.rows(one.get("rows"))[: 4 * _is_known(one)]
            if (share := number(row.get("share")) or 0.0) >= 0.01
        ]
        rank = number(one.get("rank"))
        name = f"rank {rank:.0f}" if rank is not None else f"pid {read.count(one.get('pid'))}"
        rows.append(
            (name, read.said(one.get("step_seconds"), duration_text), " · ".join(most) or DASH)
        )
    notes = [f"{len(trainers) - MAX_RANKS} more are left out."] * (len(trainers) > MAX_RANKS)
    return Table(
        "The ranks", ("Rank", "Step", "Where its time goes"), rows, (1,), notes, source=SOURCE,
        when=when,
    )  # fmt: skip


def _look(look: Document) -> list[Part]:
    problem = read.text(look.get("problem"))
    if problem:
        return [Sentences([f"No GPU trace was taken: {problem}."], "muted")]
    seconds, steps = number(look.get("seconds")), number(look.get("steps"))
    bars = []
    for row in read.rows(look.get("rows")):
        share, took = number(row.get("share")), number(row.get("seconds"))
        if share is None or took is None:
            continue
        place = read.text(row.get("place"))
        kernels = [read.text(one.get("name")) for one in read.rows(row.get("kernels"))[:1]]
        detail = " · ".join([percent_text(share), *filter(None, (place, *kernels))])
        bars.append(
            BarRow(
                words_of(read.text(row.get("row"))),
                duration_text(took / steps) if steps else duration_text(took),
                share,
                LOOK_TOKENS.get(read.text(row.get("kind")), REST),
                False,
                detail,
                number(row.get("share_low")),
                number(row.get("share_high")),
            )
        )
    each = duration_text(seconds / steps) if seconds is not None and steps else DASH
    busy = read.said(look.get("busy_share"), percent_text)
    title = f"A step on the GPU: busy for {busy} of the time"
    when = f"{read.count(steps)} steps"
    return [
        Waterfall(
            title,
            bars,
            BarRow("a step", each, 1.0),
            (),
            "share, where, longest kernel",
            source="a trace of the GPU",
            when=when,
        )
    ]
