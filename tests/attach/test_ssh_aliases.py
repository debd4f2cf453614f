"""The hosts that a configuration of ssh names, as ssh itself reads it."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from gpuscope.attach import ssh_aliases
from gpuscope.attach.ssh_aliases import aliases


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a configuration, which the account has as far as this program knows."""
    monkeypatch.setattr(ssh_aliases, "_home", lambda: str(tmp_path))
    (tmp_path / ".ssh" / "conf.d").mkdir(parents=True)
    return tmp_path


def write(home, text: str, name: str = "config") -> None:
    (home / ".ssh" / name).write_text(text)


def test_names_are_listed_once_without_wildcards_in_the_order_of_the_files(home):
    write(
        home,
        "Include conf.d/*\nHost gpu1 gpu2 *.example !gpu3\n  HostName 10.0.0.1\n"
        "# Host commented\nhost = gpu1 'gpu4'   # the login node\nHost node-?\nHost -oProxy=x\n"
        'Match host x\n  User y\nHost "never closed\n',
    )
    write(home, "Host first\n", "conf.d/1")
    write(home, "HOST second\nInclude conf.d/*\n", "conf.d/2")
    assert aliases() == ["first", "second", "gpu1", "gpu2", "gpu4"]
    assert aliases(["ssh", "-F", "none"]) == []
    assert aliases(["ssh", f"-F{home}/.ssh/conf.d/1"]) == ["first"]


def test_a_file_that_is_included_for_one_host_only_is_not_looked_at(home):
    write(home, "Host gpu1\n  Include one\nMatch all\n  Include two\n")
    write(home, "Host inside\n", "one")
    write(home, "Host for-all\n", "two")
    assert aliases() == ["gpu1", "for-all"]


def test_files_that_include_each_other_or_cannot_be_read_end(home):
    assert aliases() == []
    write(home, "Include config\nHost gpu1\nInclude missing\n")
    assert aliases() == ["gpu1"]
    os.mkfifo(home / "pipe")
    write(home, f"Include {home}/pipe\nHost gpu1\n")
    assert aliases() == ["gpu1"]


@pytest.mark.skipif(shutil.which("ssh") is None, reason="no ssh here")
def test_ssh_itself_knows_each_name(home):
    """Each name leads to the address that the block of the configuration gives it."""
    write(home, f"Include {home}/.ssh/conf.d/more\nHost=a 'b'\n  HostName 10.0.0.1\n")
    write(home, "host c\n hostname=10.0.0.1\n", "conf.d/more")
    path = home / ".ssh" / "config"
    found = aliases(["ssh", "-F", str(path)])
    assert sorted(found) == ["a", "b", "c"]
    for name in found:
        told = subprocess.run(
            ["ssh", "-F", str(path), "-G", name], capture_output=True, text=True, check=True
        )
        assert "hostname 10.0.0.1" in told.stdout
