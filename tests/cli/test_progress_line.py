"""The line that says what is done now."""

from __future__ import annotations

import io
import time

import pytest

from gpuscope.cli import progress_line
from gpuscope.cli.progress_line import ProgressLine
from tests.fakes.waiting import until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_takes_long_is_counted_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "EVERY_SECONDS", 0.01)
    monkeypatch.setattr(progress_line, "QUICK_SECONDS", 0.0)
    out = Terminal()
    with ProgressLine(out).counting("tracing it", 300):
        assert out.getvalue() == "\rtracing it …"
        until(lambda: " of at most 5 min …" in out.getvalue(), 10)
    size = len(out.getvalue())
    time.sleep(0.05)
    assert len(out.getvalue()) == size


def test_what_is_quick_is_not_counted() -> None:
    out = Terminal()
    with ProgressLine(out).counting("tracing it", 300):
        pass
    assert out.getvalue() == "\rtracing it …"


def test_a_file_gets_no_line_of_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_line, "EVERY_SECONDS", 0.01)
    out = io.StringIO()
    with ProgressLine(out).counting("tracing it", 300):
        time.sleep(0.03)
    assert out.getvalue() == ""
