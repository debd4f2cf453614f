"""Many hosts behind one real OpenSSH server on loopback.

There is one account with an alias for each host; and some hosts fail.

``silent`` takes the connection and never speaks, ``closed`` refuses it, ``refused`` does not take
the key, ``slow`` answers when all others have, and not before: who waits for it is never live.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import functools
import getpass
import os
import resource
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.attach import bootstrap
from gpuscope.attach.targets import parse
from gpuscope.cli import remote
from gpuscope.store.store import Store
from tests.fakes import sshd

FAILING = ("silent", "closed", "refused")
STARTUPS = 10
"""Connections that the server takes before they are let in; one more and it hangs up. Eight at once
are ours, the slow host and the hop before it come when they like.
"""


@dataclass
class Fleet:
    server: sshd.Server
    names: list[str]
    """Of those that work, the slow one last."""
    gate: Path
    """Once this file is there the slow one answers."""

    def dropped(self) -> int:
        """Connections that the server refused, for too many came at once."""
        log = (self.server.folder / "sshd.log").read_text(errors="replace")
        return log.count("past MaxStartups") + log.count("MaxStartups throttling")


@contextlib.contextmanager
def fleet(folder: Path, hosts: int) -> Iterator[Fleet]:
    """``hosts`` that work, and one of each that fails."""
    limits = f"MaxStartups {STARTUPS}:100:{STARTUPS}\nLogLevel INFO\nLoginGraceTime 60\n"
    with sshd.server(folder, limits) as server, _mute() as port:
        names = [f"node{number:02d}" for number in range(hosts - 1)] + ["slow"]
        same = (
            f"User {getpass.getuser()}\nIdentitiesOnly yes\nIdentityAgent none\n"
            f"IdentityFile {folder}/user\n"
            f"GlobalKnownHostsFile /dev/null\nUserKnownHostsFile {folder}/known_hosts\n"
            "StrictHostKeyChecking yes\n"
            f"HostName 127.0.0.1\nPort {server.port}\n"
        )
        gate = folder / "slow-may-answer"
        wait = f"until [ -e {gate} ]; do sleep 0.05; done"
        hop = f"sh -c '{wait}; exec ssh -F {folder}/ssh_config -W 127.0.0.1:{server.port} good'"
        text = "".join(f"Host {name}\n{same}" for name in names if name != "slow")
        text += (
            f"Host slow\nProxyCommand {hop}\n{same}Host silent\nHostName 127.0.0.1\nPort {port}\n"
        )
        with open(folder / "ssh_config", "a") as stream:
            stream.write(text)
        yield Fleet(server, names, gate)


@contextlib.contextmanager
def _mute() -> Iterator[int]:
    """The port of a listener that takes every connection and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        kept: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(listener.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


async def connect(made: Fleet, seconds: float = 120.0, watch: float = 0.0) -> dict[str, Any]:
    """Connect to all hosts as the fleet view does, and return figures.

    It waits until each host that works has sent a sample and the refused one has ended; then it
    watches for ``watch`` seconds. Figures: seconds until the first and the last of the usual ones
    is live, ``slow_seconds`` (it may answer from then on), MiB of this process and of each ssh,
    processor seconds of this process, p99 of how late its event loop was, what the failing ones
    say.
    """
    args = argparse.Namespace(ssh_command=made.server.ssh_command, remote_python="", via="")
    store, tasks, links = Store(), [], {}
    live: dict[str, float] = {}
    late: list[float] = []
    before = time.process_time()
    bootstrap.prepare()
    with remote.Ways(args) as ways:
        began = time.monotonic()
        sources = {name: ways.source(parse(name), 1.0) for name in (*FAILING, *made.names)}

        def told(name: str, link: Any) -> None:
            links[name] = link
            if link.state == "live":
                live.setdefault(name, time.monotonic() - began)

        def sampled() -> list[str]:
            hosts = {one.key: one for one in store.view().hosts}
            return [
                name for name in made.names if hosts[sources[name].key].sampled_seconds is not None
            ]

        for name, source in sources.items():
            store.add_source(source.key, source.label)
            task = source.run(
                functools.partial(store.apply, source.key), functools.partial(told, name)
            )
            tasks.append(asyncio.create_task(task))
        try:
            while time.monotonic() - began < seconds:
                asked = time.monotonic()
                await asyncio.sleep(0.02)
                late.append(time.monotonic() - asked - 0.02)
                if all(name in live for name in made.names if name != "slow"):
                    made.gate.touch()
                ended = links.get("refused") is not None and links["refused"].state == "ended"
                if (
                    ended
                    and all(name in live for name in made.names)
                    and len(sampled()) == len(made.names)
                ):
                    break
            end = time.monotonic() + watch
            while time.monotonic() < end:
                await asyncio.sleep(0.1)
            clients = [_rss(pid) for pid in _children("ssh")]
            failing = {
                name: [links[name].state, links[name].text] for name in FAILING if name in links
            }
            heard = len(sampled())
        finally:
            await asyncio.gather(*(source.close() for source in sources.values()))
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    usual = [live[name] for name in made.names if name in live and name != "slow"]
    return {
        "hosts": len(made.names),
        "live": sorted(live),
        "sampled": heard,
        "dropped": made.dropped(),
        "first_seconds": min(usual, default=None),
        "last_seconds": max(usual, default=None),
        "slow_seconds": live.get("slow"),
        "lag_p99_ms": 1e3 * sorted(late)[int(len(late) * 0.99)],
        "cpu_seconds": time.process_time() - before,
        "viewer_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ssh_mib": sum(clients) / max(1, len(clients)),
        "ssh_clients": len(clients),
        "failing": failing,
    }


def _children(name: str) -> list[int]:
    """Pids of this process's descendants with this name."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            head, _, rest = entry.read_text().rpartition(")")
            parents[int(entry.parent.name)] = int(rest.split()[1]), head.partition("(")[2]
    found = []
    for pid, (_, called) in parents.items():
        above = pid
        while called == name and above > 1 and above in parents:
            above = parents[above][0]
            if above == os.getpid():
                found.append(pid)
    return found


def _rss(pid: int) -> float:
    """MiB that a process has in memory."""
    try:
        return (
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            * os.sysconf("SC_PAGE_SIZE")
            / (1 << 20)
        )
    except (OSError, ValueError, IndexError):
        return 0.0
