"""The completion scripts, in the shells themselves."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from tests.fakes.in_process import command

CASES = [
    ("gpuscope dev", {"devices"}),
    ("gpuscope lab s", {"sweep"}),
    ("gpuscope lab runs c", {"compare"}),
    ("gpuscope help pre", {"predict"}),
    ("gpuscope doctor --fail-on w", {"warning"}),
    ("gpuscope lab --parallel f", {"fsdp"}),
    ("gpuscope completion z", {"zsh"}),
    ("gpuscope predict --gpu 4090", {"4090"}),
    ("gpuscope ps --vi", {"--via"}),
    ("gpuscope lab sweep --share", {"--share-gpus"}),
    ("gpuscope lab runs export --for", {"--format"}),
    ("gpuscope run --no-d", {"--no-doctor"}),
    ("gpuscope run tra", {"train.py"}),
    ("gpuscope run train.py tra", {"train.py"}),
    ("gpuscope run -- cat tra", {"train.py"}),
    ("gpuscope replay ni", {"night one.gsr"}),
    ("gpuscope record --from host x.gsr --durat", {"--duration"}),
    ("gpuscope doctor --bundle tra", {"train.py"}),
    ("gpuscope record --duration ", set()),
    ("gpuscope record --duration 5 ni", {"night one.gsr"}),
]


@cache
def script(shell: str) -> str:
    words = [sys.executable, "-m", "gpuscope", "completion", shell]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two files and the three scripts."""
    folder = tmp_path_factory.mktemp("here")
    for name in ("train.py", "night one.gsr"):
        (folder / name).write_text("")
    for shell in ("bash", "zsh", "fish"):
        (folder / f".{shell}").write_text(script(shell))
    return folder


def found(shell: str) -> str:
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed here")
    return path


BASH = """source .bash; shift 0
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _gpuscope
printf '%s\\n' "${COMPREPLY[@]}"
"""


def by_bash(line: str, here: Path) -> set[str]:
    """What the function answers for the line, whose last word is the one to complete."""
    words = [found("bash"), "--norc", "-c", BASH, "bash", *line.split(" ")]
    done = subprocess.run(words, cwd=here, capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return set(done.stdout.splitlines()) - {""}


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_bash_completes_verbs_options_values_and_files(line, expected, here):
    assert by_bash(line, here) == expected


def test_bash_offers_every_verb_and_no_option_that_is_taken_for_old_scripts(here):
    assert by_bash("gpuscope ", here) == {*cli.VERBS, "help"}
    options = by_bash("gpuscope predict --", here)
    assert {"--timeout", "--what-if", "--no-what-if"} <= options
    assert not {"--seconds", "--seed"} & options
    assert "ls" in by_bash("gpuscope run -- l", here)


class Terminal:
    """An interactive shell behind a real terminal."""

    def __init__(self, words: list[str], here: Path) -> None:
        self._main, side = pty.openpty()
        self._shell = subprocess.Popen(
            words, cwd=here, stdin=side, stdout=side, stderr=side, start_new_session=True,
            env={**os.environ, "PS1": "ready ", "TERM": "dumb", "INPUTRC": "/dev/null"},
        )  # fmt: skip
        os.close(side)
        self._until("ready ")

    def type(self, text: str, answer: str) -> None:
        """Press the keys, and wait for the answer and the next prompt."""
        os.write(self._main, text.encode())
        self._until(answer, "ready ")

    def _until(self, *parts: str) -> None:
        """Read until the parts have come one after the other."""
        seen, ends = "", time.monotonic() + 30
        while not re.search(".*".join(map(re.escape, parts)), seen, re.DOTALL):
            left = ends - time.monotonic()
            assert left > 0, seen
            assert select.select([self._main], [], [], left)[0], seen
            seen += os.read(self._main, 4096).decode(errors="replace")

    def close(self) -> None:
        self._shell.kill()
        self._shell.wait()
        os.close(self._main)


BEGIN = {
    "bash": "source .bash",
    "zsh": "autoload -U compinit; compinit -D -u; source ./.zsh",
}
WORDS = {"bash": ["--norc", "--noprofile", "-i"], "zsh": ["-f", "-i"]}


@pytest.mark.parametrize("shell", BEGIN)
def test_a_key_press_in_an_interactive_shell_completes_the_line(shell, here):
    terminal = Terminal([found(shell), *WORDS[shell]], here)
    try:
        show = 'gpuscope() { echo "got:$#:$*"; }; echo so""urced'
        terminal.type(f"{BEGIN[shell]}; {show}\n", "sourced")
        terminal.type("gpuscope doc\t--fail-on pro\t\n", "got:3:doctor --fail-on problem")
        terminal.type("gpuscope replay nig\t\n", "got:2:replay night one.gsr")
        terminal.type("gpuscope lab sw\t--share\t\n", "got:3:lab sweep --share-gpus")
        terminal.type("gpuscope run tra\t--fail-on tra\t\n", "run train.py --fail-on train.py")
        terminal.type("gpuscope doctor --fail-on=pro\t\n", "got:2:doctor --fail-on=problem")
    finally:
        terminal.close()


@pytest.mark.parametrize(("line", "expected"), CASES)
def test_fish_completes_the_same(line, expected, here):
    code = "source .fish; complete -C $argv[1]"
    done = subprocess.run(
        [found("fish"), "--no-config", "-c", code, line],
        cwd=here, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    offered = {row.partition("\t")[0].replace("\\ ", " ") for row in done.stdout.splitlines()}
    assert offered == expected


def test_a_shell_that_is_not_known_is_a_usage_error():
    done = command("completion", "tcsh")
    assert done.returncode == 64
    assert "bash" in done.stderr
