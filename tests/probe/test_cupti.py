"""CUPTI is set up once, by a library that the process has loaded already, and by no other."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess

import pytest

from gpuscope.probe import cupti

SOURCE = """
int enabled, calls, left_out, known = 500;
int cuptiActivityEnableRuntimeApi(unsigned number, unsigned char enable) {
  if (number >= known) return 1;
  left_out += enable ? -1 : 1;
  return 0;
}
int cuptiActivityEnableDriverApi(unsigned number, unsigned char enable) { return 0; }
int cuptiActivityEnable(int kind) { calls++; enabled |= 1 << kind; return 0; }
int cuptiActivityDisable(int kind) { calls++; enabled &= ~(1 << kind); return 0; }
"""


@pytest.fixture
def library(tmp_path, monkeypatch):
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    path = tmp_path / "libcupti.so.99"
    command = [compiler, "-shared", "-fPIC", "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    monkeypatch.setattr(cupti, "_set_up", [])
    monkeypatch.setattr(cupti, "_library", [])
    return path


def test_a_loaded_library_is_set_up_once_and_left_as_it_was(library):
    loaded = ctypes.CDLL(str(library))
    spent = cupti.set_up()
    assert spent is not None
    assert spent[0] <= spent[1]
    calls = ctypes.c_int.in_dll(loaded, "calls")
    assert (calls.value, ctypes.c_int.in_dll(loaded, "enabled").value) == (2, 0)
    assert (cupti.set_up(), calls.value) == (None, 2)


def test_a_library_that_is_not_loaded_stays_so(library, tmp_path):
    maps = tmp_path / "maps"
    maps.write_text(f"7f00-7f01 r-xp 00000000 00:00 1    {library}\n")
    assert cupti.set_up(str(maps)) is None
    with pytest.raises(OSError):
        ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def test_launches_are_left_out_and_taken_in_again_by_what_this_library_knows_of(library):
    loaded = ctypes.CDLL(str(library))
    left_out = ctypes.c_int.in_dll(loaded, "left_out")
    assert cupti.record_launches(False)
    assert left_out.value == 6
    assert cupti.record_launches(True)
    assert left_out.value == 0
    ctypes.c_int.in_dll(loaded, "known").value = 0
    assert not cupti.record_launches(False)


def test_an_older_library_and_none_at_all_record_all_calls(monkeypatch):
    monkeypatch.setattr(cupti, "_library", [ctypes.CDLL(None)])
    assert not cupti.record_launches(False)
    monkeypatch.setattr(cupti, "_library", [])
    monkeypatch.setattr(cupti, "loaded", lambda: None)
    assert not cupti.record_launches(False)
