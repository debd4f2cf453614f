"""Measure how long it takes to see another host.

This is the time from the start of ssh to the first frame, over a real server on loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from gpuscope.attach import bootstrap
from gpuscope.cli import remote
from gpuscope.wire.frames import Frame, Hello, Sample
from tests.fakes import pythons, sshd
from tests.fakes.probe_client import wait_for

pytestmark = [
    pytest.mark.bench,
    pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not() or "-"),
]
ROUNDS = 7
COLD_SECONDS, SHARED_SECONDS = 0.8, 0.3
OVER_PYTHON = 1.6


async def _once(ways: remote.Ways, target: remote.Target) -> dict[str, float]:
    """Return the seconds to the marker (Python runs there), the hello and the first readings."""
    source, done = ways.source(target, 2.0), asyncio.Event()
    seen: dict[str, float] = {}
    began = time.perf_counter()

    def sink(frame: Frame, at: float) -> None:
        for name, kind in (("hello", Hello), ("sample", Sample)):
            if isinstance(frame, kind):
                seen.setdefault(name, time.perf_counter() - began)
        if "sample" in seen:
            done.set()

    task = asyncio.create_task(source.run(sink, lambda link: None))
    await asyncio.wait_for(done.wait(), 30)
    assert source.connect_seconds is not None
    seen["marker"] = source.connect_seconds
    await source.close()
    await task
    return seen


def _median(words: list[str]) -> float:
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(words, check=True, capture_output=True)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


@pytest.mark.parametrize(("host", "bar"), [("good", COLD_SECONDS), ("shared", SHARED_SECONDS)])
def test_from_the_start_of_ssh_to_the_first_frame(tmp_path: Path, host: str, bar: float) -> None:
    bootstrap.prepare()
    with sshd.server(tmp_path / "sshd") as server:
        master = None
        if host == "shared":
            master = subprocess.Popen([*server.ssh, "-M", "-N", "shared"], stdin=subprocess.DEVNULL)
            wait_for(lambda: (server.folder / "master").exists())
        try:
            words = argparse.Namespace(
                via="", ssh_command=server.ssh_command, remote_python=pythons.by_plain_path()
            )
            with remote.Ways(words) as ways:
                target = remote.one_place(words, host)
                runs = [asyncio.run(_once(ways, target)) for _ in range(ROUNDS)]
            login = _median([*server.ssh, host, "true"])
            python = _median([*server.ssh, host, f"{pythons.by_plain_path()} -I -S -c 0"])
        finally:
            if master is not None:
                master.terminate()
                master.wait(10)
    by = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    print(
        f"\n{host}: ssh and login shell {login * 1e3:.0f} ms, with Python {python * 1e3:.0f}, "
        f"agent arrived {by['marker'] * 1e3:.0f}, hello {by['hello'] * 1e3:.0f}, readings "
        f"{by['sample'] * 1e3:.0f}, {len(bootstrap.preamble(2.0).data) / 1024:.0f} KiB sent"
    )
    # On a machine where the login alone takes half of the bar, compare what comes on top of a bare
    # Python.
    assert by["hello"] <= (bar if login <= bar / 2 else max(bar, OVER_PYTHON * python))
