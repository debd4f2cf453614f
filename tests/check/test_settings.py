"""The table of trainings and budgets, and what is said of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.check import settings
from gpuscope.errors import UsageError

FULL = """\
[build-system]
requires = []

[tool.gpuscope.check]
scripts = ["train.py"]
path = ["src"]

[tool.gpuscope.check.training.gpt]
factory = "train:make"
batch = 8
amp = "bf16"
checkpoint = true
fits = "4090"
peak = "21 GiB"
regression = "2 %"
step_time = "250 ms"
slower = "5 %"

[tool.gpuscope.check.training."two words"]
factory = "gpt-small"
card = "24 GiB"
regression = "50 MiB"
"""
SHARED = Path("pyproject.toml")


def test_every_budget_and_switch_is_read_with_its_line():
    found = settings.parsed(SHARED, FULL)
    gpt, other = found.trainings.values()
    request = gpt.request("here")
    assert (request.batch, request.amp, request.checkpoint) == (8, "bf16", 1)
    assert (request.architecture, request.project) == ("8.9", "here")
    assert (gpt.fits, gpt.peak_bytes, gpt.step_seconds, gpt.slower) == (True, 21 << 30, 0.25, 0.05)
    assert gpt.regression is not None
    assert gpt.regression.of(1000) == 20
    assert (gpt.line(), gpt.line("peak"), gpt.line("seed")) == (8, 14, 8)
    assert other.regression is not None
    assert other.regression.of(1000) == 50 << 20
    assert (other.fits, other.card.total_bytes, other.line("card")) == (False, 24 << 30, 21)
    assert (found.scripts, found.path) == (("train.py",), ("src",))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("batch = 8", "bacth = 8", "pyproject.toml:10: .* bacth: .* Did you mean batch?"),
        ("batch = 8", "batch = 0", "pyproject.toml:10: .* batch"),
        ("batch = 8", 'parallel = "fdsp"', "pyproject.toml:10: .* parallel must be one of"),
        ('amp = "bf16"', 'amp = "bf61"', "pyproject.toml:11: .* amp cannot be 'bf61'"),
        ('fits = "4090"', 'fits = "4091"', "pyproject.toml:13: .* no known GPU"),
        ('peak = "21 GiB"', "peak = 21", "pyproject.toml:14: .* peak cannot be 21"),
        ('"2 %"', '"2 percent"', "pyproject.toml:15: .* no percentage and no size"),
        ('"250 ms"', '"250"', "pyproject.toml:16: .* no time"),
        ('factory = "train:make"\n', "", "pyproject.toml:8: .* factory is missing"),
        ('"train:make"', '"train:"', "pyproject.toml:9: .* no MODULE:FACTORY"),
        ("scripts =", "script =", "pyproject.toml:5: .* Did you mean scripts?"),
        ("[tool.gpuscope.check]", "[tool.gpuscope.check", "not TOML"),
    ],
)
def test_what_is_wrong_is_named_with_file_line_and_key(old, new, said):
    assert old in FULL
    with pytest.raises(UsageError, match=said):
        settings.parsed(SHARED, FULL.replace(old, new, 1))


def test_a_name_that_is_none_is_guessed():
    with pytest.raises(UsageError, match=r"no training 'gtp'. Did you mean gpt\?"):
        settings.parsed(SHARED, FULL).chosen(["gtp"])


def test_the_file_is_found_above_and_the_own_one_first(tmp_path):
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    with pytest.raises(UsageError, match=r"add to pyproject\.toml"):
        settings.read(inner)
    (tmp_path / "pyproject.toml").write_text(FULL)
    assert settings.read(inner).file == tmp_path / "pyproject.toml"
    (tmp_path / "a" / "pyproject.toml").write_text("[project]\n")  # of another tool: passed over
    assert settings.read(inner).file == tmp_path / "pyproject.toml"
    (tmp_path / "gpuscope.toml").write_text('[check.training.one]\nfactory = "train:make"\n')
    assert list(settings.read(inner).trainings) == ["one"]
    (tmp_path / "a" / ".git").mkdir()  # another repository begins here
    with pytest.raises(UsageError, match="no training"):
        settings.read(inner)
