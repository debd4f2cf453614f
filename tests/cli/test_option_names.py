"""One idea has one name on the command line, and former names are still taken."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from gpuscope.cli import main as cli
from tests.fakes.in_process import command


def parsed(verb: str, word: str, *words: str) -> dict[str, Any]:
    parser = cli.Parser(prog="x")
    import_module(cli.module_of(verb, word)).add_arguments(parser)
    return vars(parser.parse_args(words))


FORMER = [
    ("tui", "", ["--every", "5"], ["--watch", "5"]),
    ("record", "", ["--seconds", "5", "x"], ["--duration", "5", "x"]),
    ("predict", "", ["--seconds", "5"], ["--timeout", "5"]),
    ("lab", "", ["--force"], ["--share-gpus"]),
    ("lab", "sweep", ["--force"], ["--share-gpus"]),
    ("lab", "sweep", ["--limit", "5"], ["--timeout", "5"]),
    ("lab", "claims", ["--limit", "5"], ["--timeout", "5"]),
]


@pytest.mark.parametrize(("verb", "word", "former", "now"), FORMER)
def test_a_former_name_does_the_same_and_is_not_listed(verb, word, former, now):
    assert parsed(verb, word, *former) == parsed(verb, word, *now)
    place = [] if verb == "tui" else [one for one in (verb, word) if one]
    assert former[0] not in command(*place, "--help").stdout


def test_a_former_name_that_is_not_given_changes_no_default():
    assert parsed("predict", "")["timeout"] == 300
    assert parsed("lab", "")["share_gpus"] is False


def test_a_wrong_value_is_told_under_the_name_that_was_typed():
    assert "--seconds" in command("predict", "--seconds", "x").stderr
    assert "--timeout" in command("predict", "--timeout", "x").stderr


def test_one_verb_explains_the_ways_to_another_host_and_the_others_name_it():
    for verb in ("doctor", "devices", "ps", "wait", "snapshot", "record"):
        page = command(verb, "--help").stdout
        assert "gpuscope attach --help" in page
        assert "docker exec" not in page
        assert parsed(verb, "", "--via", "sudo", *(["x"] if verb in ("record", "snapshot") else []))
    assert "docker exec" in command("attach", "--help").stdout
