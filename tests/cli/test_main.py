"""The command line as a user meets it."""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import sys

import pytest

import gpuscope
from gpuscope.cli import main as cli
from tests.fakes.cases import each
from tests.fakes.in_process import command

PYTHON = shlex.quote(sys.executable)


def gpuscope_cli(
    *words: str, encoding: str = "utf-8", **more: str | None
) -> subprocess.CompletedProcess[str]:
    """``more`` are variables of its environment; None removes one."""
    env = {name: value for name, value in {**os.environ, **more}.items() if value is not None}
    return subprocess.run(
        [sys.executable, "-m", "gpuscope", *words],
        capture_output=True,
        encoding=encoding,
        timeout=60,
        env=env,
    )


def test_version():
    assert gpuscope_cli("--version").stdout.strip() == f"gpuscope {gpuscope.__version__}"


def test_help_names_every_verb():
    out = gpuscope_cli("--help").stdout
    assert all(verb in out for verb in cli.VERBS)


@each("verb", [v for v in cli.VERBS if v != "run"])
def test_every_verb_has_help(verb):
    done = command(verb, "--help")
    assert done.returncode == 0
    assert f"gpuscope {verb}" in done.stdout


@pytest.mark.parametrize(("verb", "option"), [("attach", "--debug"), ("predict", "--seed=3")])
def test_options_that_few_need_are_taken_and_not_listed(verb, option):
    assert option.partition("=")[0] not in command(verb, "--help").stdout
    done = command(verb, option, "--no-such-option")
    assert done.returncode == 64
    assert "--no-such-option" in done.stderr
    assert f"arguments: {option}" not in done.stderr


def test_unknown_option_is_a_usage_error():
    assert command("devices", "--jsn").returncode == 64


@pytest.mark.parametrize(
    ("verb", "encoding"),
    [("ps", "ascii"), pytest.param("devices", "latin-1", marks=pytest.mark.slow)],
)
def test_an_encoding_without_our_characters_ends_no_verb(verb, encoding):
    done = gpuscope_cli(verb, encoding=encoding, PYTHONIOENCODING=encoding)
    assert done.returncode in (0, 3)
    assert done.stderr == ""
    assert done.stdout


def test_an_encoding_without_our_characters_shows_likenesses():
    code = (
        "from gpuscope.cli import main; main._usable_streams();"
        " print('4 GiB ± 2 %, – µs ○ … \\u00e4')"
    )
    done = subprocess.run(
        [PYTHON, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.stdout, done.stderr) == ("4 GiB +- 2 %, - us o ~ ?\n", "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", ["devices", "ps --json", "--help", "run --help", "run", "nonsense"]
)
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_accident(words, closed):
    whole = gpuscope_cli(*words.split()).returncode
    line = f"{PYTHON} -m gpuscope {words} {closed}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Traceback" in done.stderr) == (whole, False)


@pytest.mark.slow
def test_run_leaves_closed_streams_closed():
    code = "import os; os.fstat(1)"
    line = f"{PYTHON} -m gpuscope run -- {PYTHON} -c '{code}' >&-"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60)
    assert "Bad file descriptor" in done.stderr


def test_a_full_disk_is_said_and_a_reader_that_left_is_not():
    line = f"{PYTHON} -m gpuscope devices --json"
    full = subprocess.run(
        ["sh", "-c", line + " > /dev/full"], capture_output=True, text=True, timeout=60
    )
    assert (full.returncode, full.stderr) == (
        3,
        "gpuscope: cannot write the output: No space left on device\n",
    )
    left = subprocess.run(
        ["sh", "-c", f"{line} | true; {line} | head -c 1"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (left.stdout, left.stderr) == ("{", "")


def test_no_home_and_nowhere_to_write(tmp_path):
    for more in (
        {"HOME": None},
        {"HOME": "/proc"},
        {"XDG_CACHE_HOME": "/proc", "XDG_STATE_HOME": "/proc"},
    ):
        done = gpuscope_cli("ps", **more)
        assert (done.returncode in (0, 3), done.stderr) == (True, "")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["-1", "nan", "inf", "0", "x", "1e9"])
def test_a_timeout_that_makes_no_sense_is_a_usage_error(seconds):
    done = gpuscope_cli("ps", "--timeout", seconds)
    assert (done.returncode, "from 0.1 to 600" in done.stderr) == (64, True)


EVIL = "\x1b]0;mine\x07\x1b[31mX\u202e\x9b2J\u200b"


@pytest.mark.parametrize(
    "words",
    [
        "EVIL",
        pytest.param("enable EVIL", marks=pytest.mark.slow),
        pytest.param("run EVIL", marks=pytest.mark.slow),
        pytest.param("run DIR", marks=pytest.mark.slow),
        pytest.param("run -- DIR/EVIL", marks=pytest.mark.slow),
        pytest.param("record DIR", marks=pytest.mark.slow),
        "record FILE",
        pytest.param("snapshot FILE", marks=pytest.mark.slow),
        pytest.param("snapshot 1 -o FILE", marks=pytest.mark.slow),
        pytest.param("doctor EVIL", marks=pytest.mark.slow),
        pytest.param("ps --via EVIL x", marks=pytest.mark.slow),
    ],
)
def test_nothing_that_was_typed_is_obeyed_by_a_terminal(words, tmp_path):
    (tmp_path / f"dir{EVIL}").mkdir()
    (tmp_path / f"file{EVIL}").write_text("no recording")
    names = {
        "DIR": str(tmp_path / f"dir{EVIL}"),
        "FILE": str(tmp_path / f"file{EVIL}"),
        "EVIL": EVIL,
    }
    typed = words.split(" ")
    for name, real in names.items():
        typed = [word.replace(name, real) for word in typed]
    done = gpuscope_cli(*typed, XDG_CONFIG_HOME=str(tmp_path))
    assert done.returncode in (3, 64), done.stderr
    said = done.stdout + done.stderr
    assert "Traceback" not in said
    assert not set(EVIL) & set(said) - set("[]0123456789;minemJX")


@pytest.mark.slow
def test_a_line_end_that_was_typed_begins_no_line_of_ours():
    for words in (["enable", "a\ngpuscope: all is well"], ["run", "a\ngpuscope: all is well"]):
        assert "\ngpuscope: all" not in gpuscope_cli(*words).stderr


def test_a_printer_lets_our_own_sequences_pass():
    def printed(own, text):
        raw = io.BytesIO()
        printer = cli.Printer(io.TextIOWrapper(raw, "utf-8"))
        printer._own = own
        printer.write(text)
        printer.flush()
        return raw.getvalue().decode()

    assert printed(cli._COLOURS, "\x1b[31mred\x1b[0m\n\x1b[2J") == "\x1b[31mred\x1b[0m\n\\x1b[2J"
    assert printed(cli._PROGRESS, "\r5 % é\x1b[K") == "\r5 % é\x1b[K"
    assert printed(cli._PROGRESS, "\r     \r") == "\r     \r", "a line of progress that is removed"
    assert printed(cli._PROGRESS, "a\rb\x1b[31m\x1b[K\n") == "a\\x0db\\x1b[31m\\x1b[K\n"
