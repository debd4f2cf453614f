"""The way from a key to a probe works with real parts.

These are the local agent and two running ranks that nothing has prepared; then they are detached.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.config import Settings
from gpuscope.store.view import LOCAL
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.launch import local_source
from gpuscope.tui.shell.session import Session
from tests.fakes.ptrace import BY_PTRACE
from tests.fakes.torchlike import likeness
from tests.tui.pilot import in_loop, until

pytestmark = [pytest.mark.slow, *BY_PTRACE]
LOOP = (
    "import time\nprint('ready', flush=True)\nn = 0\nwhile True:\n    n += 1\n"
    "    time.sleep(0.002)\n"
)


@pytest.fixture
def job(tmp_path):
    """Two ranks of a job as torchrun would have started them."""
    code = likeness(tmp_path, LOOP)
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={
                **os.environ,
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "29512",
            },
        )
        for rank in range(2)
    ]
    for child in ranks:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    yield ranks
    for child in ranks:
        child.kill()
        child.wait()
        child.stdout.close()


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


@in_loop
async def attach_and_detach(ranks: list[subprocess.Popen[str]], log: Path) -> None:
    app = GpuscopeApp(Session(make_source=lambda hz: local_source(hz, Settings())), "overview")
    first, second = (child.pid for child in ranks)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, "live")
        await pilot.press("a")
        await until(pilot, str(first), str(second), "your consent (ptrace)")
        key = next(
            row.key
            for row in app.screen._table.rows
            if row.key.startswith("job ") and "29512" in row.key
        )
        app.screen._table.move_to(key)
        await pilot.press("enter")
        await until(
            pilot, "Attach the probe to 2 ranks?", f"rank 0, pid {first}", f"rank 1, pid {second}"
        )
        assert [threads(pid) for pid in (first, second)] == [1, 1]
        await pilot.press("y")
        await until(
            pilot,
            f"Done     rank 0, pid {first}",
            f"Done     rank 1, pid {second}",
            "Enter Open it",
        )
        host = app.session.host
        found = {t.definition.pid: t.definition for t in host.trainers if t.gone is None}
        assert {found[pid].origin for pid in (first, second)} == {"inject"}
        assert {found[pid].rank for pid in (first, second)} == {0, 1}
        await pilot.press("escape")
        for removed, pid in enumerate((first, second)):
            await until(pilot, "it has a probe (inject)", absent="the probe is removed")
            app.screen._table.move_to(f"{LOCAL} {pid}")
            await until(pilot, "d removes it")
            await pilot.press("d")
            await until(pilot, "Remove the probe?")
            await pilot.press("y")
            await until(pilot, "the probe is removed; the process continues")
            while log.read_text().count("detach") <= removed:  # the notice before may still stand
                await pilot.pause(0.05)
            await pilot.press("escape")
    assert [child.poll() for child in ranks] == [None, None]
    assert [threads(pid) for pid in (first, second)] == [1, 1], (
        "nothing of ours runs in them any more"
    )
    lines = log.read_text().splitlines()
    assert [line.split()[3] for line in lines] == ["inject"] * 4 + ["detach"] * 2


def test_a_whole_job_is_attached_seen_and_left_by_keys(job, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    attach_and_detach(job, tmp_path / "state" / "gpuscope" / "attach.log")
