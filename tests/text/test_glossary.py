"""The glossary: whole, short, and the page that is made from it."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest

from gpuscope.checked_rows import TableError
from gpuscope.text import glossary

ROOT = Path(__file__).parent.parent.parent
TERMS = glossary.load()


def test_the_page_is_made_from_the_table():
    assert (ROOT / "docs" / "glossary.md").read_text() == glossary.page()


def test_each_meaning_is_one_to_three_short_sentences():
    for one in TERMS.values():
        assert one.meaning.endswith("."), one.term
        assert "|" not in one.meaning + one.term, one.term
        assert len(one.meaning) <= 160, one.term


def test_a_section_is_in_one_piece():
    sections = [name for name, _ in groupby(one.section for one in TERMS.values())]
    assert len(sections) == len(set(sections))


def test_other_words_lead_to_a_term_and_name_it_no_second_time():
    for one in TERMS.values():
        assert one.also, one.term
        assert len(set(one.also)) == len(one.also), one.term
        assert one.term not in one.also


def test_a_row_without_a_meaning_is_named(tmp_path, monkeypatch):
    path = tmp_path / "glossary.toml"
    path.write_text('[[term]]\nterm = "rank"\nsection = "Ranks"\nmeaning = ""\nalso = ["ddp"]\n')
    monkeypatch.setattr(glossary, "FILE", path)
    with pytest.raises(TableError, match="meaning cannot be ''"):
        glossary.load.__wrapped__()
