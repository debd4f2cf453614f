"""A trainer in a container, seen from the host: real namespaces, where this user may make them."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuscope.collect import containers, probe_sockets
from gpuscope.collect.probe_sockets import Directory, ProbeSocketRefused
from gpuscope.collect.trainers import Probes
from tests.fakes.waiting import until

ROOT = Path(__file__).parents[2]
INSIDE = (
    "mount -t tmpfs tmpfs /tmp && mkdir -m 700 /tmp/gpuscope-{uid} && cd {root} && "
    "exec {python} -m tests.fakes.probe_process /tmp/gpuscope-{uid} good"
)
UNSHARE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--propagation", "private"]


def why_not() -> str:
    if shutil.which("unshare") is None:
        return "no unshare here"
    if Path("/tmp") in (ROOT.resolve() / "x").parents:
        return "this checkout lies in /tmp, which a container has for itself"
    done = subprocess.run(
        [*UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"], capture_output=True, text=True
    )
    return f"no namespaces here: {done.stderr.strip()}" if done.returncode else ""


@pytest.fixture(scope="module")
def contained():
    """Start a process that listens like a probe, in mount and pid namespaces of its own.

    Yields the host's pid of it.
    """
    reason = why_not()
    if reason:
        pytest.skip(reason)
    script = INSIDE.format(
        uid=os.geteuid(), root=shlex.quote(str(ROOT)), python=shlex.quote(sys.executable)
    )
    process = subprocess.Popen(
        [*UNSHARE, "--kill-child", "sh", "-c", script], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"listening\n"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        yield int(children[0])
    finally:
        process.kill()
        process.wait()


def test_its_trainer_is_found_under_the_hosts_number(contained):
    assert containers.number_inside(contained) == 1
    probes = Probes()
    try:

        def look():
            probes.scan(time.monotonic())
            for _ in range(20):
                probes.poll(0.05)
            return [news for news in probes.take()[0] if news.pid == contained and news.readings]

        (news,) = until(look, 15.0)
        assert news.definition.pid == contained
        assert news.start is not None
    finally:
        probes.close()


def test_no_symlink_of_a_container_leads_out_of_it(contained):
    inside = Path(f"/proc/{contained}/root/tmp")
    (inside / "away").symlink_to("/tmp")
    with pytest.raises(OSError):
        containers.open_inside(str(inside / "away"))
    with pytest.raises(OSError):
        containers.open_inside(f"/proc/{contained}/root/tmp/away/gpuscope-0")
    descriptor = containers.open_inside(str(inside))
    assert "away" in os.listdir(descriptor)
    os.close(descriptor)


def test_a_number_of_this_namespace_stays_what_it_is():
    assert containers.number_inside(os.getpid()) is not None
    assert containers.number_inside(1 << 22) is None


def test_who_serves_under_another_number_is_still_left_alone(tmp_path):
    folder = tmp_path / "s"
    folder.mkdir(mode=0o700)
    name = f"{os.getppid()}-5.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / name))
        server.listen(1)
        with Directory(str(folder), os.geteuid()) as directory:
            (found,) = directory.sockets()
            with pytest.raises(ProbeSocketRefused, match="not the one it is named for"):
                directory.connect(found)


def test_nothing_is_searched_where_nobody_else_is(tmp_path):
    assert containers.SocketFinder(str(tmp_path)).places(0.0) == []
    assert probe_sockets.places([str(tmp_path)]).found == [(str(tmp_path), os.geteuid())]


def test_a_directory_that_goes_meanwhile_hides_no_other(tmp_path, monkeypatch):
    """The last trainer of a user removes its directory between the listing and the look at it."""
    other = tmp_path / "7"
    (other / "root/tmp" / f"gpuscope-{os.geteuid()}").mkdir(parents=True)
    for name, namespace in (("self", "mnt:[1]"), ("7", "mnt:[2]")):
        (tmp_path / name / "ns").mkdir(parents=True)
        (tmp_path / name / "ns/mnt").symlink_to(namespace)
    monkeypatch.setattr(containers, "open_inside", lambda path: os.open(path, os.O_RDONLY))
    names = os.listdir
    monkeypatch.setattr(
        containers.os,
        "listdir",
        lambda path: ["gpuscope-4711", *names(path)] if isinstance(path, int) else names(path),
    )
    place = f"{other}/root/tmp/gpuscope-{os.geteuid()}"
    assert containers.SocketFinder(str(tmp_path)).places(0.0) == [(place, os.geteuid())]
