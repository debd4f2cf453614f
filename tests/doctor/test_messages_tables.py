"""The rules on messages are data.

Every pattern is one, and a mistake is named by file, row and key.
"""

from __future__ import annotations

import json
import re

import pytest

from gpuscope.checked_rows import TableError
from gpuscope.doctor.messages import tables, text

OPTION = {"pitfall": "shm-size", "title": "t", "weight": 0.5}
RULE = {"cause": "host.bus-error", "gate": ["bus error"], "options": [OPTION]}


def test_every_pattern_compiles_and_every_rule_can_fire():
    assert len(tables.rules()) > 100
    for rule in tables.rules():
        for pattern in (
            rule.pattern,
            rule.unlike,
            *(one for o in rule.options for one in (o.words, o.unlike)),
        ):
            re.compile(text.remove_spaces(pattern))
            assert "{{" not in pattern
        re.compile(rule.line)
        assert all(gate == gate.lower() and gate.strip() for gate in rule.gate), rule.cause
    for symptom in tables.symptoms((*tables.DESCRIBED, *tables.PLAIN, *tables.PRINTED)):
        re.compile(symptom.pattern)


def test_every_file_is_read():
    single = ("weights", tables.FIGURES, tables.ABSTENTIONS, tables.CIRCUMSTANCES)
    described = (*tables.DESCRIBED, *tables.PLAIN, *tables.PRINTED)
    read = {f"{name}.json" for name in (*tables.MESSAGES, *described, *single)}
    assert {path.name for path in tables.FOLDER.iterdir()} == read


def test_a_part_is_used_by_its_name_and_long_patterns_are_joined(tmp_path, monkeypatch):
    rule = {**RULE, "pattern": ["{{card}} is ", "gone|{{two}}"]}
    document = {"parts": {"card": ["(?:cuda", "|xpu)"], "two": "{{card}}:1"}, "rules": [rule]}
    (tmp_path / "made.json").write_text(json.dumps(document))
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    (one,) = tables.rules(("made",))
    assert one.pattern == "(?:cuda|xpu) is gone|(?:cuda|xpu):1"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ("{", "bad.json cannot be read: "),
        ([], "bad.json holds no object"),
        ({"rows": []}, "bad.json: its keys are about, notes, parts and rules, not rows"),
        ({"rules": [RULE, 7]}, "bad.json: rules 2 (7): 7 is no table"),
        (
            {"rules": [{**RULE, "gates": ["x"]}]},
            "bad.json: rules 1 (host.bus-error): no such key: gates.",
        ),
        (
            {"rules": [{**RULE, "gate": "bus"}]},
            "bad.json: rules 1 (host.bus-error): gate cannot be 'bus'",
        ),
        (
            {"rules": [{**RULE, "gate": [7]}]},
            "bad.json: rules 1 (host.bus-error): gate takes strings",
        ),
        (
            {"rules": [{**RULE, "severity": "bad"}]},
            "severity cannot be 'bad'. It is one of: problem, warning, info",
        ),
        ({"rules": [{**RULE, "options": []}]}, "options cannot be []"),
        (
            {"rules": [{**RULE, "options": [{**OPTION, "weight": "1"}]}]},
            "error): cause 1: weight cannot be '1'",
        ),
        (
            {"rules": [{**RULE, "options": [{**OPTION, "weight": 2}]}]},
            "cause 1: weight is 2, and goes from 0 to 1",
        ),
        (
            {"rules": [{**RULE, "options": [{"pitfall": "shm-size"}]}]},
            "cause 1: Option.__init__() missing 2 required",
        ),
        ({"rules": [{**RULE, "pattern": "{{card}}"}]}, "no part before this one is called card"),
        (
            {"parts": {"card": 7}, "rules": []},
            "parts: card: a pattern is a string or a list of strings, not 7",
        ),
    ],
)
def test_a_mistake_is_named_by_file_row_and_key(tmp_path, monkeypatch, document, says):
    (tmp_path / "bad.json").write_text(
        document if isinstance(document, str) else json.dumps(document)
    )
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    with pytest.raises(TableError) as error:
        tables.rules(("bad",))
    assert says in str(error.value)
    assert str(error.value).startswith("bad.json")


FIGURE = {"id": "oom.fraction", "says": "{free} are free", "votes": [OPTION]}
ABSTENTION = {"id": "no-trend", "pitfall": "shm-size", "missing": "m"}


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"rules": [{**FIGURE, "say": "x"}]},
            "bad.json: rules 1 (oom.fraction): no such key: say.",
        ),
        (
            {"rules": [{**FIGURE, "votes": []}]},
            "bad.json: rules 1 (oom.fraction): votes cannot be []",
        ),
        (
            {"rules": [{"votes": [OPTION]}]},
            "bad.json: rules 1 (None): FigureRule.__init__() missing 1 required",
        ),
        (
            {"rules": [{**FIGURE, "votes": [{**OPTION, "weight": 2}]}]},
            "cause 1: weight is 2, and goes from 0 to 1",
        ),
        (
            {"abstentions": [{**ABSTENTION, "missing": ""}]},
            "bad.json: abstentions 1 (no-trend): missing cannot be ''",
        ),
        (
            {"abstentions": [{"pitfall": "shm-size", "missing": "m"}]},
            "(None): Abstention.__init__() missing",
        ),
        ({"abstentions": [7]}, "bad.json: abstentions 1 (7): 7 is no table"),
        ({"rules": [FIGURE, FIGURE]}, "bad.json: two rows have the id oom.fraction"),
    ],
)
def test_a_mistake_in_a_row_with_an_id_is_named_too(tmp_path, monkeypatch, document, says):
    (tmp_path / "bad.json").write_text(json.dumps(document))
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    with pytest.raises(TableError) as error:
        (tables.abstentions if "abstentions" in document else tables.figure_rules)("bad")
    assert says in str(error.value)
    assert str(error.value).startswith("bad.json")


def test_every_row_with_an_id_is_asked_for():
    sources = "".join(path.read_text() for path in tables.FOLDER.parent.glob("*.py"))
    assert [
        name
        for name in (*tables.figure_rules(), *tables.abstentions())
        if f'"{name}"' not in sources
    ] == []
