"""Charts of a screen that has just been opened begin with what a real trainer remembers."""

from __future__ import annotations

import argparse
import asyncio
import time
from itertools import count

import pytest

from gpuscope.attach.targets import parse
from gpuscope.cli.remote import Ways
from gpuscope.config import Settings
from gpuscope.tui.app.app import GpuscopeApp
from gpuscope.tui.app.launch import local_source
from gpuscope.tui.shell.session import Session
from gpuscope.wire.frames import Request
from tests.fakes import sshd
from tests.fakes.probe_client import TRAINING, Reader, sockets, trainer, wait_for
from tests.tui.pilot import WAIT_SECONDS, at_the_jobs, in_loop, until

pytestmark = pytest.mark.slow
REMEMBERED = 4
"""So many readings, two seconds apart, are there before the screen is opened."""


@pytest.fixture
def remembering():
    """The pid of a trainer that has trained for a while."""
    with trainer(TRAINING + "import gpuscope; gpuscope.watch(); train(600)", fork=True) as process:
        (path,) = wait_for(lambda: sockets(process.pid), 90.0)
        reader, numbers = Reader(path), count(1)
        wait_for(
            lambda: (
                len(reader.answer(Request("recent", next(numbers), {})).value["trainer"]["m"])
                >= REMEMBERED
            ),
            60.0,
        )
        reader.close()
        yield process.pid


async def charts_begin_before(session: Session, pid: int) -> None:
    """Open the screen, and wait until the step's history begins seconds before it was opened."""
    app = GpuscopeApp(session)
    async with app.run_test(size=(140, 45)) as pilot:
        await until(pilot, "● live", "step")
        deadline = time.monotonic() + WAIT_SECONDS
        first = None
        while True:
            host = session.host
            assert host is not None
            first = first or host.sampled_seconds
            found = next((one for one in host.trainers if one.definition.pid == pid), None)
            begin = session.history(found.id, "step").seconds[:1] if found is not None else ()
            if begin and first and begin[0] < first - 2 * (REMEMBERED - 1):
                break
            assert time.monotonic() < deadline, f"histories begin at {begin}, seen from {first} on"
            await asyncio.sleep(0.05)
        await at_the_jobs(pilot)
        await pilot.press("enter")
        await until(pilot, "Findings", "Step")
        app.leave()


@in_loop
async def test_of_a_trainer_of_this_machine(remembering):
    await charts_begin_before(
        Session(make_source=lambda hz: local_source(hz, Settings())), remembering
    )


@pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not() or "-")
@in_loop
async def test_of_a_trainer_behind_ssh(remembering, tmp_path):
    with sshd.server(tmp_path) as server:
        options = argparse.Namespace(ssh_command=server.ssh_command, remote_python="", via="")
        with Ways(options) as ways:
            session = Session(make_source=lambda hz: ways.source(parse("good"), hz))
            await charts_begin_before(session, remembering)
