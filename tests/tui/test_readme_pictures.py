"""The README's pictures are of today's program: what they say stands on its screens."""

from __future__ import annotations

import asyncio
from xml.etree import ElementTree

import pytest

from tests.tui.readme_picture import PREDICT, ROOT, SCREENS, replayed

TEXT = "{http://www.w3.org/2000/svg}text"


@pytest.mark.slow
@pytest.mark.parametrize("name", SCREENS)
def test_every_word_of_a_picture_stands_on_the_screen_that_it_shows(name):
    """One that fails asks for ``make pictures``, and for a look at them."""
    picture = ElementTree.parse(ROOT / "docs" / f"{name}.svg")
    _, *words = [one.text or "" for one in picture.iter(TEXT)]
    assert len(words) > 50
    recording, seconds, tab, _ = SCREENS[name]
    asyncio.run(replayed(recording, seconds, tab, *words))


def test_the_picture_of_a_prediction_shows_the_command_of_the_readme():
    assert f"`gpuscope {PREDICT}`" in (ROOT / "README.md").read_text()
    picture = ElementTree.parse(ROOT / "docs" / "predict.svg")
    assert f"$ gpuscope {PREDICT}" in "".join(one.text or "" for one in picture.iter(TEXT))


@pytest.mark.parametrize("name", [*SCREENS, "tour"])
def test_a_picture_has_the_names_of_files_and_hosts_and_not_what_redacting_makes_of_them(name):
    picture = ElementTree.parse(ROOT / "docs" / f"{name}.svg")
    shown = " ".join(one.text or "" for one in picture.iter(TEXT))
    for redacted in ("script-", "<path>", "host-1", "command-"):
        assert redacted not in shown
