"""Write the content of a report as one page of HTML that loads nothing.

The style sheet and the script are in the page, and a policy in its head allows these two by their
hashes and no request at all: whatever a name from outside says, nothing of it could run or load.
The page is whole without its script, which only zooms timelines.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any
from xml.etree.ElementTree import Element

from ..doctor.finding import Finding, Fix
from ..doctor.report import SHOWN_FIXES, fix_sentences
from ..doctor.steps import steps_of
from ..text import signs
from ..text.units import ROUND_SECONDS
from . import chart
from .content import (
    BarRow,
    Chapter,
    Code,
    Figures,
    Findings,
    Intervals,
    Map,
    Origin,
    Part,
    Section,
    Sentences,
    Table,
    Timeline,
    Waterfall,
)
from .elements import TEXT_CHARS, Child, element, raw, serialized

MAX_BYTES = 1_000_000
"""A page is no larger: longer texts are cut more, until it is not."""
TEXT_LIMITS = (2000, 400, 100)
MAX_ROWS, MAX_BARS, MAX_LINES = 400, 120, 400
"""Rows of a table, rows with a bar, and lines of code that are shown of one part."""


@cache
def _data(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _allowed(content: str) -> str:
    """Return the source expression that allows exactly this content."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def policy(style: str, script: str) -> str:
    """Return the content security policy of a page with this style sheet and this script."""
    return (
        f"default-src 'none'; style-src {_allowed(style)}; script-src {_allowed(script)}; "
        "base-uri 'none'; form-action 'none'"
    )


def html(chapters: Sequence[Chapter], made: str) -> str:
    """Return the page of these chapters; ``made`` says by what and when it was made."""
    found = ""
    for limit in TEXT_LIMITS:
        before = TEXT_CHARS.set(limit)
        try:
            found = _html(chapters, made)
        finally:
            TEXT_CHARS.reset(before)
        if len(found.encode("utf-8", "replace")) <= MAX_BYTES:
            break
    return found


def _html(chapters: Sequence[Chapter], made: str) -> str:
    style = _data("style.css")
    script = f"const STEPS={json.dumps(ROUND_SECONDS)},TICKS={chart.TICKS};\n{_data('page.js')}"
    title = chapters[0].title if len(chapters) == 1 else f"{len(chapters)} results"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy(style, script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"{title} · gpuscope"),
        raw("style", style),
    )
    body = element(
        "body",
        _contents(chapters) if len(chapters) > 1 else None,
        element("main", [_chapter(number, one) for number, one in enumerate(chapters, 1)]),
        element("footer", element("p", made)),
        raw("script", script),
    )
    return serialized(element("html", head, body, lang="en"))


def _contents(chapters: Sequence[Chapter]) -> Element:
    links = [
        element("li", element("a", one.title, href=f"#c{number}"), f" {one.kind}")
        for number, one in enumerate(chapters, 1)
    ]
    return element("nav", element("ul", links), class_="contents", aria_label="Contents")


def _chapter(number: int, one: Chapter) -> Element:
    sections = list(enumerate(one.sections, 1))
    links = [element("a", section.title, href=f"#c{number}s{place}") for place, section in sections]
    return element(
        "article",
        element(
            "header",
            element("p", one.kind, class_="kind"),
            element("h1", one.title),
            _facts(one.facts),
            [element("p", problem, class_="note warn") for problem in one.problems],
            element("nav", links, class_="sections", aria_label="Sections")
            if len(links) > 1
            else None,
        ),
        [_section(f"c{number}s{place}", section) for place, section in sections],
        id=f"c{number}",
    )


def _facts(facts: Sequence[tuple[str, str]]) -> Element | None:
    if not facts:
        return None
    rows = [element("div", element("dt", name), element("dd", value)) for name, value in facts]
    return element("dl", rows, class_="facts")


def _section(anchor: str, one: Section) -> Element:
    return element(
        "section",
        element("h2", one.title),
        element("p", one.lead, class_="lead") if one.lead else None,
        [_PARTS[type(part)](part) for part in one.parts],
        id=anchor,
    )


# ── parts ──


def _figure(part: Origin, title: str, content: Child, notes: Sequence[str] = ()) -> Element:
    """Return a part with its title above it, and its notes and its origin below."""
    return element(
        "figure",
        element("h3", title) if title else None,
        content,
        [element("p", note, class_="note") for note in notes],
        _origin(part),
    )


def _origin(part: Origin) -> Element | None:
    words = " · ".join(filter(None, (part.source, part.when)))
    return element("figcaption", words) if words else None


def _waterfall(part: Waterfall) -> Element:
    bars = [*part.bars[:MAX_BARS], *([part.total] if part.total is not None else [])]
    with_details = any(one.detail for one in bars)
    rows = [_bar_row(one, with_details, one is part.total) for one in bars]
    head = None
    if with_details and part.detail_head:
        cells = ("", "", "", part.detail_head)
        head = element("thead", element("tr", [element("th", cell) for cell in cells]))
    table = element(
        "table", _columns("value", with_details), head, element("tbody", rows), class_="waterfall"
    )
    notes = [*part.notes, *_left_out(len(part.bars), MAX_BARS)]
    return _figure(part, part.title, table, notes)


def _left_out(count: int, most: int) -> list[str]:
    """Return a note on the rows that are not shown."""
    return [f"{count - most:,} more are left out."] if count > most else []


def _columns(second: str, with_details: bool) -> Element:
    """Return the columns of a table of bars, which give them their widths."""
    names = ("label", second, "track", *(["detail"] if with_details else []))
    return element("colgroup", [element("col", class_=f"of-{name}") for name in names])


def _bar_row(one: BarRow, with_details: bool, total: bool) -> Element:
    detail = element("td", one.detail, class_="detail") if with_details else None
    return element(
        "tr",
        element("th", one.label, scope="row", class_="inside" if one.inside else None),
        element("td", one.value, class_="number"),
        element("td", chart.bar(one), class_="track"),
        detail,
        class_="total" if total else None,
    )


def _map(part: Map) -> Element:
    rows = [
        element(
            "tr",
            element("th", one.label, scope="row"),
            element("td", one.value, class_="number"),
            element("td", chart.map_row(one), class_="track"),
            element("td", one.detail, class_="detail"),
        )
        for one in part.rows[:MAX_BARS]
    ]
    label, value, detail = part.head
    head = [element("th", text) for text in (label, "", "", detail)]
    head[1] = element("th", value, class_="number")
    table = element(
        "table",
        _columns("value", True),
        element("thead", element("tr", head)),
        element("tbody", rows),
        class_="waterfall",
    )
    notes = [*part.notes, *_left_out(len(part.rows), MAX_BARS)]
    return _figure(part, part.title, [_legend(part.legend), table], notes)


def _legend(names: Mapping[str, str]) -> Element:
    """Return the meaning of the colours by their token."""
    entries = [
        element("span", element("i", class_=f"c-{token}"), name) for token, name in names.items()
    ]
    return element("div", entries, class_="legend")


def _figures(part: Figures) -> Element:
    tiles = [
        element(
            "div",
            element("dt", one.label),
            element("dd", one.value, class_=one.tone or None),
            element("dd", one.note, class_="note") if one.note else None,
        )
        for one in part.figures
    ]
    return _figure(part, "", element("dl", tiles, class_="figures"))


def _table(part: Table) -> Element:
    right = set(part.right)

    def cells(row: Sequence[str], tag: str) -> Iterable[Element]:
        for number, text in enumerate(row):
            first = tag == "td" and number == 0
            yield element(
                "th" if first else tag,
                text,
                scope=("row" if first else "col") if first or tag == "th" else None,
                class_="number" if number in right else None,
            )

    rows = [
        element("tr", cells(row, "td"), class_=part.tones.get(number) or None)
        for number, row in enumerate(part.rows[:MAX_ROWS])
    ]
    table = element(
        "div",
        element(
            "table", element("thead", element("tr", cells(part.head, "th"))), element("tbody", rows)
        ),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label=part.title or "table",
    )
    notes = [*part.notes, *_left_out(len(part.rows), MAX_ROWS)]
    return _foldable(part, f"{part.title} ({len(part.rows):,})", table, part.folded, notes)


def _foldable(
    part: Table | Code, folded_title: str, content: Child, folded: bool, notes: Sequence[str] = ()
) -> Element:
    if not folded:
        return _figure(part, part.title, content, notes)
    inside = element("details", element("summary", folded_title), content)
    return _figure(part, "", inside, notes)


def _sentences(part: Sentences) -> Element:
    return element(
        "div", [element("p", text, class_=part.tone or None) for text in part.texts], _origin(part)
    )


def _code(part: Code) -> Element:
    notes = _left_out(len(part.lines), MAX_LINES)
    return _foldable(part, part.title, _lines(part.lines[:MAX_LINES]), part.folded, notes)


def _lines(lines: Sequence[str], class_: str | None = None) -> Element:
    """Return lines of code; each is a text of its own, so that its indentation is kept."""
    texts: list[Child] = []
    for line in lines:
        texts += [element("code", line.expandtabs(4)), "\u0020"]
    return element("pre", texts, class_=class_, tabindex="0")


def _timeline(part: Timeline) -> Element:
    strips = [
        element(
            "div",
            element("span", one.label, class_="label"),
            chart.strip(one, part),
            element("span", one.value, class_="value"),
            class_="row",
        )
        for one in part.strips
    ]
    names = {curve.token: curve.name for one in part.strips for curve in one.curves if curve.name}
    content = element(
        "div",
        _legend(names) if names else None,
        strips,
        element(
            "div",
            element("span", class_="label"),
            chart.axis(part),
            element("span", class_="value"),
            class_="row axis-row",
        ),
        class_="timeline",
        data_seconds=f"{part.seconds:.3f}",
        data_begin=None if part.begin is None else f"{part.begin:.3f}",
    )
    return _figure(part, part.title, content, part.notes)


def _intervals(part: Intervals) -> Element:
    ends = chart.scale_of(part.rows)
    rows = [
        element(
            "tr",
            element("th", one.label, scope="row"),
            element("td", one.text, class_="number"),
            element("td", chart.interval(one, ends), class_="track"),
            element("td", one.note, class_="detail"),
        )
        for one in part.rows
    ]
    table = element("table", _columns("ratio", True), element("tbody", rows), class_="waterfall")
    return _figure(part, part.title, table, part.notes)


def _findings(part: Findings) -> Element:
    return _figure(part, "", [_finding(one) for one in part.findings], part.notes)


def _finding(one: Finding) -> Element:
    about = ", ".join(filter(None, (one.severity, one.confidence, one.job, one.where)))
    evidence = [
        element(
            "li", row.text, element("span", row.source, class_="source") if row.source else None
        )
        for row in one.evidence
    ]
    now_first = steps_of(one, replayed=False)
    more = f"gpuscope doctor --explain {one.pitfall}" if one.pitfall else ""
    commands = [text for text in (one.verify, more) if text]
    return element(
        "div",
        element(
            "h4",
            element("span", signs.BY_SEVERITY.get(one.severity, signs.INFO), class_="sign"),
            one.title,
        ),
        element("p", about, class_="note"),
        element("ul", evidence, class_="evidence") if evidence else None,
        _labelled("Gain", one.effect.text) if one.effect is not None else None,
        [
            _fix("or" if number else "Fix", fix)
            for number, fix in enumerate(now_first[:SHOWN_FIXES])
        ],
        _labelled("See", [[element("code", text), " "] for text in commands]) if commands else None,
        class_=f"finding {one.severity}",
    )


def _labelled(label: str, content: Child) -> Element:
    return element("p", element("b", label), " ", content, class_="labelled")


def _fix(label: str, fix: Fix) -> Element:
    lines = [*fix.code.splitlines(), *filter(None, (fix.environment, fix.command))]
    return element(
        "div",
        _labelled(label, fix_sentences(fix)),
        _lines(fix.before.splitlines(), "before") if fix.before else None,
        _lines(lines, "after" if fix.before else None) if lines else None,
    )


_PARTS: dict[type[Part], Callable[[Any], Element]] = {
    Waterfall: _waterfall,
    Map: _map,
    Figures: _figures,
    Table: _table,
    Sentences: _sentences,
    Code: _code,
    Timeline: _timeline,
    Intervals: _intervals,
    Findings: _findings,
}
