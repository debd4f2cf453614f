"""The lines below the lab's panels say what speaks against the switches.

They also say what the switch under the cursor is.
"""

from __future__ import annotations

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.tui.lab.text import notes_of
from gpuscope.tui.runs.choices import SWITCHES, note
from tests.fakes import views
from tests.tui.pilot import in_loop, make_app, until
from tests.tui.snapshots import SIZES, text

THREE = LabConfig(device="cpu", amp="fp16", tf32=True, loader="slow", workers=64)
"""Three things speak against it on a CPU of few cores, and fp16 has another that is better."""


@pytest.fixture(autouse=True)
def _ledger(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "lab.sqlite"))


def below(screen: str) -> list[str]:
    """The rows between the panels and the footer."""
    lines = screen.splitlines()
    last = max(number for number, line in enumerate(lines) if "╰" in line)
    return lines[last + 1 : -1]


def said(rows: list[str]) -> str:
    return " ".join(" ".join(rows).split())


@pytest.mark.slow
@in_loop
async def test_the_whole_text_of_every_switch_stands_below_notes_and_nothing_moves():
    app = make_app(views.cpu_only(), "lab", lab=THREE)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(
            pilot,
            "Demo trainer",
            "fp16 autocast on a CPU is slow.",
            "--tf32 does nothing on a CPU.",
        )
        heights = set()
        for toggle in SWITCHES:
            rows = below(text(app))
            heights.add(len(rows))
            about, here = note(toggle, app.session.labs.config, app.session.labs.device)
            assert f"{toggle.name.replace('_', ' ')} {about}{'; ' + here if here else ''}" in said(
                rows
            )
            await pilot.press("j")
            await pilot.pause()
        assert len(heights) == 1


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
@in_loop
async def test_what_has_no_room_is_counted_and_the_key_that_helps_stays(size):
    app = make_app(views.cpu_only(), "lab", lab=THREE)
    async with app.run_test(size=size) as pilot:
        await until(pilot, "Demo trainer", "fp16 autocast on a CPU is slow.")
        assert len(app.session.labs.verdicts()) == 3
        told = said(below(text(app)))
        assert "n: amp bf16" in told
        assert ("and 1 more" in told) == (size == (80, 24))
        assert ("--tf32 does nothing on a CPU." in told) == (size != (80, 24))


@in_loop
async def test_a_note_that_is_cut_says_so():
    app = make_app(views.cpu_only(), "lab", lab=THREE)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, "Demo trainer")
        for least, most in ((2, 2), (3, 3), (4, 4)):
            lines = notes_of(app.session.labs, SWITCHES[0], 78, least, most)
            assert least <= len(lines) <= most
            assert "…" in "".join(piece for piece, _ in lines[0])
