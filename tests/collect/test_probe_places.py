"""Directories and sockets made to hide other users' trainers from root hide none.

A limit that cuts says so.
"""

from __future__ import annotations

import os
import re
import socket
import time

import pytest

from gpuscope.agent.assembler import Assembler
from gpuscope.agent.picture import Picture
from gpuscope.cli.commands.ps import document as ps_document
from gpuscope.collect import containers, probe_sockets, trainers
from gpuscope.doctor import live
from gpuscope.process.procfs import start_ticks
from gpuscope.store.store import Store
from gpuscope.tui.overview import empty_states
from gpuscope.wire import frames
from tests.fakes import probe_process, wire
from tests.fakes.waiting import until

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root looks into everybody's directories"
)
NOBODY = 65534


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A /tmp of our own."""
    monkeypatch.setattr(
        probe_sockets, "BASES", ((str(tmp_path), re.compile(r"^gpuscope-([1-9][0-9]{0,9})$"), ""),)
    )
    monkeypatch.setattr(containers.SocketFinder, "places", lambda self, now: [])
    return tmp_path


def make(base, uid, owner=None):
    place = base / f"gpuscope-{uid}"
    place.mkdir(mode=0o700)
    os.chown(place, uid if owner is None else owner, -1)
    return place


def scanned(probes):
    probes.scan(time.monotonic())
    for _ in range(20):
        probes.poll(0.05)
    return probes.take()


def test_directories_named_for_others_hide_nobody(base, monkeypatch):
    names = os.listdir
    # nobody's first
    monkeypatch.setattr(probe_sockets.os, "listdir", lambda path: sorted(names(path), reverse=True))
    for uid in range(70000, 70500):
        make(base, uid, NOBODY)
    other = make(base, 12345)
    found = probe_sockets.places()
    assert (str(other), 12345) in found.found
    assert len(found.squatted[NOBODY]) == 500
    assert not found.left_out
    probes = trainers.Probes()
    try:
        probes.scan(0.0)
        (told,) = [text for text in probes.take()[2] if str(base) in text]
        assert "499 more" in told
        assert f"owned by uid {NOBODY}" in told
        assert probes.unread is None
    finally:
        probes.close()


def test_a_limit_that_cuts_is_told_everywhere(base, monkeypatch):
    monkeypatch.setattr(probe_sockets, "MAX_DIRECTORIES", 3)
    monkeypatch.setattr(probe_sockets.processes, "owners", lambda: {70009})
    for uid in range(70000, 70010):
        make(base, uid)
    assert (str(base / "gpuscope-70009"), 70009) in probe_sockets.places().found, (
        "who has processes comes first"
    )
    probes = trainers.Probes()
    try:
        probes.scan(0.0)
        why = probes.unread
    finally:
        probes.close()
    assert why.code == frames.TOO_MANY
    assert "10 users" in why.text
    picture = Picture(0.0, frames.HostDef(), {}, {}, 0.0, None, unread=why)
    definitions, sample, _ = Assembler().tick(picture, wire.hello().m + 1)
    assert [0, "trainers", why.code, why.text] in sample.why
    assert {
        "device": None,
        "severity": "unchecked",
        "reason": why.text,
    } in ps_document.find_problems(picture)
    store = Store()
    store.add_source("here", "here")
    for frame in (wire.hello(), *definitions, sample):
        store.apply("here", frame, 1.0)
    host = store.view().host
    assert why.text in live.examine(host).problems[0]
    assert any(why.text in text for line in empty_states.problems(host) for text, _ in line)


def test_one_user_does_not_take_all_links_from_the_others(base, monkeypatch):
    monkeypatch.setattr(trainers, "MAX_LINKS_OF_ONE", 0)
    greedy = make(base, 12345)
    with socket.socket(socket.AF_UNIX) as listener:
        path = greedy / f"{os.getpid()}-1.sock"
        listener.bind(str(path))
        listener.listen()
        os.chown(path, 12345, -1)
        own = probe_process.make_directory(base / "gpuscope-0")
        monkeypatch.setattr(
            probe_sockets,
            "places",
            lambda given: probe_sockets.Places([(str(greedy), 12345), (str(own), 0)]),
        )
        probes = trainers.Probes()
        try:
            with probe_process.start(own) as good:
                until(lambda: [news for news in scanned(probes)[0] if news.pid == good.pid], 15.0)
            assert "uid 12345 has more than 0 probes" in probes.unread.text
        finally:
            probes.close()


def test_sockets_without_a_process_do_not_hide_the_one_that_has(base, monkeypatch):
    monkeypatch.setattr(probe_sockets, "MAX_SOCKETS", 2)
    place = make(base, 12345)
    start = start_ticks(os.getpid())
    for name in (*(f"99999{n}-7.sock" for n in range(8)), f"{os.getpid()}-{start}.sock"):
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(place / name))
        os.chown(place / name, 12345, -1)
    with probe_sockets.Directory(str(place), 12345) as directory:
        found = directory.sockets()
        assert found[0].pid == os.getpid()
        assert len(found) == 2
        assert "9 sockets" in directory.left_out


def test_one_users_namespaces_do_not_hide_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "MAX_NAMESPACES_OF_ONE", 4)
    (tmp_path / "self" / "ns").mkdir(parents=True)
    (tmp_path / "self/ns/mnt").symlink_to("mnt:[1]")
    for pid in range(10, 40):
        (tmp_path / str(pid) / "ns").mkdir(parents=True)
        (tmp_path / str(pid) / "ns/mnt").symlink_to(f"mnt:[{pid}]")
        os.chown(tmp_path / str(pid), NOBODY if pid < 39 else 12345, -1)
    place = tmp_path / "39/root/tmp/gpuscope-12345"
    place.mkdir(parents=True)
    os.chown(place, 12345, -1)
    for name in range(100):  # its owner's, and named for nobody in there
        (place.parent / f"gpuscope-{name}").mkdir()
        os.chown(place.parent / f"gpuscope-{name}", 12345, -1)
    monkeypatch.setattr(containers, "open_inside", lambda path: os.open(path, os.O_RDONLY))
    finder = containers.SocketFinder(str(tmp_path))
    assert finder.places(0.0) == [(str(place), 12345)]
    (said,) = finder.left_out
    assert f"uid {NOBODY} has 29 containers: 25 are not searched" in said


def test_an_old_listing_is_used_until_the_directory_changes(base, monkeypatch):
    make(base, 70001)
    os.utime(base, (1e9, 1e9))  # long ago: whatever comes will have a newer time
    listed = []
    names = os.listdir
    monkeypatch.setattr(
        probe_sockets.os, "listdir", lambda path: listed.append(path) or names(path)
    )
    assert [uid for _, uid in probe_sockets.places().found[-1:]] == [70001]
    probe_sockets.places()
    assert listed == [str(base)]
    make(base, 70002)  # changed just now, so that it may change again within the same time
    for _ in range(2):
        assert {70001, 70002} <= {uid for _, uid in probe_sockets.places().found}
    assert listed == [str(base)] * 3
