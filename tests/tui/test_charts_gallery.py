"""Snapshots of all widgets together, and that a picture of them can be made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from gpuscope.tui import theme
from tests.tui.gallery import Gallery
from tests.tui.picture import picture
from tests.tui.snapshots import SIZES, run, snapshot, text


@pytest.mark.parametrize("size", SIZES)
def test_dark(size: tuple[int, int]) -> None:
    snapshot(Gallery, "gallery-dark", *size)


def test_light() -> None:
    snapshot(lambda: Gallery(theme.LIGHT), "gallery-light", 120, 40)


def test_without_colour(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")

    def make() -> Gallery:
        os.environ["NO_COLOR"] = "1"
        return Gallery()

    snapshot(make, "gallery-mono", 120, 40)


def test_ascii_is_ascii() -> None:
    async def body(pilot: object) -> None:
        shown = text(pilot.app)  # type: ignore[attr-defined]
        assert shown.isascii()
        assert "optimizer state" in shown

    run(lambda: Gallery(ascii_only=True), body, 120, 40)


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("chromium"), reason="needs chromium")
def test_a_picture_can_be_made(tmp_path: Path) -> None:
    target = tmp_path / "gallery.png"
    picture(Gallery, 80, 24, target)
    assert target.read_bytes().startswith(b"\x89PNG")
    assert target.stat().st_size > 10_000
