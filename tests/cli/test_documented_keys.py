"""The page on JSON names the keys that the documents of the verbs have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fakes.documented import keys
from tests.fakes.in_process import command

ROOT = Path(__file__).parents[2]
SNAPSHOT = ROOT / "demos" / "snapshots" / "failing.pickle.gz"
SCRIPT = ROOT / "demos" / "pitfalls" / "slow_input.py"


@pytest.mark.parametrize(
    ("words", "section", "row", "each"),
    [
        (["ps"], "ps", "the document", ""),
        (["doctor", str(SCRIPT)], "doctor", "the document", ""),
        (["doctor", str(SCRIPT)], "doctor", "each of `findings`", "findings"),
        (["snapshot", str(SNAPSHOT)], "snapshot", "the document", ""),
        (["snapshot", str(SNAPSHOT)], "snapshot", "each of `devices`", "devices"),
        (["snapshot", str(SNAPSHOT)], "snapshot", "each of `events`", "events"),
        (["lab", "runs"], "lab runs", "`lab runs`", ""),
        (["attach"], "The others", "`attach`", ""),
        (["enable", "--status"], "The others", "`enable --status`", ""),
        (["enable", "--status"], "The others", "each of `places`", "places"),
        (["lab", "pitfall"], "The others", "`lab pitfall`", ""),
        (["lab", "pitfall"], "The others", "each of `pitfalls`", "pitfalls"),
        (["lab", "claims", "--list"], "The others", "`lab claims --list`", ""),
        (["lab", "claims", "--list"], "The others", "each of `claims`", "claims"),
    ],
)
def test_the_page_names_the_keys_of_a_document(words, section, row, each, monkeypatch, tmp_path):
    monkeypatch.setenv("GPUSCOPE_LEDGER", str(tmp_path / "ledger.db"))
    document = json.loads(command(*words, "--json").stdout)
    found = document[each][0] if each else document
    assert sorted(keys(section, row)) == sorted(found)
