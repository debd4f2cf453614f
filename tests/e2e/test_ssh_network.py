"""Hosts have networks of their own, and a cable is pulled.

The tests see what is shown of it, and how it comes back.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import subprocess
import time
from contextlib import ExitStack

import pytest

from gpuscope.cli import remote
from gpuscope.store.source import STALE_SECONDS
from gpuscope.store.view import Link
from tests.fakes import sshd

WHY_NOT = sshd.why_not() or sshd.why_no_network()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT or "-")]
IMPATIENT = "-o ServerAliveInterval=1 -o ServerAliveCountMax=2 -o ConnectTimeout=2"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """The words that reach two hosts, ``host0`` and ``host1``, and the networks they are in."""
    with ExitStack() as stack:
        inside, text = [], ""
        for number in range(2):
            inside.append(stack.enter_context(sshd.network(number)))
            server = stack.enter_context(
                sshd.server(tmp_path_factory.mktemp("sshd"), inside=inside[-1])
            )
            good = re.search(
                r"Host good\n(?s:.*?)(?=Host )", (server.folder / "ssh_config").read_text()
            )
            assert good is not None
            text += good[0].replace("Host good", f"Host host{number}")
        config = tmp_path_factory.mktemp("config") / "ssh_config"
        config.write_text(text)
        yield f"ssh -F {config} {IMPATIENT}", inside


def cable(inside: sshd.Inside, state: str) -> None:
    subprocess.run(["ip", "link", "set", inside.link, state], check=True, timeout=10)


def test_a_pulled_cable_is_seen_with_its_age_and_mended_by_itself(hosts):
    ssh, inside = hosts

    async def check() -> None:
        words = argparse.Namespace(via="", ssh_command=ssh, remote_python="")
        links: dict[str, list[tuple[float, Link]]] = {"host0": [], "host1": []}
        with remote.Ways(words) as ways:
            sources = {name: ways.source(remote.one_place(words, name), 2.0) for name in links}
            tasks = [
                asyncio.create_task(
                    source.run(
                        lambda frame, at: None,
                        lambda link, name=name: links[name].append((time.monotonic(), link)),
                    )
                )
                for name, source in sources.items()
            ]

            async def until(
                name: str, state: str, text: str = "", since: float = 0.0
            ) -> tuple[float, Link]:
                deadline = time.monotonic() + 30
                while True:
                    for at, link in links[name]:
                        if at >= since and link.state == state and text in link.text:
                            return at, link
                    assert time.monotonic() < deadline, (name, state, text, links[name][-4:])
                    await asyncio.sleep(0.02)

            try:
                for name in links:
                    await until(name, "live")
                cut = time.monotonic()
                cable(inside[0], "down")
                at, link = await until("host0", "stale", since=cut)
                assert at - cut < STALE_SECONDS + 2.0
                assert link.age_seconds is not None
                assert link.age_seconds > 0.5
                _, link = await until("host0", "stale", "trying again", cut)
                assert link.text.startswith("host0: ")
                first, _ = await until("host0", "stale", "trying again", cut)
                second, _ = await until("host0", "stale", "trying again", first + 0.5)
                mended = time.monotonic()
                cable(inside[0], "up")
                at, _ = await until("host0", "live", since=mended)
                assert at - mended < 15.0
                assert second - first > 0.6  # a pause, and another try, which failed
                # the other saw nothing
                assert {link.state for _, link in links["host1"]} == {"connecting", "live"}
            finally:
                for source in sources.values():
                    await source.close()
                await asyncio.gather(*tasks)

    asyncio.run(check())
