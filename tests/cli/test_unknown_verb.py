"""A first word that is no verb gets the command that it most likely meant, and exit code 64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from tests.fakes.in_process import command


def advice(*words: str) -> str:
    """What a usage error names as the next command."""
    done = command(*words)
    assert (done.returncode, done.stdout) == (64, "")
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("Next: "))
    return line[len("Next: ") :].partition("    ")[0]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("Doctor", "gpuscope doctor"),
        ("runn --history 5 x.py", "gpuscope run --history 5 x.py"),
        ("devcies --json", "gpuscope devices --json"),
        ("atach me@there", "gpuscope attach me@there"),
        ("sweep --repeats 2", "gpuscope lab sweep --repeats 2"),
        ("lab swep --vary batch=1,2", "gpuscope lab sweep --vary batch=1,2"),
        ("compare 1 2", "gpuscope lab runs compare 1 2"),
        ("lab compare 1 2", "gpuscope lab runs compare 1 2"),
        ("help predicct", "gpuscope predict --help"),
        ("me@there", "gpuscope attach me@there"),
        ("slurm:4242", "gpuscope attach slurm:4242"),
        ("python train.py --epochs 3", "gpuscope run python train.py --epochs 3"),
        (
            "torchrun --nproc-per-node 2 train.py",
            "gpuscope run torchrun --nproc-per-node 2 train.py",
        ),
        ("gpus --json", "gpuscope devices --json"),
    ],
)
def test_the_nearest_command_is_named(typed, meant):
    assert advice(*typed.split()) == meant


def test_a_process_is_attached_to_and_one_that_is_gone_is_not():
    assert advice(str(os.getpid())) == f"gpuscope attach {os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        assert advice(str(child.pid)) == "gpuscope ps"


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train.py", "gpuscope run train.py --epochs 3"),
        ("my run.gsr", "gpuscope replay 'my run.gsr'"),
        ("oom.pickle", "gpuscope snapshot oom.pickle"),
        ("oom.pickle.gz", "gpuscope snapshot oom.pickle.gz"),
        ("slurm-42.out", "gpuscope doctor slurm-42.out"),
        ("doctors", "gpuscope doctor doctors"),
    ],
)
def test_a_file_is_given_to_the_verb_that_takes_it(name, meant, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("")
    assert advice(name, "--epochs", "3") == meant


def test_a_script_that_is_not_there_is_not_offered(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert advice("train.py") == "gpuscope run SCRIPT"


def test_a_recording_or_snapshot_that_is_not_there_is_a_missing_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("night.gsr", "oom.pickle"):
        done = command(name)
        assert done.returncode == 64
        assert f"there is no file {name}" in done.stderr


def test_what_is_near_nothing_gets_the_list():
    done = command("frobnicate")
    assert done.returncode == 64
    assert "Next:" not in done.stderr
    assert "devices" in done.stderr


@pytest.mark.parametrize("words", ["help", "help lab", "help lab sweep", "help run"])
def test_help_is_the_same_as_the_option(words):
    asked = command(*words.split())
    assert asked.returncode == 0
    assert asked.stdout.startswith("usage: gpuscope")
    assert asked.stdout == command(*words.split()[1:], "--help").stdout


def test_the_programs_usage_has_a_verb_and_the_labs_help_is_not_referred_to_by_itself():
    assert "gpuscope VERB" in command("--help").stdout.partition("\n\n")[0]
    assert "lab --help" not in command("lab", "--help").stdout


def test_words_of_other_programs_lead_to_ours():
    done = command("demo")
    assert done.returncode == 64
    assert "Did you mean lab?" in done.stderr
    assert "Next: gpuscope lab" in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("ps --jsn", "--json"),
        ("predict --largest-bach", "--largest-batch"),
        ("lab runs compar 1 2", "compare"),
        ("doctor --fail-on warnings", "warning"),
        ("completion bsh", "bash"),
        ("--readolny", "--readonly"),
        ("predict --nf4", "--quantize nf4"),
        ("tune gpt-small --bf16", "--amp bf16"),
        ("--theme light replay x.gsr", "gpuscope replay --theme light x.gsr"),
    ],
)
def test_the_nearest_option_or_value_is_named_without_the_list_of_all(typed, meant):
    done = command(*typed.split())
    assert (done.returncode, done.stdout) == (64, "")
    assert f"Did you mean {meant}?" in done.stderr
    assert "usage:" not in done.stderr


def test_explain_is_an_option_of_the_doctor():
    done = command("explain", "num-workers")
    assert (done.returncode, done.stdout) == (64, "")
    assert "gpuscope doctor --explain num-workers" in done.stderr


@pytest.mark.parametrize(
    ("typed", "example"),
    [
        ("ps --zzz", "gpuscope ps user@host"),
        ("--json", "gpuscope --oneline --watch 5"),
        ("record -- night.gsr --force", "gpuscope record night.gsr --duration 28800"),
    ],
)
def test_an_option_like_no_other_gets_an_example(typed, example):
    done = command(*typed.split())
    assert done.returncode == 64
    assert "Did you mean" not in done.stderr
    assert "usage:" not in done.stderr
    assert f"Example: {example}" in done.stderr


@pytest.mark.parametrize("verb", ["why", "doctor", "replay", "report"])
def test_a_file_in_a_folder_of_somebody_else_is_not_said_to_be_missing(
    verb, tmp_path, monkeypatch, capsys
):
    closed = tmp_path / "gpuscope-0"
    closed.mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and may(path, mode))
    assert cli.main([verb, str(closed / "7-1.box")]) == 3
    said = capsys.readouterr().err
    assert f"{closed}/7-1.box cannot be read" in said
    assert f"Why: you have no permission to enter the folder {closed}" in said
