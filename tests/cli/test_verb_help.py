"""Each verb's help has examples that its own parser takes, and its exit codes."""

from __future__ import annotations

import shlex

from gpuscope.cli import main as cli
from gpuscope.cli import verb_help
from gpuscope.cli.commands.lab import runs
from gpuscope.exit_status import ExitStatus
from tests.fakes.cases import each
from tests.fakes.in_process import command
from tests.fakes.program import python

ACTIONS = [f"lab runs {action}" for action in runs.ACTIONS]
COMMANDS = [
    "",
    *cli.VERBS,
    *(f"{verb} {word}" for verb, words in cli.SUBVERBS.items() for word in words),
    *ACTIONS,
]


def test_the_tables_know_the_commands_that_there_are():
    assert set(verb_help.EXAMPLES) == set(COMMANDS)
    assert set(verb_help.EXIT_CODES) == set(COMMANDS)


@each("words", ["", "doctor", "lab"])
def test_a_help_is_no_wider_than_the_terminal(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    page = command(*words.split(), "--help").stdout
    assert max(map(len, page.splitlines())) <= 72
    assert "  doctor" in page or words


@each("words", COMMANDS)
def test_a_help_begins_with_a_short_usage_and_fits_into_80_columns(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = command(*words.split(), "--help").stdout.splitlines()
    usage = lines[: lines.index("")]
    assert len(usage) <= 3
    assert all(line[:7] in ("usage: ", " " * 7) for line in usage)
    assert max(map(len, lines)) <= 80


@each("words", COMMANDS)
def test_a_help_has_examples_and_exit_codes(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")  # no text goes on in a second line
    page = command(*words.split(), "--help").stdout
    examples = page.partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= (1 if words == "lab runs set-aside" else 2)  # it takes no words
    for line in examples:
        assert line.startswith(f"  gpuscope {words}".rstrip()), line
        assert "  " in line.strip(), line
    if words == "run":
        assert verb_help.RUN_TEXT in page
        return
    rows = page.partition("\nexit codes:\n")[2].partition("\n\n")[0].splitlines()
    codes = [int(row.split()[0]) for row in rows]
    assert codes == sorted(codes)
    assert {0, 64} <= set(codes) <= {int(code) for code in ExitStatus}


@each("words", [one for one in COMMANDS if one != "run"])
def test_each_example_is_a_command_line_that_means_something(words):
    command, action = words.split()[:2], words.split()[2:]
    parser = cli.parser(*command)
    for example, does in verb_help.EXAMPLES[words]:
        assert does
        parser.parse_args([*action, *shlex.split(example.partition(" > ")[0])])


def test_no_verb_loads_the_texts_of_its_help():
    """Nor what helps after a wrong first word."""
    code = (
        "import sys; from gpuscope.cli.main import main\n"
        "main(['devices', '--json'])\n"
        "late = [one for one in sys.modules if one.startswith('gpuscope.cli.')]\n"
        "print(*late, file=sys.stderr)"
    )
    done = python("-c", code)
    loaded = set(done.stderr.split())
    assert "gpuscope.cli.commands.devices.verb" in loaded
    late = {"verb_help", "unknown_verb", "command_tree", "manual", "commands.completion"}
    assert not loaded & {f"gpuscope.cli.{name}" for name in late}
