"""In a real browser the page shows its text, says nothing on the console and asks for nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.report import page
from tests.report import browser, made_up
from tests.report.test_page import HOSTILE, everything

pytestmark = pytest.mark.slow
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a recording of two minutes."""
    browser.program()
    folder = tmp_path_factory.mktemp("page")
    made_up.recording(folder / "run.gsr", 130.0)
    out = folder / "run.html"
    assert cli.main(["report", str(folder / "run.gsr"), "-o", str(out)]) == 0
    return out


def with_script(path: Path, script: str) -> Path:
    """Return a copy of a page without its policy, with another script behind its own."""
    text = POLICY.sub("", path.read_text(), count=1)
    copy = path.with_name("driven.html")
    copy.write_text(text.replace("</body>", f"<script>{script}</script></body>"))
    return copy


def axes(document: str) -> list[list[str]]:
    """The times below each timeline."""
    return [
        re.findall(r"<text[^>]*>([^<]+)</text>", one)
        for one in re.findall(r'<svg class="axis".*?</svg>', document, re.DOTALL)
    ]


def test_a_page_is_read_without_a_word_or_a_request(recorded):
    seen = browser.browse(recorded)
    assert seen.console == []
    assert seen.requests == []
    for text in ("What happened", "used (= nvidia-smi)", "train.py", "drag over a chart to zoom"):
        assert text in seen.document
    assert seen.document.count("<button") == 5
    assert axes(seen.document) == axes(recorded.read_text()), "the script draws the same times"
    assert len(axes(seen.document)[0]) >= 3


def test_hostile_names_do_nothing(tmp_path):
    joined = tmp_path / "all.html"
    chapters = [everything(text) for text in HOSTILE.values()]
    joined.write_text(page.html(chapters, "made"))
    seen = browser.browse(joined)
    assert seen.console == []
    assert seen.requests == []


def test_even_markup_that_got_in_would_neither_run_nor_load(tmp_path):
    evil = (
        "<img src='http://example.com/x.png' onerror='console.log(1)'>"
        "<script>console.log('ran');fetch('http://example.org/')</script>"
        "<link rel=stylesheet href='http://example.net/x.css'>"
        "<style>@import 'http://example.net/y.css';</style>"
    )
    path = tmp_path / "evil.html"
    path.write_text(page.html([everything("x")], "made").replace("<main>", f"<main>{evil}"))
    seen = browser.browse(path)
    assert seen.requests == []
    assert seen.console
    assert all("Content Security Policy" in line for line in seen.console)
    loose = with_script(path, "")
    assert browser.browse(loose).requests, "without the policy the browser would have asked"


ZOOM = """
const strip = document.querySelector('.strip'), box = strip.getBoundingClientRect();
strip.setPointerCapture = () => {};
const at = (kind, share) => strip.dispatchEvent(new PointerEvent(kind,
  {clientX: box.left + share * box.width, clientY: box.top + 5, bubbles: true, button: 0}));
at('pointerdown', 0.25); at('pointermove', 0.5); at('pointerup', 0.75);
"""


def test_dragging_over_a_chart_zooms_all_charts(recorded):
    seen = browser.browse(with_script(recorded, ZOOM))
    assert seen.console == []
    boxes = re.findall(r'class="plot"[^>]*viewBox="([^"]+)"', seen.document)
    assert len(boxes) >= 8
    for box in boxes:
        left, _, width, _ = map(float, box.split())
        assert left == pytest.approx(width / 2, rel=0.02)
    before, after = axes(recorded.read_text())[0], axes(seen.document)[0]
    assert before != after
    assert before[0] < after[0]
    reset = browser.browse(
        with_script(recorded, ZOOM + "strip.dispatchEvent(new Event('dblclick'))")
    )
    assert axes(reset.document)[0] == before


@pytest.mark.parametrize("width", [390, 1200])
def test_a_page_is_no_wider_than_its_window(recorded, width):
    """The page lies in a frame, because a window of the browser is at least 500 wide."""
    told = "parent.postMessage(document.documentElement.scrollWidth + ' of ' + innerWidth, '*')"
    driven = with_script(recorded, told)
    frame = driven.with_name("frame.html")
    frame.write_text(
        "<script>onmessage = (event) => { document.title = event.data; }</script>"
        f'<iframe src="{driven.name}" style="width:{width}px;height:900px;border:0"></iframe>'
    )
    seen = browser.browse(frame, "--window-size=1300,900")
    wide, window = map(int, re.search(r"<title>(\d+) of (\d+)", seen.document).groups())
    assert window == width
    assert wide <= window


def test_a_page_prints(recorded, tmp_path):
    out = tmp_path / "page.pdf"
    browser.pictured(recorded, tmp_path / "page.png", 1000, 800, f"--print-to-pdf={out}")
    data = out.read_bytes()
    assert data.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", data)) <= 12
