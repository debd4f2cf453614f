"""What an attacker may try: on the way to a host, from the host, and as whatever answers there.

And that each promise of the kind is held by a test that exists.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from gpuscope.attach import clusters
from gpuscope.attach.askpass import MAX_QUESTIONS, Askpass, SshQuestion
from gpuscope.attach.targets import BadTarget, parse
from gpuscope.store.remote import Gate
from tests.fakes.cases import each
from tests.fakes.stand_ins import install
from tests.fakes.waiting import until

ROOT = Path(__file__).parents[2]
HELD = {
    "hostile names never command the terminal": (
        "e2e/test_hostile.py::test_no_control_byte_of_a_hostile_name_reaches_the_terminal",
        "wire/test_decoders.py::test_clean_is_bounded_and_settled",
    ),
    "decoding raises nothing else": (
        "wire/test_decoders.py::test_random_bytes_raise_only_wire_error",
    ),
    "nesting, long numbers, NaN, surrogates": (
        "wire/test_decoders.py::test_hostile_lines_are_refused",
        "wire/test_decoders.py::test_what_is_odd_but_harmless_is_taken",
        "store/test_agent_source.py::test_an_endless_line_is_cut_not_buffered",
        "attach/test_security.py::test_what_is_no_agent_is_left_alone",
    ),
    "bombs": (
        "wire/test_recording.py::test_bombs_are_stopped",
        "wire/test_blobs.py::test_the_receiver_refuses_what_is_too_large",
        "wire/test_blobs.py::test_one_chunk_unpacks_to_a_bounded_size",
    ),
    "a cut at every byte": (
        "attach/test_transport_source.py::test_a_cut_at_every_byte_leaves_what_came_whole",
    ),
    "no host, no ssh": ("attach/test_security.py::test_ssh_is_never_started_for_what_is_no_host",),
    "directories and sockets of others": (
        "probe/test_rendezvous.py::test_refuses_a_symlink",
        "probe/test_rendezvous.py::test_refuses_an_open_directory",
        "probe/test_rendezvous.py::test_refuses_the_directory_of_another_user",
        "probe/test_rendezvous.py::test_a_peer_is_judged_by_what_the_kernel_says",
        "probe/test_rendezvous.py::test_a_peer_of_another_user_is_not_allowed",
        "agent/test_trainers.py::test_an_unsafe_directory_is_not_searched",
        "agent/test_trainers.py::test_a_socket_that_somebody_else_serves_is_left_alone",
    ),
    "no secret of an environment": (
        "probe/test_identity.py::test_only_the_allow_list_leaves_the_process",
        "probe/test_server.py::test_environment_is_the_allow_list",
        "collect/test_attachable.py::test_ranks_are_known_by_their_environment_and_nothing_else_of_it_is_told",
        "attach/test_transport.py::test_no_word_of_an_environment_is_given_on",
        "doctor/test_remote_environment.py::test_no_other_variable_leaves_the_host",
    ),
    "pickle and exec in their rooms": (
        "test_hygiene.py::test_dangerous_builtins_stay_in_their_rooms",
    ),
    "injection": (
        "attach/test_inject.py::test_every_python_takes_the_probe_and_lets_it_go",
        "attach/test_inject.py::test_a_call_that_waits_for_a_lock_is_rolled_back",
        "attach/test_inject.py::test_disabled_remote_debugging_is_respected",
        "attach/test_inject.py::test_a_victim_that_exits_meanwhile_is_reported_gone",
        "attach/test_inject.py::test_two_at_once_take_turns",
        "attach/test_inject.py::test_an_idle_probe_takes_itself_out",
        "attach/test_inject.py::test_the_stub_s_page_goes",
        "attach/test_load.py::test_a_trainer_keeps_most_of_the_interpreter_while_the_probe_is_loaded",
    ),
    "many hosts": (
        "e2e/test_ssh_fleet.py::test_all_that_work_are_there_and_the_server_never_saw_too_many_at_once",
        "e2e/test_ssh_fleet.py::test_no_host_waits_for_a_slow_or_a_dead_one",
    ),
    "a noisy login": ("e2e/test_ssh.py::test_a_noisy_login_is_no_hindrance",),
    "nothing is left behind": (
        "e2e/test_ssh.py::test_a_viewer_that_dies_leaves_no_agent_and_no_file",
    ),
    "every Python": ("attach/test_bootstrap.py::test_it_runs_under_every_python",),
}


@each("promise", HELD)
def test_each_promise_is_held_by_a_test(promise):
    for name in HELD[promise]:
        path, _, function = name.partition("::")
        text = (ROOT / "tests" / path).read_text()
        assert re.search(rf"^(async )?def {function or 'test_'}", text, re.M), name


# ── on the way there ──────────────────────────────────────────────────────────────────────────────

NO_HOSTS = (
    "-oProxyCommand=touch${IFS}x", "u@-oProxyCommand=x", "a b", "u@-x", "$(x)",
    "u@h\nProxyCommand x", "h\x00x", "u@h;x", "ssh://u@h", "u@[::1", "u@::1]:5",
    "u@[::1]:99999999999999999999", "u@h:4194304", "99999999999999999999",
    "slurm:1@-oProxyCommand=x", "slurm:1;x@h", "u@fe80::1%$(x)", "-oProxyCommand=x@h", "$(x)@h",
    "a;b@h", "a b@h:5",
)  # fmt: skip


def run(
    words: list[str], env: dict[str, str], tmp_path: Path
) -> subprocess.CompletedProcess[bytes]:
    home = {
        name: str(tmp_path / name)
        for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME")
    }
    return subprocess.run(
        [sys.executable, "-m", "gpuscope", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
        env={**env, **home},
        cwd=ROOT,
    )


def test_ssh_is_never_started_for_what_is_no_host(tmp_path, monkeypatch, capsys):
    """A real ssh on the path would leave a note.

    In one process, but for one proof that the note is left.
    """
    from gpuscope.cli import main as cli

    env = install(tmp_path / "bin")
    log = Path(env["STAND_IN_LOG"])
    for name in ("PATH", "STAND_IN_LOG"):
        monkeypatch.setenv(name, env[name])
    monkeypatch.chdir(tmp_path)
    hosts = tmp_path / "hosts"
    for text in NO_HOSTS:
        for words in (
            ["devices"],
            ["ps"],
            ["attach"],
            ["record", "--from"],
            ["snapshot", "-o", "out"],
        ):
            target = [] if words[0] == "record" else ["--"]
            if words[0] == "snapshot" and "@" not in text:
                continue  # the name of a file
            more = ["out.gsr"] if words[0] == "record" else []
            word = [f"--from={text}"] if words[0] == "record" else [*target, text]
            code = cli.main([*words[: 1 if words[0] == "record" else None], *word, *more])
            assert code not in (0, None), (words, text)
            said = capsys.readouterr().err
            assert said.replace("\n", "").isprintable(), (words, text, said)
        if text.splitlines() == [text]:
            hosts.write_text(f"good\n{text}\n")
            assert cli.main(["attach", "--hosts", str(hosts)]) == 64, text
            assert ":2: " in capsys.readouterr().err
    for via in ("a\nb", "a\0b", "-x", "'a"):
        assert cli.main(["devices", f"--via={via}"]) == 64
    assert not log.exists()
    assert not list(tmp_path.glob("out*"))
    assert run(["devices", "good", "--json"], env, tmp_path).returncode in (0, 1, 2, 3)
    assert log.read_text().startswith("ssh ")


def command(folder: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("exec yes gpu1", "answered more than 1048576 bytes"),
        ("head -c 900000 /dev/zero | tr '\\0' '['", "not a valid list|more nodes than one"),
        ("head -c 60000 /dev/zero | tr '\\0' '['", "not a valid list"),
        ("echo 'a[0-9999],b[0-9999]'", "more than 64 hosts"),
        ("echo 'a[1-9][1-9][1-9]'", "more than 64 hosts"),
        ("seq 100", "more than 64 hosts"),
        ("printf '%s' '-oProxyCommand=x'", "not a name"),
        ("printf '\\033]52;c;x\\007'", "not a valid list"),
        ("printf '\\033]0;x\\007 no\\n' >&2; exit 1", "squeue says"),
        ("sleep 30 & echo >&2 'over there'; exit 1", "squeue says: over there"),
        ("exec sleep 30", "did not end within"),
        ("echo 'a[١-٢]'", "not a valid range"),
    ],
)
def test_what_a_cluster_answers_is_bounded_and_checked(body, said, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "ASK_SECONDS", 1.0)
    command(tmp_path, "squeue", body, monkeypatch)
    with pytest.raises(BadTarget, match=said) as refused:
        clusters.nodes_of(parse("slurm:77"))
    assert str(refused.value).isprintable()


def test_no_more_pods_than_one_viewer_shows(tmp_path, monkeypatch):
    command(tmp_path, "kubectl", "seq 65 | sed 's/^/team a-/'", monkeypatch)
    with pytest.raises(BadTarget, match="more than 64 hosts"):
        clusters.pods_of("app=x")


def test_so_many_connect_through_one_host_in_between():
    async def check() -> None:
        gate = Gate(8, 2)
        held = [await gate.enter_through("bastion") for _ in range(2)]
        assert gate.is_full_through("bastion")
        assert not gate.is_full
        third = asyncio.create_task(gate.enter_through("bastion"))
        (await asyncio.wait_for(gate.enter_through("other"), 5)).give_back()
        (await asyncio.wait_for(gate.enter_through(""), 5)).give_back()
        await asyncio.sleep(0.01)
        assert not third.done()
        held[0].give_back()
        held[0].give_back()
        (await asyncio.wait_for(third, 5)).give_back()

    asyncio.run(check())


# ── what is asked meanwhile ───────────────────────────────────────────────────────────────────────


def asked(environment: dict[str, str], prompt: str) -> str | None:
    env = {**os.environ, **environment}
    done = subprocess.run(
        [environment["SSH_ASKPASS"], prompt], env=env, capture_output=True, text=True, timeout=30
    )
    return done.stdout if done.returncode == 0 else None


@pytest.mark.slow
def test_a_server_that_asks_without_end_is_answered_so_often():
    questions: list[SshQuestion] = []

    def answer(question: SshQuestion) -> str:
        questions.append(question)
        return "x"

    with Askpass(answer) as askpass:
        evil, other = askpass.place("evil"), askpass.place("other")
        said = [asked(evil.environment, f"{n}?") for n in range(MAX_QUESTIONS + 2)]
        assert said == ["x\n"] * MAX_QUESTIONS + [None, None]
        assert evil.refused_seconds is not None
        assert asked(other.environment, "and here?") == "x\n"  # another host has its own count
        assert asked({**evil.environment, "GPUSCOPE_ASK": "99"}, "from nowhere") is None
        evil.begin()
        assert asked(evil.environment, "again") == "x\n"
    assert [one.place for one in questions[-2:]] == ["other", "evil"]


def test_what_a_server_writes_into_its_question_is_harmless():
    questions: list[SshQuestion] = []
    with Askpass(lambda question: questions.append(question)) as askpass:  # type: ignore[func-returns-value]
        for text in (
            "\x1b]52;c;x\x07\x9b2Jpassword:",
            "a\n" * 400,
            "\u202epassword",
            "x" * 100_000,
            "[link=x]p",
            "\udcff",
        ):
            way = askpass.place("there")
            asked(way.environment, text)
    for question in questions:
        assert len(question.prompt) <= 1000
        assert question.prompt.count("\n") < 12
        assert all(line.isprintable() for line in question.prompt.split("\n"))
        assert question.secret
    assert len(questions) == 6


def test_what_killed_programs_left_is_removed_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    script = (
        "import os; from gpuscope.attach.askpass import Askpass; Askpass(lambda q: None); "
        "os.kill(os.getpid(), 9)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, timeout=60)
    (left,) = tmp_path.iterdir()
    assert stat.S_IMODE(left.stat().st_mode) == 0o700
    gone = int(left.name.split("-")[2])
    (tmp_path / "precious").mkdir()
    kept = [
        tmp_path / f"gpuscope-ask-{os.getppid()}-abcdefgh",  # whose process lives
        tmp_path / f"gpuscope-ask-{gone}-listens0",  # that somebody serves whom we do not see
        tmp_path / "gpuscope-ask-notes",
    ]
    for folder in kept:
        folder.mkdir()
    link = tmp_path / f"gpuscope-ask-{gone}-asymlink"
    link.symlink_to(tmp_path / "precious")
    kept += [link, tmp_path / "precious"]
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(kept[1] / "s"))
        server.listen()
        if os.geteuid() == 0:
            kept.append(tmp_path / f"gpuscope-ask-{gone}-another0")
            kept[-1].mkdir()
            os.chown(kept[-1], 65534, 65534)
        with Askpass(lambda question: None):
            assert not left.exists()
            assert all(path.exists() for path in kept)


# ── who answers there ─────────────────────────────────────────────────────────────────────────────

EVIL = "\x1b]52;c;QUJD\x07\x9b2J\u202e../../../../etc/x\n"
HOSTILE_AGENT = f"""
import json, os, sys
sys.path.insert(0, {str(ROOT)!r})
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import *
import base64, hashlib, zlib
EVIL = {EVIL!r}
mode = sys.argv[1]
source = sys.stdin.buffer
source.readline()
head = json.loads(source.readline())
source.read(head["bytes"])
def say(*frames):
    for frame in frames:
        os.write(1, encode(frame))
os.write(1, b"\\n\\x1egpuscope " + head["nonce"].encode() + b"\\n")
hello = Hello(pid=1, boot="b", hz=1e-300, t=1.0, m=1, host=EVIL, requests=["snapshot", "cancel"],
              cols={{"g": ["used_bytes"], "h": ["cpu_percent"], "t": ["step"]}})
say(hello, Def(HOST_ID, host=HostDef(kernel=EVIL, container=EVIL)), Def(1, gpu=GpuDef("GPU-a", 0, name=EVIL)))
say(Def(2, proc=ProcDef(77, 5, 1.0, EVIL, EVIL, EVIL, 1, True)), Def(3, use=UseDef(2, 1)))
say(Def(4, trainer=TrainerDef(pid=77, start=5, proc=2, script=EVIL, job=EVIL)))
for q in range(1, 400):
    say(Sample(q, 10**9 * q, g=[[1, 5]], t=[[4, q]], h=[[HOST_ID, 1.0]]))
    if q == 3:
        break
data = os.urandom(100) if mode == "noise" else b"x" * 5000
packed = zlib.compress(data)
for line in source:
    frame = decode(line)
    if not isinstance(frame, Request) or frame.r != "snapshot":
        continue
    blob = lambda n, data, last, **more: Blob(frame.id, n, base64.b64encode(data).decode(), last, **more)
    if mode == "ids":
        say(Result(frame.id + 7, {{"path": EVIL}}), Ack(-1), Error(0, EVIL, EVIL), Blob(frame.id + 1, 0, "eA==", True))
        say(Error(frame.id, "failed", EVIL))
    elif mode == "size":
        say(blob(0, packed, False, size=1 << 60))
    elif mode == "bomb":
        packed = zlib.compress(bytes(100 << 20), 9)
        say(blob(0, packed, True, sha256=hashlib.sha256(packed).hexdigest()), Result(frame.id, {{}}))
    elif mode == "lies":
        say(blob(0, packed, True, size=4999, sha256=hashlib.sha256(packed).hexdigest()), Result(frame.id, {{}}))
    elif mode == "order":
        say(blob(5, packed, True, sha256="x"))
    elif mode == "digest":
        say(blob(0, packed, True, sha256="0" * 64), Result(frame.id, {{}}))
    elif mode == "none":
        say(Result(frame.id, {{"path": "/etc/passwd", "name": EVIL}}))
    elif mode in ("noise", "whole"):
        say(blob(0, packed, True, sha256=hashlib.sha256(packed).hexdigest()))
        say(Result(frame.id, {{"path": EVIL, "entries": [EVIL] * 50, "bytes": EVIL}}))
    elif mode == "failed":
        say(blob(0, packed, True, sha256=hashlib.sha256(packed).hexdigest()), Error(frame.id, "failed", EVIL))
    elif mode == "brackets":
        os.write(1, b'{{"k":"result","id":%d,"value":{{"a":' % frame.id + b"[" * 100000 + b"\\n")
        say(Bye(EVIL))
"""  # noqa: E501
UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    path = tmp_path_factory.mktemp("evil") / "agent.py"
    path.write_text(HOSTILE_AGENT)
    return lambda mode: f"--via={shlex.quote(sys.executable)} {path} {mode}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode",
    ["ids", "size", "bomb", "lies", "order", "digest", "none", "whole", "failed", "brackets"],
)
def test_a_hostile_agent_writes_nothing_but_the_file_that_was_asked_for(mode, agent, tmp_path):
    out = tmp_path / "wanted"
    out.mkdir()
    done = run(
        ["snapshot", agent(mode), "77", "-o", str(out / "x.pickle")], dict(os.environ), tmp_path
    )
    said = (done.stdout + done.stderr).decode()
    assert not UNSAFE.search(said), said
    assert "Traceback" not in said, said
    assert set(os.listdir(out)) <= {"x.pickle"}, said
    if mode == "whole":
        # bytes are kept as they came, and read by nobody
        assert (out / "x.pickle").read_bytes() == b"x" * 5000
    else:
        assert done.returncode != 0, said
        assert not list(out.iterdir()), said


@pytest.mark.slow
@pytest.mark.parametrize("words", [["devices"], ["ps", "--json"]])
def test_what_a_hostile_agent_calls_things_is_printed_harmless(words, agent, tmp_path):
    done = run([*words, "--timeout=1", agent("x")], dict(os.environ), tmp_path)
    said = (done.stdout + done.stderr).decode()
    assert not UNSAFE.search(said), said
    assert "Traceback" not in said, said
    if "--json" in words:
        assert not [text for text in strings(json.loads(done.stdout)) if UNSAFE.search(text)]


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [*value, *strings(list(value.values()))]
    if isinstance(value, list):
        return [text for one in value for text in strings(one)]
    return [value] if isinstance(value, str) else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("via", "said"),
    [
        ("sh -c 'exec cat /dev/zero'", "line that is too long"),
        ("sh -c 'exec yes'", "is not an agent"),
        (
            "sh -c 'head -c 3000000 /dev/urandom'",
            "No answer|not an agent|too long|ended|closed",
        ),
        ("true", "ended|closed"),
    ],
)
def test_what_is_no_agent_is_left_alone(via, said, tmp_path):
    done = run(["devices", f"--via={via}"], dict(os.environ), tmp_path)
    assert done.returncode == 3
    assert re.search(said, done.stderr.decode()), done.stderr
    assert not UNSAFE.search(done.stderr.decode())


def test_no_thread_is_left_by_a_question_that_nobody_finishes():
    with Askpass(lambda question: "x") as askpass:
        path = Path(askpass.place("x").environment["SSH_ASKPASS"]).parent / "s"
        for data in (b"[" * 8000 + b"\n", b"7\n", b'{"place": {}}\n', b"\xff\n", b"x" * 20000):
            with socket.socket(socket.AF_UNIX) as link:
                link.settimeout(10)
                link.connect(str(path))
                try:
                    link.sendall(data)
                    assert link.recv(1) == b""
                except OSError:
                    pass  # it has hung up on us
        until(lambda: all(one.name != "askpass question" for one in threading.enumerate()), 10)
