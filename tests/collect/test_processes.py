"""Processes from /proc: real ones, hostile names, recorded trees."""

from __future__ import annotations

import os
import pwd
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.collect import processes
from gpuscope.collect.container import container
from gpuscope.collect.processes import ProcessSampler, command_line, describe
from gpuscope.process.procfs import descends, parse_stat, start_ticks, status_values
from gpuscope.wire.codec import decode, encode
from gpuscope.wire.frames import MAX_STRING_CHARS, Def
from tests.fakes.proctree import code, stat_line, tree
from tests.fakes.program import python

HOSTILE = [
    b"python",
    b") R 1 (evil",
    b"a b) S 1 1 1 1 1 1 1",
    b"((((",
    b"))))",
    b"new\nline) Z 4",
    b"x\nUid:\t7\t7",
    b"\xff\xfe\x80",
    b"\x1b[2J\x1b]0;hi\x07",
    b"",
    "宽字符".encode(),
]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that waits."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; print(1, flush=True); time.sleep(120)",
            "--note",
            "two words",
        ],
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


# ── real processes ────────────────────────────────────────────────────────────────────────────────


def test_a_process_of_ours(child: subprocess.Popen[bytes]) -> None:
    found = describe(child.pid)
    assert found is not None
    definition, unknown = found
    assert unknown == {}
    assert definition.pid == child.pid
    assert definition.ppid == os.getpid()
    assert definition.mine
    assert definition.user == pwd.getpwuid(os.getuid()).pw_name
    assert definition.command is not None
    assert definition.command.endswith("--note 'two words'")
    assert definition.command.startswith(shlex.quote(sys.executable))
    assert definition.start == start_ticks(child.pid)
    assert definition.start_time is not None
    assert abs(definition.start_time - time.time()) < 60
    assert processes.visible(child.pid)


def test_a_process_that_ended(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    assert describe(child.pid) is None
    assert start_ticks(child.pid) is None
    assert not processes.visible(child.pid)
    assert {code(value) for value in ProcessSampler().sample(child.pid).values()} == {"lost"}
    assert processes.invisible(child.pid).code in ("lost", "hidden_by_container")


def test_a_zombie_still_has_a_name(child: subprocess.Popen[bytes]) -> None:
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    found = describe(child.pid)
    assert found is not None
    assert found[0].command == f"[{found[0].name}]"


@pytest.mark.parametrize("name", [name for name in HOSTILE if name and len(name) < 16])
def test_a_real_process_with_a_hostile_name(name: bytes) -> None:
    rename = (
        f"open('/proc/self/comm', 'wb').write({name!r}); print(1, flush=True); import time; "
        "time.sleep(120)"
    )
    with subprocess.Popen([sys.executable, "-c", rename], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout
            process.stdout.readline()
            found = describe(process.pid)
            assert found is not None
            definition, unknown = found
            assert unknown == {}
            raw = name.decode("utf-8", "replace")
            assert definition.name in (raw, raw.replace("\n", "\\n"))  # some kernels escape it
            assert (definition.ppid, definition.mine) == (os.getpid(), True)
            assert definition.user == pwd.getpwuid(os.getuid()).pw_name
            assert definition.start_time is not None
            assert abs(definition.start_time - time.time()) < 60
            assert code(ProcessSampler().sample(process.pid)["cpu_percent"]) == "not_initialised"
            decode(encode(Def(1, proc=definition)))
        finally:
            process.kill()


def test_cpu_and_memory_of_a_busy_process() -> None:
    spin = "import time\nkeep = bytearray(50_000_000)\nprint(1, flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin], stdout=subprocess.PIPE) as busy:
        try:
            assert busy.stdout
            busy.stdout.readline()
            sampler = ProcessSampler()
            first = sampler.sample(busy.pid)
            assert code(first["cpu_percent"]) == "not_initialised"
            assert isinstance(first["rss_bytes"], int)
            assert 50_000_000 < first["rss_bytes"] < 500_000_000
            used, deadline = 0.0, time.monotonic() + 30
            while used <= 0 and time.monotonic() < deadline:
                time.sleep(0.05)
                reading = sampler.sample(busy.pid)["cpu_percent"]
                # not before a while has passed
                used = reading if isinstance(reading, float) else 0.0
            assert 0 < used <= 110
        finally:
            busy.kill()


def test_kernel_threads_are_shown_as_ps_does() -> None:
    found = describe(2, redact=False)
    if found is None or found[0].name != "kthreadd":
        pytest.skip("no kernel threads to be seen here")
    assert found[0].command == "[kthreadd]"


# ── parsing ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_shifts_no_field(name: bytes) -> None:
    stat = parse_stat(stat_line(name))
    assert stat.name == name.decode("utf-8", "replace")
    assert stat[1:6] == ("S", 7, 150, 4242, 1000)


@given(st.binary(max_size=64))
def test_any_name_shifts_no_field(name: bytes) -> None:
    assert parse_stat(stat_line(name))[2:6] == (7, 150, 4242, 1000)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_value_or_a_value_error(content: bytes) -> None:
    for ask in (parse_stat, lambda raw: status_values(raw, b"Uid"), command_line):
        try:
            ask(content)
        except ValueError:
            pass


@given(st.lists(st.binary(max_size=40).map(lambda raw: raw.replace(b"\0", b"")), max_size=6))
def test_any_arguments_make_a_line_that_travels(arguments: list[bytes]) -> None:
    line = command_line(b"\0".join(arguments) + b"\0" if arguments else b"")
    assert len(line) <= MAX_STRING_CHARS
    decode(encode(Def(1, proc=processes.ProcDef(1, command=line))))


def test_a_command_line_reads_as_typed() -> None:
    assert (
        command_line(b"python\0train.py\0--note\0two words\0")
        == "python train.py --note 'two words'"
    )
    assert command_line(b"ray::worker idle\0\0\0") == "ray::worker idle", (
        "a title that the process gave itself"
    )
    assert command_line(b"") == ""
    long = command_line(b"\0".join([b"python", *[b"x" * 100] * 100]))
    assert len(long) == MAX_STRING_CHARS
    assert long.endswith("…")


def test_a_forged_uid_line_does_not_count() -> None:
    status = b"Name:\tx\nUid:\t0\t0\t0\t0\nState:\tS\nUid:\t1000\t1001\t1000\t1000\nGid:\t5\n"
    assert status_values(status, b"Uid") == [1000, 1001, 1000, 1000]
    assert status_values(b"Name:\tpython\n", b"Uid") == []


# ── recorded trees ────────────────────────────────────────────────────────────────────────────────

OTHER = os.getuid() + 4321


def recorded(root: Path, uid: int, pid: int = 123) -> str:
    return tree(
        root,
        {
            f"proc/{pid}/stat": stat_line(b"python"),
            f"proc/{pid}/status": f"Name:\tpython\nUid:\t{uid}\t0\t0\t0\nNSpid:\t{pid}\t7\n",
            f"proc/{pid}/cmdline": b"/usr/bin/python\0train.py\0--api-key\0hunter2\0",
        },
    )


def test_another_user_s_arguments_are_redacted(tmp_path: Path) -> None:
    root = recorded(tmp_path, OTHER)
    found = describe(123, root=root, boot_time=1000.0)
    assert found is not None
    definition, unknown = found
    assert unknown == {}
    assert (definition.user, definition.mine, definition.command) == (str(OTHER), False, "python")
    assert definition.start_time == 1000.0 + 4242 / processes.TICKS_PER_SECOND
    shown = describe(123, redact=False, root=root)
    assert shown is not None
    assert shown[0].command == "/usr/bin/python train.py --api-key hunter2"
    assert "hunter2" not in repr(definition)


def test_our_own_arguments_are_not(tmp_path: Path) -> None:
    found = describe(123, root=recorded(tmp_path, os.getuid()))
    assert found is not None
    assert "hunter2" in str(found[0].command)


def test_what_cannot_be_read_has_its_reason(tmp_path: Path) -> None:
    root = recorded(tmp_path, os.getuid())
    (tmp_path / "proc/123/status").unlink()
    found = describe(123, root=root)
    assert found is not None
    definition, unknown = found
    assert (definition.user, definition.mine) == (None, False)
    assert unknown["user"].text
    assert definition.command == "python", "whose it is nobody knows, so its arguments stay hidden"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to become another user")
def test_hidden_by_permissions(tmp_path: Path) -> None:
    """What an unprivileged user sees of files that are not theirs (hidepid=1)."""
    root = recorded(tmp_path, OTHER)
    for directory in (tmp_path, *tmp_path.parents):
        directory.chmod(directory.stat().st_mode | 0o755)
    for path in (tmp_path / "proc/123").iterdir():
        path.chmod(0o600)
    script = f"""
import sys, os; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from gpuscope.collect.processes import describe, ProcessSampler
os.setgid(65534); os.setuid(65534)
definition, unknown = describe(123, root={root!r})
print(definition.start, definition.command, sorted(unknown), {{u.code for u in unknown.values()}})
print({{u.code for u in ProcessSampler({root!r}).sample(123).values()}})
"""
    done = python("-c", script)
    assert done.stdout.splitlines() == [
        "None None ['command', 'name', 'start', 'user'] {'no_permission'}",
        "{'no_permission'}",
    ], done.stderr


def test_pids_of_a_containers_process(tmp_path: Path) -> None:
    root = recorded(tmp_path, OTHER)
    assert processes.namespace_pids(123, root) == (123, 7)
    assert processes.namespace_pids(999, root) == (999,)


def test_a_reused_pid_starts_anew(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/5/stat": stat_line(b"old", cpu=100, start=10)})
    sampler = ProcessSampler(root)
    assert code(sampler.sample(5, now=1.0)["cpu_percent"]) == "not_initialised"
    tree(tmp_path, {"proc/5/stat": stat_line(b"old", cpu=150, start=10)})
    assert sampler.sample(5, now=2.0)["cpu_percent"] == 50.0
    assert sampler.sample(5, now=2.05)["cpu_percent"] == 50.0, "too soon for a new one"
    tree(tmp_path, {"proc/5/stat": stat_line(b"new", cpu=60_000, start=99)})
    assert code(sampler.sample(5, now=3.0)["cpu_percent"]) == "not_initialised"
    tree(tmp_path, {"proc/5/stat": stat_line(b"new", cpu=60_400, start=99)})
    assert sampler.sample(5, now=5.0) == {
        "cpu_percent": 200.0,
        "rss_bytes": 1000 * processes.PAGE_BYTES,
    }


# ── containers ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("files", "environment", "name"),
    [
        ({"proc/self/cgroup": "0::/user.slice\n"}, {}, None),
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": "", ".dockerenv": ""}, {}, "podman"),
        ({"proc/self/cgroup": "12:memory:/docker/0123\n0::/\n"}, {}, "docker"),
        (
            {
                "proc/self/cgroup": "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-1.scope\n"  # noqa: E501
            },
            {},
            "kubernetes",
        ),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "kubernetes"),
        ({}, {"APPTAINER_CONTAINER": "/x.sif"}, "apptainer"),
        ({"run/systemd/container": "systemd-nspawn\n"}, {}, "systemd-nspawn"),
        ({"run/systemd/container": "wsl\n"}, {}, None),
    ],
)
def test_what_contains_us(
    tmp_path: Path, files: dict[str, str], environment: dict[str, str], name: str | None
) -> None:
    assert container(tree(tmp_path, dict(files)), environment) == name


def test_only_a_pid_namespace_hides_owners(tmp_path: Path) -> None:
    # A container may share the host's pids (docker --pid=host, Apptainer): then owners can be
    # named.
    (tmp_path / ".dockerenv").touch()
    link = tmp_path / "proc/self/ns/pid"
    link.parent.mkdir(parents=True)
    link.symlink_to("pid:[4026531836]")
    assert container(str(tmp_path), {}) == "docker"
    assert processes.pid_namespace_note(str(tmp_path)) is None
    link.unlink()
    link.symlink_to("pid:[4026532201]")
    note = processes.pid_namespace_note(str(tmp_path))
    assert note is not None
    assert (note.code, "--pid=host" in note.text) == ("hidden_by_container", True)
    assert processes.invisible(48216, str(tmp_path)).code == "hidden_by_container"


def test_who_holds_a_gpu(tmp_path: Path) -> None:
    for pid, target in ((7, "/dev/nvidia0"), (8, "/dev/null")):
        (tmp_path / f"proc/{pid}/fd").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/fd/3").symlink_to(target)
    assert [processes.holds_gpu(pid, str(tmp_path)) for pid in (7, 8, 9)] == [True, False, False]


@pytest.mark.skipif(os.getuid() != 0, reason="needs root for a new pid namespace")
def test_a_real_pid_namespace() -> None:
    script = f"""
import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[2])!r})
from gpuscope.collect.processes import own_pid_namespace
print(own_pid_namespace())
"""
    inside = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if inside.returncode:
        pytest.skip(f"no new pid namespace here: {inside.stderr.strip()[:100]}")
    assert inside.stdout.strip() == "True"


def test_a_process_descends_from_those_that_started_it_and_from_nobody_else():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert descends(child.pid, child.pid)
        assert descends(child.pid, os.getpid())
        assert descends(child.pid, os.getppid()) or os.getppid() <= 1
        assert not descends(os.getpid(), child.pid)
        assert not descends(1 << 30, os.getpid())
    finally:
        child.communicate(b"\n")
