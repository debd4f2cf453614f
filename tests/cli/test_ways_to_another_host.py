"""The ways to another host are explained in one place."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gpuscope.cli import main as cli
from tests.fakes.in_process import command


def parsed(verb: str, *words: str) -> dict[str, Any]:
    parser = cli.Parser(prog="x")
    import_module(cli.module_of(verb, "")).add_arguments(parser)
    return vars(parser.parse_args(words))


def test_one_verb_explains_the_ways_to_another_host_and_the_others_name_it():
    for verb in ("doctor", "devices", "ps", "wait", "snapshot", "record"):
        page = command(verb, "--help").stdout
        assert "gpuscope attach --help" in page
        assert "docker exec" not in page
        assert parsed(verb, "--via", "sudo", *(["x"] if verb in ("record", "snapshot") else []))
    assert "docker exec" in command("attach", "--help").stdout
