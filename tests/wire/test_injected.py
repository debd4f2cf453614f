"""What killed injections left behind goes; what somebody may still need stays."""

from __future__ import annotations

import fcntl
import os
import time

import pytest

from gpuscope.attach.inject_payload import names
from gpuscope.probe import rendezvous, safety
from gpuscope.wire import injected

GONE = 1 << 22
"""No kernel gives out this pid."""
NONCE = "0123456789abcdef"


def put(folder, name, age):
    path = folder / name
    path.write_text("x")
    os.utime(path, (time.time() - age,) * 2)
    return path


def test_the_files_of_a_process_that_is_gone_are_removed(tmp_path):
    script, sources, answer = names(f"{GONE}-{NONCE}")
    for name in (
        script,
        sources,
        answer,
        sources + ".taken",
        answer + ".new",
        f"inject-{GONE}.lock",
    ):
        put(tmp_path, name, 120)
    (tmp_path / names(f"{GONE}-{NONCE[::-1]}")[2]).symlink_to("why it failed")
    os.utime(tmp_path / names(f"{GONE}-{NONCE[::-1]}")[2], (0, 0), follow_symlinks=False)
    old = put(tmp_path, names(f"{os.getpid()}-{NONCE}")[0], 7200)
    kept = {
        put(tmp_path, names(f"{os.getpid()}-{NONCE}")[1], 120),
        put(tmp_path, names(f"{GONE}-{NONCE[:8] * 2}")[0], 5),
        put(tmp_path, f"{GONE}-1.box", 7200),
        put(tmp_path, f"inject-{GONE}-notes.py", 7200),
    }
    held = put(tmp_path, f"inject-{GONE + 1}.lock", 7200)
    with open(held) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert injected.remove_left(str(tmp_path)) == 8
        assert not old.exists()
        assert set(tmp_path.iterdir()) == kept | {held}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_others_stay(tmp_path):
    script = put(tmp_path, names(f"{GONE}-{NONCE}")[0], 120)
    os.chown(script, 65534, -1)
    assert injected.remove_left(str(tmp_path)) == 0
    assert script.exists()


def test_a_probe_that_starts_and_the_next_injection_look_for_them(tmp_path, monkeypatch):
    from gpuscope.attach.inject_place import InjectionDirectory
    from gpuscope.attach.inject_target import process

    monkeypatch.setattr(rendezvous, "directory", lambda: str(tmp_path))
    left = put(tmp_path, names(f"{GONE}-{NONCE}")[0], 120)
    safety._clear()
    assert not left.exists()
    with InjectionDirectory(process(os.getpid())) as place:
        left = os.path.join(f"/proc/self/fd/{place._directory}", names(f"{GONE}-{NONCE}")[0])
        with open(left, "w"):
            os.utime(left, (0, 0))
        place.clear()
        assert not os.path.lexists(left)
