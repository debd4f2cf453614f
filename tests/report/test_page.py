"""A page is text where its content is text, loads nothing, and is whole without a script."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpuscope.doctor.finding import Effect, Evidence, Finding, Fix
from gpuscope.report import chart, page
from gpuscope.report.content import (
    BarRow,
    Chapter,
    Code,
    Curve,
    Figure,
    Figures,
    Findings,
    Intervals,
    Map,
    MapRow,
    Piece,
    Ratio,
    Section,
    Sentences,
    Strip,
    Table,
    Timeline,
    TimeMark,
    Waterfall,
)
from tests.fakes.cases import each

HOSTILE = {
    "script": "<script>alert(1)</script>",
    "end of the style": "</style></script><img src=x onerror=alert(1)>",
    "attribute": '" onload=alert(1) x=\'"><svg onload=alert(1)>',
    "entity": "&lt;b&gt; &amp;&#x3c;b>",
    "comment": "<!-- --><![CDATA[ x ]]>",
    "controls": "a\x00b\x1b[31mred\x07\x08\x7f\x9b2J",
    "order": "safe\u202egnp.exe\u2066\u200f",
    "surrogate": "broken \ud800 half",
    "large": "x" * 1_000_000,
    "link": "javascript:alert(1)//http://example.com/x.png",
}
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "main", "footer", "script", "article",
    "header", "section", "nav", "a", "p", "h1", "h2", "h3", "h4", "dl", "dt", "dd", "div", "span",
    "figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "ul", "li", "b", "i",
    "pre", "code", "details", "summary", "colgroup", "col",
    "svg", "g", "rect", "line", "path", "text", "circle",
}  # fmt: skip


class Reader(HTMLParser):
    """Collects tags, attributes and texts as a browser would see them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.values: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        for name, value in attrs:
            self.attributes.add(name)
            self.values.append(f"{name}={value}")

    def handle_data(self, data):
        self.texts.append(data)


def everything(text: str) -> Chapter:
    bar = BarRow(text, text, 0.4, "allocated", True, text, 0.3, 0.5)
    finding = Finding(
        pitfall=text, cause=text, title=text, severity="problem", confidence="likely", where=text,
        evidence=(Evidence(text, text),), effect=Effect(text=text), verify=text,
        fixes=(Fix(title=text, code=text, before=text, environment=text, command=text),),
    )  # fmt: skip
    curve = Curve("series1", [0.0, None, 1.0], [1.0, None, 2.0], text)
    strip = Strip(text, [curve], 0.0, 2.0, (text, text), text)
    row = MapRow(text, text, 1.0, [Piece(0.2, 0.5, "partly")], text)
    parts = [
        Waterfall(text, [bar], bar, [text], text, source=text, when=text),
        Map(text, (text, text, text), [row], {"partly": text}),
        Figures([Figure(text, text, text)], source=text),
        Table(text, (text, text), [(text, text)], (1,), [text], folded=True),
        Sentences([text]),
        Code(text, [text]),
        Timeline(text, [strip], 60.0, 1e9, [TimeMark(0.5, text)], [text]),
        Intervals(text, [Ratio(text, 1.1, 1.0, 1.2, text, text)]),
        Findings([finding], [text]),
    ]
    return Chapter(text, text, [Section(text, parts, text)], [(text, text)], [text])


@each("name", list(HOSTILE))
def test_a_hostile_name_stays_text(name):
    text = page.html([everything(HOSTILE[name])] * 2, HOSTILE[name])
    plain = page.html([everything("plain")] * 2, "plain")
    read, usual = Reader(text), Reader(plain)
    assert read.tags == usual.tags
    assert read.tags <= ALLOWED
    assert read.attributes == usual.attributes
    assert not any(one.startswith("on") or one in ("src", "style") for one in read.attributes)
    assert all(value.startswith("href=#") for value in read.values if value.startswith("href"))
    shown = "".join(read.texts)
    visible = [char for char in shown if not (char.isprintable() or char == "\n")]
    assert visible == []
    assert len(text.encode()) < 300_000


def test_the_policy_allows_the_style_and_the_script_of_the_page_and_no_request():
    text = page.html([everything("x")], "made")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert policy.startswith("default-src 'none';")
    for tag in ("style", "script"):
        (content,) = re.findall(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)
        hashed = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{hashed}'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", text)


def test_code_keeps_its_indentation():
    text = page.html([Chapter("t", "k", [Section("s", [Code("c", ["if x:", "\ty = '<'"])])])], "m")
    assert "<code>if x:</code>" in text
    assert "<code>    y = '&lt;'</code>" in text


def test_what_is_unknown_leaves_a_gap_in_a_curve():
    curve = Curve("series1", [1.0, 1.0, None, 1.0, 3.0], [1.0, 1.0, None, 2.0, 3.0])
    line, band = sorted(
        chart.curve_paths(curve, 0.0, 4.0), key=lambda path: path.get("class"), reverse=True
    )
    assert (line.get("class"), line.get("d")) == ("line c-series1", "M0 75l1 0l1 0")
    assert band.get("class") == "band c-series1"
    assert band.get("d").startswith("M3 50l1 -25l1 0L5 25")
    assert chart.curve_paths(replace(curve, low=[None], high=[None]), 0.0, 1.0) == []


@pytest.mark.parametrize(
    ("begin", "seconds", "first", "last"),
    [
        (None, 90.0, "00:00:00", "00:01:30"),
        (1_000_000_000.0 + 7.0, 3600.0, "01:50", "02:40"),
        (1_000_000_000.0, 0.5, "01:46:40.0", "01:46:40.5"),
        (1_000_000_000.0, 10 * 86400.0, "11 Sep", "19 Sep"),
        (None, 3 * 86400.0, "00:00", "3 d 00:00"),
    ],
)
def test_the_times_of_an_axis_are_round(begin, seconds, first, last):
    found = chart.ticks(begin, seconds)
    assert 2 <= len(found) <= chart.TICKS + 1
    assert (found[0][1], found[-1][1]) == (first, last)
    assert all(0 <= at <= 1 + 1e-9 for at, _ in found)


def test_no_time_has_no_axis():
    assert chart.ticks(None, 0.0) == chart.ticks(1e9, float("nan")) == []


def test_a_wide_interval_leaves_the_ratios_apart():
    wide = Ratio("wide", 1.5, 1e-7, 1e7, "")
    sure = Ratio("sure", 2.0, 1.9, 2.1, "")
    low, high = chart.scale_of([wide, sure])
    assert 0 <= low < 0.1
    assert high == pytest.approx(3.12)
    drawn = chart.interval(wide, (low, high))
    span = next(one for one in drawn if "span" in one.get("class"))
    assert (span.get("x1"), span.get("x2")) == ("0.00%", "100.00%")


def test_a_page_of_very_much_is_cut_until_it_is_small():
    rows = [("x" * 5000, "y" * 5000)] * 5000
    long = Chapter("t", "k", [Section("s", [Table("t", ("a", "b"), rows)])])
    text = page.html([long], "made")
    assert len(text) <= page.MAX_BYTES
    assert "4,600 more are left out." in text
    assert f"{'x' * 99}…" in text or f"{'x' * 399}…" in text
