"""The command line as a user meets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gpuscope
from gpuscope import cli


def gpuscope_cli(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "gpuscope", *words], capture_output=True, text=True, timeout=60)


def test_version():
    assert gpuscope_cli("--version").stdout.strip() == f"gpuscope {gpuscope.__version__}"


def test_help_names_every_verb():
    out = gpuscope_cli("--help").stdout
    assert all(verb in out for verb in cli.VERBS)


@pytest.mark.parametrize("verb", [v for v in cli.VERBS if v != "run"])
def test_every_verb_has_help(verb):
    done = gpuscope_cli(verb, "--help")
    assert done.returncode == 0
    assert f"gpuscope {verb}" in done.stdout


def test_unknown_verb_is_a_usage_error_that_lists_the_verbs():
    done = gpuscope_cli("frobnicate")
    assert done.returncode == 64
    assert "devices" in done.stderr
    assert "Traceback" not in done.stderr


def test_unknown_option_is_a_usage_error():
    assert gpuscope_cli("devices", "--jsn").returncode == 64
