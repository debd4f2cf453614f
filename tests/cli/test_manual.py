"""The manual page is that of the program, and man finds nothing wrong with it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli.command_tree import commands
from gpuscope.cli.manual import page

PAGE = Path(__file__).parents[2] / "docs" / "gpuscope.1"


def rendered() -> str:
    if shutil.which("man") is None:
        pytest.skip("man is not installed here")
    done = subprocess.run(
        ["man", "--warnings", "-E", "ascii", "-l", str(PAGE)],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "MANWIDTH": "200", "MAN_KEEP_FORMATTING": "", "LC_ALL": "C.UTF-8"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    return re.sub(".\b", "", done.stdout)


def test_the_committed_page_is_current():
    """If not: python -m gpuscope.cli.manual > docs/gpuscope.1."""
    assert PAGE.read_text() == page()


def test_man_shows_every_verb_option_and_exit_code_without_a_warning():
    shown = rendered()
    for verb in cli.VERBS:
        assert re.search(rf"^ +gpuscope {verb}\b", shown, re.M), verb
    names = {name for one in commands() for option in one.options for name in option.names}
    assert {"--fail-on", "--what-if", "--share-gpus"} <= names
    missing = [name for name in names - {"-h", "--help"} if name not in shown]
    assert missing == []
    assert re.search(r"^ +124 +the time limit was reached$", shown, re.M)


def test_no_line_of_text_is_taken_for_a_request():
    """Every request is one of the few that the page is made of."""
    used = set(re.findall(r"^[.'](\S*)", PAGE.read_text(), re.M))
    assert used <= {'\\"', "TH", "SH", "SS", "PP", "TP", "BR", "nf", "fi"}
