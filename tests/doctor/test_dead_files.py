"""Core files, recordings and sends and receives of dead jobs.

The core files are of processes that really die here; the entries of NCCL's flight recorder are as
torch's source writes them.
"""

from __future__ import annotations

import gzip
import os
import pickle
import resource
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpuscope.attach import left_files
from gpuscope.cli.commands.doctor import targets
from gpuscope.doctor import dead
from gpuscope.doctor.dead import read_core
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.find import FoundFile
from gpuscope.doctor.dead.first_failure import judge
from tests.recordings import REDACTED

from .test_dead_jobs import call, first, stamp

CRASH = "import ctypes, os; os.environ['RANK'] = '7'; ctypes.string_at(1, 8)"
PATTERN = Path("/proc/sys/kernel/core_pattern")


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """The core file of a Python that read a wrong address, as rank 3 of 4."""
    folder = tmp_path_factory.mktemp("core")
    if not PATTERN.exists() or PATTERN.read_text().strip() not in ("core", "core.%p"):
        pytest.skip("this system gives core files to another program")

    def unlimited():
        limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))

    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", CRASH, "--config", "big.json"],
        cwd=folder,
        env={"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "4", "SECRET": "hunter2"},
        preexec_fn=unlimited,
        stderr=subprocess.DEVNULL,
    )
    files = list(folder.glob("core*"))
    if done.returncode != -signal.SIGSEGV or not files:
        pytest.skip("no core file was written here")
    return files[0]


def found(path, name="core.1"):
    about = path.stat()
    return FoundFile(path, name, "core", about.st_size, about.st_mtime)


def test_a_core_file_says_which_rank_died_of_what_in_which_command_and_library(core, tmp_path):
    shutil.copy(core, tmp_path / "anything")
    one = first(tmp_path)
    assert (one.cause, one.ranks, one.confidence) == ("dead.crash", (3,), "definite")
    read, part = read_core.read(found(core))
    assert (read.signal, read.world, part.about.local) == (signal.SIGSEGV, 4, 1)
    assert part.about.exit.code == -signal.SIGSEGV
    texts = [evidence.text for evidence in one.evidence]
    assert texts[0].startswith(f"rank 3 (PID {read.pid}) died of SIGSEGV in: ")
    assert sys.executable.rpartition("/")[2] in texts[0]
    assert "it was in " in texts[1]
    assert any(path.rpartition("/")[2].startswith("libc.so") for path in read.files)
    assert "hunter2" not in repr((read, part))
    fixes = dead.examine([tmp_path], "job").findings[0].fixes
    program = os.path.realpath(sys.executable)
    assert f"gdb -batch -ex bt {program} {tmp_path}/anything" in [fix.command for fix in fixes]


def test_a_core_file_that_names_no_rank_is_of_the_rank_with_its_process(core, tmp_path):
    from .test_dead_jobs import TORCHRUN

    data = bytearray(core.read_bytes())
    data = data.replace(b"\0RANK=3", b"\0KNAR=3")
    pid = read_core.read(found(core))[0].pid
    (tmp_path / "core").write_bytes(data)
    (tmp_path / "job.log").write_text(TORCHRUN.format(code=-11, p0=8040).replace("8041", str(pid)))
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.crash", (1,))
    assert any(f"(PID {pid}) died of SIGSEGV" in evidence.text for evidence in one.evidence)
    (tmp_path / "job.log").unlink()
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.crash", ())
    assert one.figures["who"] == f"PID {pid}"


def test_of_a_core_file_only_its_beginning_is_sent_and_packed_ones_are_read(core, tmp_path):
    short = tmp_path / "core.sent"
    short.write_bytes(left_files.content_of(str(core), core.stat().st_size)[: 4 << 20])
    assert read_core.read(found(short))[0].signal == signal.SIGSEGV
    packed = tmp_path / "core.gz"
    packed.write_bytes(gzip.compress(core.read_bytes(), 1))
    (tmp_path / "core.sent").unlink()
    assert first(tmp_path).cause == "dead.crash"


def test_a_core_file_of_any_size_takes_little_memory(core, tmp_path):
    import tracemalloc

    large = tmp_path / "core"
    shutil.copy(core, large)
    os.truncate(large, 20 << 30)
    tracemalloc.start()
    read_core.read(found(large))
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 10, 64, 200, 1200])
def test_a_core_file_that_is_cut_is_said_to_be_so(core, tmp_path, size):
    path = tmp_path / "core"
    path.write_bytes(core.read_bytes()[:size])
    with pytest.raises(read_core.NoCore):
        read_core.read(found(path))


def test_a_damaged_core_file_raises_no_other_error(tmp_path):
    head = b"\x7fELF\x02\x01\x01" + bytes(9) + struct.pack("<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0,
                                                            64, 56, 3, 0, 0, 0)  # fmt: skip
    for filler in (b"\xff", b"\x04", b"\x00\x01"):
        path = tmp_path / "core"
        path.write_bytes(head + filler * 4000)
        with pytest.raises(read_core.NoCore):
            read_core.read(found(path))


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python unpacks it")
def test_a_core_file_that_systemd_packed_is_named_with_what_unpacks_it(tmp_path):
    boot = "5d1f0c8e42114d3c9a572b6e8f104211"
    name = f"core.python3.1000.{boot}.4711.1795700000000000.zst"
    (tmp_path / name).write_bytes(b"\x28\xb5\x2f\xfd" + bytes(200))
    (tmp_path / "shard.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(200))
    (tmp_path / "rank_0.log").write_text(f"{stamp(0)},000 INFO rank 0 step 1 loss 0.5\n")
    job = read_job([tmp_path], "job")
    assert job.unread == [
        f"{name}: a packed core file of python3, PID 4711. Next: coredumpctl info 4711, or zstd -d "
        "it."
    ]
    report = targets.examine([str(tmp_path / name)], False, 5.0)
    assert "coredumpctl info 4711" in str(report.problems)


def test_a_core_file_that_zstd_packed_is_read_where_python_can(core, tmp_path):
    zstd = pytest.importorskip("compression.zstd")
    (tmp_path / "core.zst").write_bytes(zstd.compress(core.read_bytes()))
    assert first(tmp_path).cause == "dead.crash"


# ── recordings ────────────────────────────────────────────────────────────────────────────────────


def test_the_end_of_a_recording_names_the_rank_that_the_others_waited_for(tmp_path):
    """Recorded on two H200s, where rank 1 hung in its loader."""
    shutil.copy(REDACTED / "h200x2-stall.gsr", tmp_path)
    assert dead.is_of_a_job(tmp_path)
    one = first(tmp_path)
    assert (one.cause, one.ranks) == ("dead.input-hang", (1,))
    texts = " ".join(evidence.text for evidence in one.evidence)
    assert "rank 1 is stuck at <path>:31 in __getitem__" in texts
    assert "last recorded of rank 1: step 50" in texts
    assert "of its GPU's memory allocated" in texts
    ranks = read_job([tmp_path], "job").ranks
    assert (ranks[0].step, ranks[1].step) == (51, 50)


def test_a_recording_of_a_job_that_still_trained_accuses_nobody(tmp_path):
    shutil.copy(REDACTED / "h200x2-ddp.gsr", tmp_path)
    job = read_job([tmp_path], "job")
    assert [rank.step for rank in job.ranks.values()] == [1124, 1125]
    assert not judge(job).suspects


def test_a_recording_that_is_cut_or_none_is_said_to_be_so(tmp_path):
    data = (REDACTED / "h200x2-stall.gsr").read_bytes()
    (tmp_path / "cut.gsr").write_bytes(data[: len(data) // 2])
    (tmp_path / "empty.gsr").write_bytes(data[:300])
    job = read_job([tmp_path], "job")
    assert any(text.startswith("empty.gsr: ") for text in job.unread)


# ── sends and receives in NCCL's flight recorder ──────────────────────────────────────────────────


def transfer(number, what, state="completed", size=(8, 24), group="0", line=40, kind="Float"):
    """An entry of a send or a receive, such as ``send 0->1``, with ranks of the group."""
    entry = call(number, what, size, state, group, kind, line)
    sends = what.startswith("send")
    empty = {"output_sizes": [], "output_dtypes": []} if sends else {}
    empty |= {} if sends else {"input_sizes": [], "input_dtypes": []}
    return {**entry, "is_p2p": True, "p2p_seq_id": number, "collective_seq_id": 0, **empty}


def left(folder, calls, members=None):
    """Write the dump of each rank."""
    members = members or list(range(len(calls)))
    for rank, entries in enumerate(calls):
        groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(len(calls))))}}
        groups["1"] = {"name": "1", "desc": "pipeline", "ranks": str(members)}
        root = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(root, 2))
    return folder


WAITS = "started"


def test_ranks_that_all_receive_first_wait_for_each_other_in_a_circle(tmp_path):
    def of(rank):
        before, after = (rank - 1) % 4, (rank + 1) % 4
        done = [transfer(1, f"recv {rank}<-{before}"), transfer(2, f"send {rank}->{after}")]
        return [*done, transfer(3, f"recv {rank}<-{before}", WAITS)]

    one = first(left(tmp_path, [of(rank) for rank in range(4)]))
    assert (one.cause, one.ranks) == ("dead.point-to-point", ())
    assert "0 → 3 → 2 → 1 → 0" in one.figures["what"]
    assert one.evidence[0].text.startswith("rank 0 waits in its recv from rank 3 of 8x24 Float")


def test_a_rank_that_names_another_partner_than_ever_before_comes_first(tmp_path):
    calls = [
        [transfer(1, "send 0->1"), transfer(2, "send 0->1")],
        [transfer(1, "send 1->2"), transfer(2, "send 1->3", WAITS)],
        [transfer(1, "recv 2<-1"), transfer(2, "send 2->3"), transfer(3, "recv 2<-1", WAITS)],
        [transfer(1, "recv 3<-2"), transfer(2, "recv 3<-2", WAITS)],
    ]
    one = first(left(tmp_path, calls))
    assert (one.cause, one.ranks) == ("dead.point-to-point", (1,))
    assert "send to rank 3, which it does not do otherwise" in one.figures["what"]


def test_a_chain_of_waiting_ranks_ends_at_the_one_that_never_sent(tmp_path):
    calls = [
        [call(1), transfer(1, "send 0->1"), call(2, state=WAITS)],
        [call(1), transfer(1, "recv 1<-0"), call(2, state=WAITS, line=77)],
        [call(1), transfer(1, "recv 2<-1", WAITS)],
        [call(1), transfer(1, "recv 3<-2", WAITS)],
    ]
    one = first(left(tmp_path, calls))
    assert (one.cause, one.ranks) == ("dead.point-to-point", (1,))
    assert "never called the send to rank 2" in one.figures["what"]
    calls[1].pop()
    calls[0].pop()
    one = first(left(tmp_path, calls))
    assert (one.cause, one.ranks) == ("dead.code-hang", (1,))
    assert one.figures["what"] == "never called send to rank 2"


def test_a_rank_that_posted_a_receive_and_went_on_does_not_wait_in_it(tmp_path):
    calls = [
        [transfer(1, "send 0->1")],
        [transfer(1, "recv 1<-0"), transfer(2, "recv 1<-0", WAITS)],
        [transfer(1, "recv 2<-1", WAITS)],
    ]
    stack = 'Thread 0x7f (most recent call first):\n  File "/home/me/a.py", line 9 in spin\n'
    left(tmp_path, calls)
    assert first(tmp_path).ranks == (0,)
    (tmp_path / "rank_1.log").write_text("step 1 loss 0.5\n" + stack)
    one = first(tmp_path)
    assert (one.cause, one.ranks, one.where) == ("dead.code-hang", (1,), "a.py:9")


def test_a_send_that_is_queued_behind_a_receive_answers_nobody(tmp_path):
    """NCCL queues a call and returns: the first one that is not done is where the rank waits."""

    def blocking(entry):
        name = "send" if entry["profiling_name"].startswith("nccl:send") else "recv"
        file = "/x/torch/distributed/distributed_c10d.py"
        frames = [{"name": name, "filename": file, "line": 1}, *entry["frames"]]
        return {**entry, "frames": frames}

    def of(rank, waits):
        before, after = (rank - 1) % 3, (rank + 1) % 3
        done = [transfer(1, f"send {rank}->{after}"), transfer(2, f"recv {rank}<-{before}")]
        queued = [transfer(3, f"recv {rank}<-{before}", WAITS, line=77)]
        queued.append(transfer(4, f"send {rank}->{after}", WAITS))
        return done + [waits(one) for one in queued]

    one = first(left(tmp_path, [of(rank, blocking) for rank in range(3)]))
    assert (one.cause, one.ranks) == ("dead.point-to-point", ())
    assert "at train.py:77" in one.evidence[0].text
    left(tmp_path, [of(rank, lambda entry: entry) for rank in range(3)])  # irecv and isend
    assert judge(read_job([tmp_path], "job")).suspects[0].cause == "dead.unexplained-hang"


def test_a_send_and_a_receive_of_different_sizes_are_named_with_both_sides(tmp_path):
    calls = [
        [transfer(1, "send 0->1", WAITS, size=(16, 24))],
        [transfer(1, "recv 1<-0", WAITS, size=(8, 24))],
    ]
    one = first(left(tmp_path, calls))
    assert (one.cause, one.ranks) == ("dead.collective-size", (0, 1))
    title = dead.examine([tmp_path], "job").findings[0].title
    assert title == "Rank 0 gave its send another size than rank 1 its recv: 16x24, not 8x24"


def test_the_calls_of_a_batch_are_done_when_the_batch_is_and_groups_have_their_own_numbers(
    tmp_path,
):
    """NCCL gives the state of a batch to an entry of its own, the last one."""

    def batch(number, rank, state, group="1"):
        both = [f"send {rank}->{1 - rank}", f"recv {rank}<-{1 - rank}"]
        both = both if state == "completed" or rank else both[1:]
        rows = [transfer(number, what, "scheduled", group=group) for what in both]
        end = transfer(number, "coalesced", state, group=group)
        return [*rows, {**end, "is_p2p": False}]  # as torch 2.11 with NCCL 2.28 marks it

    calls = [[call(1)] for _ in range(4)]
    for rank, member in enumerate((1, 3)):
        calls[member] += batch(1, rank, "completed") + batch(2, rank, WAITS)
    one = first(left(tmp_path, calls, members=[1, 3]))
    assert (one.cause, one.ranks[:1]) == ("dead.code-hang", (1,))
    assert "rank 3 waits in its recv from rank 1" in one.evidence[0].text
