"""How a process ended that is not a child of who asks."""

from __future__ import annotations

import subprocess

import pytest

from gpuscope.collect.exit_watch import ExitWatch
from gpuscope.process.procfs import stat_of
from tests.fakes.kernel import exits_are_told
from tests.fakes.waiting import alive, until

ENDS = [("kill -9 $$", 9), ("kill -15 $$", 15), ("exit 3", 3 << 8)]


def started(end: str) -> tuple[subprocess.Popen[bytes], ExitWatch]:
    child = subprocess.Popen(["sh", "-c", f"read line; {end}"], stdin=subprocess.PIPE)
    return child, ExitWatch(child.pid, stat_of(child.pid).start_ticks)


@pytest.mark.parametrize(("end", "status"), ENDS)
def test_the_status_of_one_that_nobody_has_reaped_is_in_proc(end: str, status: int):
    child, watch = started(end)
    assert watch.status() is None, "it runs"
    assert child.stdin is not None
    child.stdin.close()
    until(lambda: not alive(child.pid), 10)
    assert watch.status() == status
    assert ExitWatch(child.pid, 1).status() is None, "another process with this pid"
    child.wait(10)
    watch.close()
    assert watch.status() is None


@pytest.mark.skipif(not exits_are_told(), reason="the kernel is older than Linux 6.15")
@pytest.mark.parametrize(("end", "status"), [*ENDS, ("exit 0", 0)])
def test_the_status_of_one_that_was_reaped_is_told_by_its_pidfd(end: str, status: int):
    child, watch = started(end)
    child.communicate(b"\n", timeout=10)
    assert watch.status() == status
    watch.close()


def test_a_process_that_is_not_there_has_no_status():
    child, watch = started("exit 0")
    child.communicate(b"\n", timeout=10)
    watch.close()
    watch.close()
    assert ExitWatch(child.pid, None).status() is None
