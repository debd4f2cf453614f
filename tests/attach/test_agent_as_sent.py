"""What is sent to other hosts: small, and still all that the agent names."""

from __future__ import annotations

import functools
import io
import os
import re
import stat
import sys
import types
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pynvml
import pytest

from gpuscope.attach import agent_source, bundle

ROOT = Path(__file__).parents[2]


bare, only = functools.cache(agent_source.bare), functools.cache(agent_source.only)
"""For one source they do all their work, two seconds of it, once."""


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_source, "bare", bare)
    monkeypatch.setattr(agent_source, "only", only)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "gpuscope"


def archive(data: bytes) -> zipfile.ZipFile:
    return zipfile.ZipFile(io.BytesIO(zlib.decompress(data)))


@pytest.mark.slow
def test_every_name_of_pynvml_that_the_agent_uses_travels(cache, monkeypatch):
    source = archive(agent_source.zip_to_send()).read("pynvml.py").decode()
    lean = types.ModuleType("lean_pynvml")
    monkeypatch.setitem(sys.modules, "lean_pynvml", lean)
    exec(compile(source, "pynvml.py", "exec"), lean.__dict__)
    using = "".join(path.read_text() for path in (ROOT / "gpuscope/collect").glob("*.py"))
    names = {
        name
        for name in re.findall(r"\b(?:nvml|NVML|c_nvml|_nvml)\w+", using)
        if hasattr(pynvml, name)
    }
    assert len(names) > 40
    assert {name for name in names if not hasattr(lean, name)} == set()
    errors = {name for name in dir(pynvml) if name.startswith(("NVMLError", "NVML_ERROR_"))}
    assert errors <= set(dir(lean))  # made while it is imported
    with pytest.raises(lean.NVMLError):
        lean._nvmlCheckReturn(lean.NVML_ERROR_NOT_SUPPORTED)
    assert len(source) < len(Path(pynvml.__file__).read_text()) / 5


@pytest.mark.slow
def test_all_else_is_as_it_was(cache):
    sent, whole = archive(agent_source.zip_to_send()), bundle.agent_contents()
    assert set(sent.namelist()) == set(whole)
    assert all(
        sent.read(name) == agent_source.bare(content)
        for name, content in whole.items()
        if name != "pynvml.py"
    )


@pytest.mark.slow
def test_it_is_made_once_and_a_changed_file_is_not_used(cache):
    first = agent_source.zip_to_send()
    (path,) = cache.glob("agent-*.zz")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    made = path.stat().st_mtime_ns
    assert agent_source.zip_to_send() == first
    assert path.stat().st_mtime_ns == made
    path.write_bytes(first[:-1] + b"x" + path.read_bytes()[-32:])
    assert agent_source.zip_to_send() == first
    path.chmod(0o666)
    path.write_bytes(b"evil" + bytes(32))
    assert agent_source.zip_to_send() == first
    os.unlink(path)
    path.symlink_to("/etc/passwd")
    assert agent_source.zip_to_send() == first


def test_words_decide_and_all_other_statements_stay():
    source = '''"""Doc."""
import os
A = 1
B = A + 1
NVML_ERROR_X = 7
if os: C = 3
@property
def used(x):
    return helper(x)
def helper(x):
    return B
def unused():
    return secret()
def secret():
    pass
class Odd(Exception):
    pass
'''
    left = agent_source.only(source, "used Odd")
    assert "def helper" in left
    assert "A = 1" in left
    assert "@property\ndef used" in left
    assert "class Odd" in left
    assert "NVML_ERROR_X" in left
    assert "if os: C" in left
    assert "secret" not in left
    compile(left, "x", "exec")


def test_annotations_stay_where_they_are_the_fields_of_a_class():
    source = b"""from dataclasses import dataclass
@dataclass
class Point:
    across: int
    down: int = 0  # rows
    def moved(self, by: int) -> "Point": return Point(self.across + by, self.down)
def far(*points: Point, most: "dict[str,int]" = {}) -> bool:
    '''Whether one is.'''
    found: bool = False
    last: int
    for last in (one.across for one in points): found = found or last > 9
    return found
"""
    sent = agent_source.bare(source)
    assert b"def far(*points, most = {})" in sent
    assert b" found = False" in sent
    assert [line.split()[:1] for line in sent.splitlines()][10:] == [[b"for"], [b"return"]]
    names: dict[str, Any] = {}
    exec(compile(sent, "sent.py", "exec"), names)
    point = names["Point"](8).moved(2)
    assert (point.across, point.down, names["far"](point)) == (10, 0, True)
