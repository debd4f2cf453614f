"""The verbs work over a real OpenSSH server on loopback.

The tests see what ssh asks, what it refuses, and what is left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from gpuscope.cli import remote
from gpuscope.store.view import Link
from gpuscope.wire.codec import decode
from gpuscope.wire.frames import Hello, Sample
from gpuscope.wire.recording import RecordingReader
from tests.e2e.tmux import TMUX, Tmux, assigned, homes
from tests.fakes import pythons, sshd
from tests.fakes.probe_client import TRAINING, sockets, trainer, wait_for
from tests.fakes.waiting import until_true

pytestmark = pytest.mark.skipif(bool(sshd.why_not()), reason=sshd.why_not() or "-")
PROGRAM = [sys.executable, "-m", "gpuscope"]
ROOT = Path(__file__).parents[2]
NOISE = (
    "#!/bin/sh\nprintf '\\033]0;title\\007'\nseq 400\nprintf 'no newline'\n"
    'exec sh -c "$SSH_ORIGINAL_COMMAND"\n'
)
MARK = f"GPUSCOPE_TEST_{uuid.uuid4().hex}"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with sshd.server(tmp_path_factory.mktemp("sshd"), f"SetEnv {MARK}=1\n") as running:
        yield running


@pytest.fixture
def gpuscope(server, tmp_path):
    """Runs a verb through this server's client configuration."""
    home = {
        name: str(tmp_path / name)
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    }

    def run(
        *words: str, ssh: str = server.ssh_command, **more: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*PROGRAM, words[0], "--ssh-command", ssh, *words[1:]],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **home, **more},
            cwd=ROOT,
        )

    return run


def ours_there() -> list[int]:
    """Processes that the server started for us: what has its mark in the environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if MARK.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def nothing_left(seconds: float) -> None:
    wait_for(lambda: not ours_there(), seconds, "the end of what was started there")


def test_devices_are_told_of_another_host(gpuscope):
    done = gpuscope("devices", "good", "--json")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"], done.stderr
    assert document["host"] == os.uname().nodename
    assert {"driver_version", "devices", "problems", "unknown"} <= set(document)
    nothing_left(5)


@pytest.mark.slow
def test_a_trainer_is_seen_examined_recorded_and_asked_from_afar(gpuscope, tmp_path):
    code = TRAINING + "import gpuscope; gpuscope.watch(); train(600)"
    with trainer(code, fork=True) as process:
        wait_for(lambda: sockets(process.pid), 90.0)
        done = gpuscope("ps", "good", "--json")
        rows = {row["pid"]: row for row in json.loads(done.stdout)["processes"]}
        assert rows[process.pid]["trainer"]["step"] >= 0, done.stderr

        done = gpuscope("doctor", f"good:{process.pid}", "--json")
        assert json.loads(done.stdout)["examined"], (done.stdout, done.stderr)

        path = tmp_path / "x.gsr"
        done = gpuscope("record", "--from", "good", "--duration", "1.5", str(path))
        assert done.returncode == 0, done.stderr
        kinds = {type(decode(line.line)) for line in RecordingReader(path)}
        assert {Hello, Sample} <= kinds

        # Without CUDA there is nothing to take: the question reached the probe and came back.
        done = gpuscope("snapshot", f"good:{process.pid}", "-o", str(tmp_path / "s"))
        assert done.returncode == 3
        assert "trains without CUDA" in done.stderr
        done = gpuscope("snapshot", "good:1", "-o", str(tmp_path / "s"))
        assert "there is no probe in pid 1 on" in done.stderr
        assert str(process.pid) in done.stderr
    nothing_left(5)


@pytest.mark.slow
def test_where_the_time_of_a_trainer_goes_is_told_from_afar(gpuscope):
    code = TRAINING + "import gpuscope; gpuscope.watch(); train(600)"
    with trainer(code, fork=True) as process:
        wait_for(lambda: sockets(process.pid), 90.0)
        done = gpuscope("why", f"good:{process.pid}", "--json")
        assert done.returncode in (0, 1), done.stderr
        told = json.loads(done.stdout)
        assert told["target"] == f"good:{process.pid}"
        assert told["pid"] == process.pid
        assert told["enough_looks"]
        assert told["steps"] > 0
        seconds = sum(row["seconds"] for row in told["rows"])
        assert seconds == pytest.approx(told["window_seconds"], abs=0.001)
        assert told["look"] == {"problem": "the training does not use CUDA"}

        done = gpuscope("why", f"good:{process.pid}", "--no-look")
        assert f"pid {process.pid}" in done.stdout.splitlines()[0]
        assert "wall clock" in done.stdout

        # not pid 1: it counts as the launcher of a training whose own one has ended
        with subprocess.Popen(["sleep", "600"]) as other:
            done = gpuscope("why", f"good:{other.pid}", "--no-look")
            other.kill()
        assert done.returncode == 3
        assert f"there is no probe in pid {other.pid} on" in done.stderr
        assert str(process.pid) in done.stderr

        # the same once it is no more: nothing can be put into it
        for verb in ("why", "doctor", "snapshot"):
            done = gpuscope(verb, f"good:{other.pid}")
            said = done.stdout + done.stderr
            assert done.returncode == 3, said
            assert re.search(rf"[Nn]o process has pid {other.pid} on", said), said
            assert str(process.pid) in said
            assert "probe in pid" not in said
            assert "gpuscope ps good" in " ".join(said.split())
    nothing_left(5)


@pytest.mark.slow
@pytest.mark.parametrize("host", ["jumped", "shared"])
def test_ways_of_the_users_own_configuration(gpuscope, server, host):
    master = None
    if host == "shared":
        master = subprocess.Popen([*server.ssh, "-M", "-N", "shared"], stdin=subprocess.DEVNULL)
        wait_for(lambda: (server.folder / "master").exists())
    before = len(server.connections())
    try:
        done = gpuscope("devices", host, "--json")
        assert json.loads(done.stdout)["host"] == os.uname().nodename, done.stderr
        if master is not None:
            assert len(server.connections()) == before  # no connection of its own
            assert master.poll() is None  # and the user's is still there
    finally:
        if master is not None:
            master.terminate()
            master.wait(10)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        ("refused", "refused: permission denied. Next: ssh"),
        pytest.param(
            "changed", "changed: its host key differs from the one you know", marks=pytest.mark.slow
        ),
        pytest.param("unknown", "unknown: its host key is unknown here", marks=pytest.mark.slow),
        pytest.param("locked", "locked: permission denied", marks=pytest.mark.slow),
        pytest.param("closed", "closed: no ssh server listens there", marks=pytest.mark.slow),
        pytest.param(
            "no-such-host.invalid",
            "no-such-host.invalid: no host has this name",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_does_not_let_us_in_is_said_at_once(gpuscope, host, said):
    began = time.monotonic()
    done = gpuscope("devices", host, "--json")
    assert done.returncode == 3
    assert said in done.stderr, done.stderr
    assert json.loads(done.stdout)["exit_code"] == 3
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_a_noisy_login_is_no_hindrance(gpuscope, tmp_path):
    (tmp_path / "noisy").write_text(NOISE)
    (tmp_path / "noisy").chmod(0o755)
    with sshd.server(tmp_path / "sshd", f"ForceCommand {tmp_path}/noisy\n") as noisy:
        done = gpuscope("devices", "good", "--json", ssh=noisy.ssh_command)
    assert json.loads(done.stdout)["host"] == os.uname().nodename, done.stderr


@pytest.mark.slow
def test_a_python_is_chosen_and_a_wrong_one_named(gpuscope):
    done = gpuscope("devices", "good", "--json", "--remote-python", pythons.by_plain_path())
    assert json.loads(done.stdout)["host"] == os.uname().nodename, done.stderr
    done = gpuscope("devices", "good", "--remote-python", "/no/such/python3")
    assert done.returncode == 3
    assert "/no/such/python3" in done.stderr


@pytest.mark.slow
def test_a_chain_through_the_server(gpuscope, server):
    words = f"{server.ssh_command} good nice -n 1"
    done = gpuscope("devices", "--via", words, "--json")
    assert json.loads(done.stdout)["host"] == os.uname().nodename, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_viewer_that_dies_leaves_no_agent_and_no_file(server, tmp_path, how):
    temporary = set(os.listdir("/tmp"))
    viewer = subprocess.Popen(
        [
            *PROGRAM,
            "record",
            "--ssh-command",
            server.ssh_command,
            "--from",
            "good",
            str(tmp_path / "x.gsr"),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
    )
    try:
        wait_for(
            lambda: (tmp_path / "x.gsr").exists() and (tmp_path / "x.gsr").stat().st_size > 500
        )
        assert ours_there()
        viewer.send_signal(how)
        nothing_left(10)
    finally:
        viewer.kill()
        viewer.wait()
    left = {name for name in set(os.listdir("/tmp")) - temporary if name.startswith("gpuscope-a")}
    # The folders for prompts have their viewer's pid: those of tests that run beside are theirs.
    others = {
        name
        for name in left
        if name.startswith("gpuscope-ask-") and name.split("-")[2] != str(viewer.pid)
    }
    assert left - others == set()


@pytest.mark.slow
def test_a_lost_connection_is_made_again(server):
    async def check() -> None:
        links: list[Link] = []
        words = argparse.Namespace(via="", ssh_command=server.ssh_command, remote_python="")
        with remote.Ways(words) as ways:
            source = ways.source(remote.one_place(words, "good"), 2.0)
            task = asyncio.create_task(source.run(lambda frame, at: None, links.append))

            async def live(times: int) -> None:
                await until_true(
                    lambda: [link.state for link in links].count("live") >= times, 30, lambda: links
                )

            await live(1)
            for pid in ours_there():
                os.kill(pid, signal.SIGKILL)
            await live(2)
            assert any("trying again in 1 s" in link.text for link in links)
            await source.close()
            await task

    asyncio.run(check())
    nothing_left(5)


# ── in the TUI ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def terminal(server, tmp_path):
    made = []
    home = assigned(homes(tmp_path))

    def start(words: str) -> Tmux:
        ssh = shlex.quote(server.ssh_command)
        program = f"{shlex.quote(sys.executable)} -m gpuscope attach --ssh-command {ssh} {words}"
        clear = "env -u SSH_CONNECTION -u NO_COLOR -u COLUMNS -u LINES"
        made.append(Tmux(tmp_path, f"{clear} {home} {program}", 110, 30))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_two_hosts_in_one_screen(terminal):
    screen = terminal("good jumped closed")
    screen.wait(r"3 hosts: (▲ 1 unreachable|1 connecting) · 2 ok")
    screen.wait(r"closed .*no ssh server listens there")
    screen.keys("1")
    screen.wait(r"─ GPUs")
    seen = set()
    for _ in range(3):
        place = re.search(r"([123])/3", screen.wait(r"[123]/3"))
        assert place is not None
        screen.wait(
            r"3/3.*unreachable: no ssh server" if place[1] == "3" else rf"{place[1]}/3.*● live"
        )
        seen.add(place[1])
        screen.keys("f")
        screen.wait("", absent=f"{place[1]}/3")
    assert seen == {"1", "2", "3"}
    screen.keys("2")
    screen.wait("Where the bytes are|there is no memory to show")
    screen.keys("q")
    screen.wait("EXIT=0")
    nothing_left(5)


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_a_passphrase_and_a_host_key_are_asked_on_the_screen(terminal, server):
    screen = terminal("locked unknown")
    seen = ""
    for _ in range(2):
        asked = screen.wait(r"(?si)ssh asks.*(passphrase|SHA256)")
        if "passphrase" in asked.lower():
            screen.keys(*("Space" if char == " " else char for char in sshd.PASSPHRASE), "Enter")
            seen += "passphrase "
            screen.wait("", absent="passphrase")
        else:
            assert "SHA256:" in asked
            screen.keys("y", "e", "s", "Enter")
            seen += "key "
            screen.wait("", absent="SHA256")
    assert sorted(seen.split()) == ["key", "passphrase"]
    screen.wait(r"2 hosts: 2 ok")
    assert "127.0.0.1" in (server.folder / "asked_hosts").read_text()
    assert sshd.PASSPHRASE not in screen.text()
    screen.keys("q")
    screen.wait("EXIT=0")


@pytest.mark.slow
@pytest.mark.skipif(TMUX is None, reason="tmux is not installed")
def test_refusing_to_answer_ends_that_host_alone(terminal, server):
    screen = terminal("locked good")
    screen.wait("ssh asks")
    screen.keys("Escape")
    screen.wait(r"(?s)2 hosts: ▲ 1 unreachable · 1 ok.*locked +unreachable .*permission denied")
    screen.keys("q")
    screen.wait("EXIT=0")
