"""Python 3.10, which has no reader of TOML, reads our TOML files.

They are the config file, the Lab's matrix and the pitfalls.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes import pythons

ROOT = Path(__file__).parents[1]
READ = """
import sys
sys.modules["tomllib"] = None  # what Python 3.10 does not have
from pip._vendor import tomli
sys.modules["tomli"] = tomli
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from gpuscope import config
from gpuscope.doctor import table
from gpuscope.lab import claims, matrix, pitfalls
from gpuscope.lab.config import ConfigError, LabConfig

place = Path(sys.argv[2])
settings, problems = config.load(place / "config.toml")
assert (settings.rate_hz, problems) == (5.0, []), problems
assert "line 1" in config.load(place / "wrong.toml")[1][0]
assert len(matrix.read_file(place / "matrix.toml", LabConfig()).cells) == 2
try:
    matrix.read_file(place / "wrong.toml", LabConfig())
except ConfigError as error:
    assert "is not TOML" in str(error), error
assert pitfalls.load() and table.load() and claims.load()
assert sys.modules["tomllib"] is None
print(sys.version_info[1])
"""


@pytest.mark.parametrize("minor", ["this", 10])
def test_without_tomllib_every_file_is_read_with_tomli(minor, tmp_path):
    python = sys.executable if minor == "this" else pythons.find(minor)
    if python is None:
        pytest.skip(f"there is no Python 3.{minor} on this machine")
    if subprocess.run(
        [python, "-c", "from pip._vendor import tomli"], capture_output=True
    ).returncode:
        pytest.skip(f"the pip of {python} brings no tomli")
    (tmp_path / "config.toml").write_text("rate_hz = 5\n")
    (tmp_path / "matrix.toml").write_text('[vary]\namp = ["off", "bf16"]\n')
    (tmp_path / "wrong.toml").write_text("a = = 3\n")
    done = subprocess.run(
        [python, "-c", READ, str(ROOT), str(tmp_path)], capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(sys.version_info[1] if minor == "this" else minor)
