"""What killed a job first, from files as torch, torchrun, NCCL, Slurm and the kernel write them."""

from __future__ import annotations

import gzip
import json
import pickle
import time
import zipfile
from pathlib import Path

import pytest

from gpuscope.cli.commands.doctor import bundle
from gpuscope.doctor import dead, report, table
from gpuscope.doctor.dead import excerpt
from gpuscope.doctor.dead.collect import read_job
from gpuscope.doctor.dead.first_failure import judge
from gpuscope.text.styled import plain

from . import message_templates as say

BEGIN = 1_795_700_000.0


def stamp(seconds):
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(BEGIN + seconds))


def steps(rank, last=8, first=0):
    return "".join(
        f"{stamp(n)},000 INFO rank {rank} step {n} loss 0.5\n" for n in range(first, last + 1)
    )


def traceback(rank, error, line=30, function="train", inner=()):
    frames = "".join(
        f'[rank{rank}]:   File "{file}", line {number}, in {name}\n' for file, number, name in inner
    )
    return (
        f"[rank{rank}]: Traceback (most recent call last):\n"
        f'[rank{rank}]:   File "/home/me/train.py", line {line}, in {function}\n'
        f"[rank{rank}]:     step()\n{frames}[rank{rank}]: {error}\n"
    )


LOST = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.1]:1234"
LATE = "RuntimeError: [/gloo/tcp/unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation"
REDUCE = [("/x/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce")]


@pytest.fixture
def folder(tmp_path):
    """Writes the log of each rank below a folder, and returns the folder."""

    def write(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", ".")
            if isinstance(text, bytes):
                path.write_bytes(text)
            else:
                path.write_text(text)
        return tmp_path

    return write


def first(path):
    """The first suspect of the job in a folder."""
    found = judge(read_job([path], "job")).suspects
    assert found, "nothing is suspected"
    return found[0]


def verdict(path):
    one = first(path)
    return one.cause, one.ranks, one.confidence


# ── an exception, and what it made the others say ─────────────────────────────────────────────────


def test_the_rank_that_failed_by_itself_is_told_from_those_that_lost_their_connection(folder):
    path = folder(
        rank_0__log=steps(0) + traceback(0, LOST),
        rank_1__log=steps(1) + traceback(1, "ValueError: bad sample 17", 12, "collate"),
        rank_2__log=steps(2) + traceback(2, LOST),
    )
    one = first(path)
    assert (one.cause, one.ranks, one.confidence) == ("dead.exception", (1,), "definite")
    assert one.where == "train.py:12"
    assert one.evidence[0].source == "rank_1.log:10"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "out-of-memory-gpu"),
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory", "out-of-memory-host"),
        ("OSError: [Errno 28] No space left on device: '/ckpt/a.pt'", "disk-full"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_1>: No space left "
         "on device (28)", "resource-limit"),
        ("OSError: [Errno 24] Too many open files: 'a'", "resource-limit"),
        ("ModuleNotFoundError: No module named 'flash_attn'", "import-error"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'a'", "file-missing"),
        ("RuntimeError: PytorchStreamReader failed reading zip archive", "file-corrupt"),
        ("RuntimeError: Error(s) in loading state_dict for Net:", "model-mismatch"),
        ("FloatingPointError: loss is nan at step 8", "nan"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "device-error"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", "killed"),
        ("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", "crash"),
    ],
)  # fmt: skip
def test_an_exception_has_the_cause_that_it_names(folder, error, cause):
    path = folder(
        rank_0__log=steps(0) + traceback(0, LOST), rank_1__log=steps(1) + traceback(1, error)
    )
    one = first(path)
    assert (one.cause, one.ranks) == (f"dead.{cause}", (1,))


def test_an_exception_that_was_caught_is_no_cause(folder):
    caught = traceback(0, "TimeoutError: metrics server")
    path = folder(
        rank_0__log=steps(0, 4) + caught + steps(0, 8, 5) + traceback(0, LOST),
        rank_1__log=steps(1) + traceback(1, "ValueError: bad"),
    )
    assert verdict(path)[:2] == ("dead.exception", (1,))


def test_of_a_chain_the_exception_that_came_first_decides(folder):
    link = "\n{}During handling of the above exception, another exception occurred:\n\n"
    own = traceback(0, "ValueError: bad") + link.format("[rank0]: ") + traceback(0, LATE)
    handled = traceback(1, LATE, 20, inner=REDUCE) + link.format("[rank1]: ")
    handled += traceback(1, "TypeError: in a handler")
    path = folder(rank_0__log=steps(0) + own, rank_1__log=steps(1) + handled)
    one = first(path)
    assert (one.cause, one.ranks) == ("dead.exception", (0,))
    assert "then, in the same rank" in one.evidence[1].text


def test_an_exception_that_may_have_been_caught_gives_way_to_one_that_ended_its_rank(folder):
    logged = f"{stamp(2)},000 ERROR metrics\n" + traceback(0, "OSError: no server").replace(
        "[rank0]: ", ""
    )
    path = folder(rank_0__log=logged, rank_1__log=steps(1) + traceback(1, "ValueError: bad"))
    assert verdict(path)[:2] == ("dead.exception", (1,))


def test_a_logged_traceback_is_of_the_rank_that_the_line_before_names(folder):
    plain = traceback(2, "ValueError: bad").replace("[rank2]: ", "")
    text = "".join(f"{stamp(n)},000 INFO [rank {n}] step {n}\n" for n in range(4))
    text += f"{stamp(5)},000 ERROR [rank 2] uncaught\n{plain}{stamp(6)},000 INFO [rank 1] step 5\n"
    assert verdict(folder(job__log=text))[:2] == ("dead.exception", (2,))


def test_where_every_rank_failed_alike_none_is_the_culprit(folder):
    error = "ModuleNotFoundError: No module named 'apex'"
    path = folder(**{f"rank_{n}__log": traceback(n, error) for n in range(3)})
    one = first(path)
    assert (one.cause, one.ranks) == ("dead.import-error", ())
    assert one.figures["who"] == "Every rank"


def test_of_ranks_that_all_heard_of_it_the_one_is_named_that_said_it_first(folder):
    error = "ArithmeticError: non-finite loss on 1 rank(s)"
    logs = {f"rank_{n}__log": steps(n) + traceback(n, error) for n in range(4)}
    logs["rank_2__log"] = steps(2) + "WARNING loss became nan at step 8\n" + traceback(2, error)
    one = first(folder(**logs))
    assert (one.cause, one.ranks, one.confidence) == ("dead.nan", (2,), "likely")


@pytest.mark.parametrize(
    ("last", "cause", "ranks"),
    [
        ("ProcessRaisedException: \n\n-- Process 2 terminated with the following error:\n"
         "Traceback (most recent call last):\n  File \"/a.py\", line 4, in run\nValueError: bad\n",
         "exception", (2,)),
        ("ProcessExitedException: process 1 terminated with signal SIGSEGV\n", "crash", (1,)),
    ],
)  # fmt: skip
def test_what_torch_multiprocessing_says_of_a_process_is_of_its_rank(folder, last, cause, ranks):
    text = 'Traceback (most recent call last):\n  File "/a.py", line 9, in <module>\n'
    path = folder(job__log=f"world_size=4\n{text}torch.multiprocessing.spawn.{last}")
    assert verdict(path)[:2] == (f"dead.{cause}", ranks)


def test_an_exception_without_a_prefix_is_of_the_rank_that_ended_by_one(folder):
    plain = traceback(0, "ValueError: bad").replace("[rank0]: ", "")
    assert verdict(folder(job__log=plain + TORCHRUN.format(code=1, p0=8040)))[:2] == (
        "dead.exception",
        (1,),
    )


def test_the_rank_that_a_sharded_checkpoint_names_is_the_one_that_failed(folder):
    def text(rank):
        error = "CheckpointException: CheckpointException ranks:dict_keys([0])\n"
        return traceback(rank, error.strip()) + (
            f"[rank{rank}]: Traceback (most recent call last): (RANK 0)\n"
            f'[rank{rank}]:   File "/a.py", line 4, in write\n[rank{rank}]: BufferError: gone\n'
        )

    assert verdict(folder(job__log=text(1) + text(2)))[:2] == ("dead.exception", (0,))


def test_an_exception_of_a_loaders_worker_is_the_one_inside_it(folder):
    text = (
        "Traceback (most recent call last):\n"
        '  File "/home/me/train.py", line 9, in <module>\n'
        "RuntimeError: Caught OSError in DataLoader worker process 0.\n"
        "Original Traceback (most recent call last):\n"
        '  File "/home/me/data.py", line 4, in __getitem__\n'
        "OSError: [Errno 28] No space left on device\n"
    )
    one = first(folder(rank_0__log=steps(0) + text, rank_1__log=steps(1) + traceback(1, LOST)))
    assert (one.cause, one.ranks, one.where) == ("dead.disk-full", (0,), "data.py:4")


# ── how processes ended ───────────────────────────────────────────────────────────────────────────

TORCHRUN = """\
W1126 14:22:19.310000 7745 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {p0} closing signal SIGTERM
E1126 14:22:19.446000 7745 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: {code}) local_rank: 1 (pid: 8041) of binary: python
Traceback (most recent call last):
  File "/venv/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-26_14:22:16
  host      : node01
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: {p0})  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID {p0}
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-26_14:22:16
  host      : node01
  rank      : 1 (local_rank: 1)
  exitcode  : {code} (pid: 8041)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""  # noqa: E501


@pytest.mark.parametrize(
    ("code", "cause"), [("-9", "killed"), ("-11", "crash"), ("3", "silent-exit")]
)
def test_torchruns_list_says_how_each_rank_ended(folder, code, cause):
    logs = {"rank_0__log": steps(0), "rank_1__log": steps(1)}
    path = folder(job__log=TORCHRUN.format(code=code, p0=8040), **logs)
    one = first(path)
    assert (one.cause, one.ranks) == (f"dead.{cause}", (1,))
    assert one.evidence[-1].text.endswith("step 8 loss 0.5")


def test_a_kill_is_explained_by_the_kernels_log(folder):
    kernel = (
        "[13099.2] Memory cgroup out of memory: Killed process 8041 (python) anon-rss:861300kB\n"
    )
    path = folder(job__log=TORCHRUN.format(code=-9, p0=8040), dmesg__txt=kernel)
    assert verdict(path) == ("dead.out-of-memory-host", (1,), "definite")


def test_sruns_lines_say_how_tasks_ended_and_which_were_only_told(folder):
    srun = (
        "srun: error: node02: task 2: Segmentation fault\n"
        "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"
        "srun: error: node01: tasks 0-1: Terminated\n"
        "srun: error: node02: task 3: Killed\n"
    )
    logs = {f"slurm-77_{n}__out": steps(n) for n in range(4)}
    assert verdict(folder(slurm__out=srun, **logs)) == ("dead.crash", (2,), "definite")


def test_a_time_limit_is_sure_only_where_the_job_still_made_steps(folder):
    ended = "slurmstepd: error: *** JOB 7 ON node01 CANCELLED AT {} DUE TO TIME LIMIT ***\n"
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(BEGIN + 9))
    late = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(BEGIN + 900))
    logs = {f"rank_{n}__log": steps(n) for n in range(2)}
    assert verdict(folder(job__log=ended.format(at), **logs)) == ("dead.time-limit", (), "definite")
    one = first(folder(job__log=ended.format(late), **logs))
    assert (one.cause, one.confidence) == ("dead.time-limit", "likely")
    assert "14 min 52 s before" in one.evidence[-1].text or "14" in one.evidence[-1].text


def test_a_host_whose_ranks_all_stop_without_a_word_went_away(folder, tmp_path):
    for node, ranks in (("node01", (0, 1)), ("node02", (2, 3))):
        for number in ranks:
            place = tmp_path / node
            place.mkdir(exist_ok=True)
            text = steps(number) + (traceback(number, LOST) if node == "node01" else "")
            (place / f"rank_{number}.log").write_text(text)
    one = first(tmp_path)
    assert (one.cause, one.ranks, one.host) == ("dead.node-lost", (2, 3), "node02")


def test_a_job_that_ended_well_is_no_problem(folder):
    path = folder(**{f"rank_{n}__log": steps(n) + f"rank {n} is done\n" for n in range(3)})
    found = dead.examine([path], "job")
    assert [(one.cause, one.severity) for one in found.findings] == [("dead.finished", "info")]


# ── who is missing, and where it was ──────────────────────────────────────────────────────────────


def waiting(ranks, line=40):
    return {f"rank_{n}__log": steps(n) + traceback(n, LATE, line, inner=REDUCE) for n in ranks}


def test_a_rank_that_never_arrived_is_named_with_the_line_of_its_stack(folder):
    stack = (
        "Timeout (0:00:04)!\nThread 0x00007f52 (most recent call first):\n"
        '  File "/home/me/eval.py", line 88 in evaluate\n'
        '  File "/home/me/train.py", line 33 in <module>\n'
    )
    one = first(folder(rank_2__log=steps(2) + stack, **waiting((0, 1, 3))))
    assert (one.cause, one.ranks, one.where) == ("dead.code-hang", (2,), "eval.py:88")


def test_py_spy_shows_who_waits_for_data(folder):
    def spy(frames):
        rows = "".join(f"    {name} ({file}:{line})\n" for name, file, line in frames)
        return f'Process 7: python train.py\n\nThread 7 (idle): "MainThread"\n{rows}'

    there = spy(
        [("all_reduce", "torch/distributed/distributed_c10d.py", 3252), ("main", "a.py", 4)]
    )
    here = spy([("Shards.__getitem__", "data.py", 88), ("main", "a.py", 2)])
    path = folder(rank0__txt=there, rank1__txt=here, rank2__txt=there)
    assert verdict(path)[:2] == ("dead.input-hang", (1,))


def test_the_debug_servers_stacks_are_given_to_the_ranks_that_it_names(folder):
    def of(rank, frames):
        rows = "".join(f'  File "{file}", line {n} in {name}\n' for file, n, name in frames)
        return (
            f"=== Rank {rank}: node01:4{rank} ===\n"
            f"Current thread 0x7f (most recent call first):\n{rows}"
        )

    wait = [*REDUCE, ("/home/me/a.py", 4, "main")]
    text = of(0, wait) + of(1, [("/home/me/a.py", 9, "spin")]) + of(2, wait)
    one = first(folder(stacks__txt=text))
    assert (one.cause, one.ranks, one.where) == ("dead.code-hang", (1,), "a.py:9")


def test_a_rank_that_ended_while_others_waited_had_fewer_steps(folder):
    done = {"rank_2__log": steps(2, 6) + "rank 2 has done its 7 steps\n"}
    logs = {f"rank_{n}__log": steps(n) + traceback(n, LOST, 40) for n in (0, 1, 3)}
    assert verdict(folder(**done, **logs)) == ("dead.uneven-steps", (2,), "likely")


def test_the_monitored_barrier_names_who_is_missing(folder):
    text = "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 9000 ms"
    logs = {"rank_0__log": steps(0) + traceback(0, text), "rank_1__log": steps(1)}
    one = first(folder(rank_2__log=steps(2), **logs))
    assert (one.cause, one.ranks) == ("dead.code-hang", (2,))


WATCHDOG = (
    "[rank{r}]:[E1126 14:22:08.4 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=1201, OpType=ALLREDUCE, NumelIn=4096, NumelOut=4096, "
    "Timeout(ms)=600000) ran for 600060 milliseconds before timing out.\n"
    "[rank{r}]:[E1126 14:22:08.5 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank "
    "{r}] Exception (either an error or timeout) detected by watchdog at work: 1201, last enqueued "
    "NCCL work: {n}, last completed NCCL work: 1200.\n"
)


def test_the_watchdogs_of_nccl_say_who_launched_fewer_collectives(folder):
    """As NCCL's process group of torch 2.5 writes it; no log of a real card is in this test."""
    text = "".join(WATCHDOG.format(r=r, n=1199 if r == 2 else 1204) for r in range(4))
    one = first(folder(job__log=text))
    assert (one.cause, one.ranks) == ("dead.code-hang", (2,))
    assert "last enqueued NCCL work: 1199" in one.evidence[0].text


def test_a_rank_that_waits_itself_is_not_called_absent_by_the_watchdogs(folder):
    """NCCL compares no sizes: ranks with a smaller tensor finish the call and go on."""
    text = "".join(WATCHDOG.format(r=r, n=1203 if r == 2 else 1204) for r in range(4))
    assert verdict(folder(job__log=text)) == ("dead.unexplained-hang", (), "likely")


def test_a_rank_without_a_watchdogs_message_is_the_one_that_others_waited_for(folder):
    text = "".join(WATCHDOG.format(r=r, n=1204) for r in (0, 1, 3))
    one = first(folder(job__log="world_size=4\n" + text))
    assert (one.cause, one.ranks) == ("dead.code-hang", (2,))


def test_torchs_check_of_collectives_names_both_sides(folder):
    error = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank {} is running "
        "collective: CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[3], "
        "TensorDtypes={}, TensorDeviceTypes=cpu), but Rank {} is running collective: "
        "CollectiveFingerPrint(SequenceNumber=9, OpType=ALLREDUCE, TensorShape=[3], "
        "TensorDtypes={}, TensorDeviceTypes=cpu)."
    )
    logs = {"rank_0__log": traceback(0, error.format(0, "Float", 1, "Double"))}
    logs["rank_1__log"] = traceback(1, error.format(1, "Double", 0, "Float"))
    logs["rank_2__log"] = traceback(2, error.format(2, "Float", 1, "Double"))
    assert verdict(folder(**logs)) == ("dead.collective-dtype", (1,), "definite")


# ── flight recorders ──────────────────────────────────────────────────────────────────────────────


def call(number, operation="all_reduce", size=(10,), state="completed", group="0", kind="Float",
         line=40, offset=0.0):  # fmt: skip
    """An entry as NCCL's flight recorder dumps it."""
    at = int((BEGIN + number + offset) * 1e9)
    frames = [
        {"name": "wrapper", "filename": "/x/torch/distributed/c10d_logger.py", "line": 83},
        {"name": "train", "filename": "/home/me/train.py", "line": line},
    ]
    return {
        "frames": frames, "record_id": number, "pg_id": 0, "process_group": (group, "default_pg"),
        "collective_seq_id": number, "p2p_seq_id": 0, "op_id": number, "is_p2p": False,
        "profiling_name": f"nccl:{operation}", "time_created_ns": at, "input_sizes": [list(size)],
        "input_dtypes": [kind], "output_sizes": [list(size)], "output_dtypes": [kind],
        "state": state, "time_discovered_started_ns": at, "retired": state == "completed",
        "time_discovered_completed_ns": at if state == "completed" else None, "timeout_ms": 600000,
    }  # fmt: skip


def dump(entries, world=4):
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    groups["1"] = {"name": "1", "desc": "tensor", "ranks": str(list(range(world)))}
    root = {"version": "2.10", "pg_config": groups, "pg_status": {}, "entries": entries}
    return pickle.dumps(root, 2)


def flights(odd, usual, rank=2, world=4):
    return {f"nccl_trace_rank_{n}": dump(odd if n == rank else usual, world) for n in range(world)}


DONE = [call(n, "broadcast" if n == 2 else "all_reduce") for n in range(1, 6)]


@pytest.mark.parametrize(
    ("odd", "cause", "confidence"),
    [
        (call(6, "broadcast", state="started", line=77), "collective-order", "definite"),
        (call(6, "barrier", state="started", line=77), "uneven-steps", "likely"),
        (call(6, "all_gather", state="started", line=77), "collective-order", "likely"),
        (call(6, size=(12,), state="started", line=77), "collective-size", "definite"),
        (call(6, kind="Double", state="started", line=77), "collective-dtype", "definite"),
    ],
)
def test_a_collective_that_differs_is_named_with_both_sides(folder, odd, cause, confidence):
    path = folder(**flights([*DONE, odd], [*DONE, call(6, state="started")]))
    one = first(path)
    assert (one.cause, one.ranks, one.confidence) == (f"dead.{cause}", (2,), confidence)
    texts = [evidence.text for evidence in one.evidence]
    assert any(text.startswith("ranks 0, 1, 3: all_reduce 6 of 10 Float") for text in texts)
    assert any("rank 2: " in text and text.endswith("train.py:77 in train") for text in texts)


def test_of_two_sizes_the_one_that_still_waits_explains_the_hang(folder):
    done = [*DONE, call(6, size=(3,)), call(7), call(8, state="scheduled")]
    stuck = [*DONE, call(6, size=(5,), state="scheduled"), call(7, state="scheduled")]
    text = WATCHDOG.format(r=0, n=1204).replace("work: 1200", "work: 1203")
    text += WATCHDOG.format(r=1, n=1203)
    one = first(folder(job__log=text, **flights(stuck, done, rank=1, world=2)))
    assert (one.cause, one.ranks) == ("dead.collective-size", (1,))
    assert one.evidence[-1].text == "rank 1 waits in it, while the others have finished theirs"


def test_a_rank_with_fewer_collectives_is_the_one_that_others_wait_for(folder):
    one = first(folder(**flights(DONE, [*DONE, call(6, state="started")])))
    assert (one.cause, one.ranks) == ("dead.code-hang", (2,))
    assert "launched all_reduce 6" in one.evidence[0].text


def test_a_rank_that_waits_in_another_group_is_told_from_one_that_is_late(folder):
    usual = [*DONE, *(call(n, group="1") for n in range(1, 4)), call(6, state="started")]
    odd = [*DONE, *(call(n, group="1") for n in range(1, 4)), call(4, group="1", state="started")]
    one = first(folder(**flights(odd, usual)))
    assert (one.cause, one.ranks) == ("dead.collective-order", (2,))
    rare = [*DONE, call(1, group="1", state="started")]
    one = first(folder(**flights(rare, [*DONE, call(6, state="started")])))
    assert (one.cause, one.ranks) == ("dead.collective-group", (2,))


def test_a_rank_that_is_one_call_ahead_has_no_tensor_of_a_wrong_size(folder):
    usual = [call(n, size=(10 + n % 2,)) for n in range(1, 6)] + [call(6, state="started")]
    odd = [*usual[:5], call(6, size=(11,), state="started")]
    assert verdict(folder(**flights(odd, usual))) == ("dead.collective-order", (2,), "likely")


def test_dumps_as_json_and_packed_are_read_as_well(folder):
    root = pickle.loads(dump([*DONE, call(6, "broadcast", state="started")]))
    files = flights([], [*DONE, call(6, state="started")])
    files["nccl_trace_rank_2"] = json.dumps(root).encode()
    files["nccl_trace_rank_0"] = gzip.compress(files["nccl_trace_rank_0"])
    assert verdict(folder(**files)) == ("dead.collective-order", (2,), "definite")


class Runs:
    def __reduce__(self):
        return (print, ("pg_config",))


def test_a_dump_that_would_run_code_is_refused_and_the_others_are_read(folder, capfd):
    files = flights(DONE, [*DONE, call(6, state="started")], rank=3)
    files["nccl_trace_rank_0"] = pickle.dumps({"pg_config": {}, "entries": [Runs()]}, 2)
    files["nccl_trace_rank_1"] = files["nccl_trace_rank_1"][:-200]
    job = read_job([folder(**files)], "job")
    assert [text.partition(":")[0] for text in job.unread] == [
        "nccl_trace_rank_0",
        "nccl_trace_rank_1",
    ]
    assert "tries to import" in job.unread[0]
    assert judge(job).suspects[0].ranks == (3,)
    assert "pg_config" not in capfd.readouterr().out


def test_clocks_of_hosts_are_brought_together_by_the_collectives_of_both(folder, tmp_path):
    for number, node, offset in ((0, "node01", 0.0), (1, "node02", 90.0)):
        place = tmp_path / node
        place.mkdir()
        entries = [call(n, offset=offset + 0.01 * (n % 3)) for n in range(1, 30)]
        (place / f"nccl_trace_rank_{number}").write_bytes(dump(entries, 2))
        log = "".join(f"{stamp(n + offset)},000 INFO step {n}\n" for n in range(1, 30))
        (place / f"rank_{number}.log").write_text(log)
    job = read_job([tmp_path], "job")
    offset, spread = job.offsets["node02"]
    assert offset == pytest.approx(90.0, abs=0.05)
    assert spread < 0.1
    assert job.ranks[1].last == pytest.approx(job.ranks[0].last, abs=0.05)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_log_of_several_ranks_is_taken_apart_by_its_prefixes(folder):
    text = "".join(
        f"[default{n}]:{line}\n" for n in range(3) for line in steps(n).splitlines()
    ) + traceback(1, "ValueError: bad").replace("[rank1]:", "[default1]:[rank1]:")
    text += traceback(0, LOST) + traceback(2, LOST)
    assert verdict(folder(job__log=text)) == ("dead.exception", (1,), "definite")


def test_labels_of_srun_are_ranks_where_nothing_else_names_them(folder):
    text = "".join(f"{n}: {line}\n" for n in range(3) for line in steps(n).splitlines())
    text += '2: Traceback (most recent call last):\n2:   File "/a/t.py", line 3, in main\n'
    text += "2: ValueError: bad\n0: still here\n1: still here\n"
    assert verdict(folder(job__log=text))[:2] == ("dead.exception", (2,))


def test_of_a_long_log_the_end_and_the_tracebacks_before_are_kept(tmp_path):
    filler = "".join(f"{stamp(n)},000 INFO step {n} loss 0.5 and more\n" for n in range(60_000))
    early = 'Traceback (most recent call last):\n  File "/a.py", line 1, in f\nValueError: early\n'
    path = tmp_path / "rank_0.log.gz"
    path.write_bytes(gzip.compress((filler + early + filler + "last words\n").encode(), 1))
    with path.open("rb") as file:
        kept = excerpt.read(file, excerpt.tail_bytes(64))
    numbered = dict(kept.lines)
    assert numbered[60_003] == "ValueError: early"
    assert numbered[120_004] == "last words"
    assert kept.bytes_read > 5_000_000
    assert sum(len(text) for text in numbered.values()) < 500_000


def test_the_last_attempt_of_torchrun_is_judged_and_the_one_before_is_told(tmp_path):
    for attempt, error in ((0, "ValueError: first try"), (1, "KeyError: 'second'")):
        for local in (0, 1):
            place = tmp_path / "logs" / "none_x7" / f"attempt_{attempt}" / str(local)
            place.mkdir(parents=True)
            text = traceback(local, error if local else LOST)
            (place / "stderr.log").write_text(text)
    job = read_job([tmp_path], "job")
    assert job.attempts == 2
    assert judge(job).suspects[0].figures["what"] == "KeyError: 'second'"
    found = dead.examine([tmp_path], "job").findings
    assert [one.title for one in found] == [
        "Rank 1 failed first: KeyError: 'second'",
        "Rank 1 failed first: ValueError: first try",
    ]
    assert (found[1].where, found[1].severity) == ("attempt 1 of 2", "info")


def test_the_line_that_raised_an_error_is_its_fix_unless_a_rule_knows_better(tmp_path):
    """How to get to see an error is no advice about one that is shown."""
    for rank in range(4):
        error = "KeyError: 'text'" if rank == 2 else LOST
        (tmp_path / f"rank_{rank}.log").write_text(traceback(rank, error))
    (first, *_) = dead.examine([tmp_path], "job").findings
    assert first.title == "Rank 2 failed first: KeyError: 'text'"
    later = [fix.title for fix in first.fixes if not fix.now]
    assert later == [f"Look at {first.where}, which raised it"]
    known = (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one. This error indicates that your module has parameters that were not used in "
        "producing loss."
    )
    for rank in range(4):
        (tmp_path / f"rank_{rank}.log").write_text(traceback(rank, known))
    (first, *_) = dead.examine([tmp_path], "job").findings
    assert first.title.startswith("Every rank failed: RuntimeError")
    assert first.fixes[1].title == "Let DDP find the unused parameters in each step"
    assert "no part in the loss" in first.evidence[-1].text


def test_what_a_rank_says_of_its_own_collective_counts_before_what_another_read_of_it(tmp_path):
    """torch prints that of the other rank as ``SequenceNumber=0OpType=GATHER``, which it is not."""
    for rank, (own, other) in enumerate((("ALLREDUCE", 2), ("ALLREDUCE", 2), ("BROADCAST", 0))):
        mine = f"SequenceNumber=51, OpType={own}, TensorShape=[], TensorDtypes=Float"
        error = (
            "RuntimeError: Detected mismatch between collectives on ranks. "
            f"Rank {rank} is running collective: CollectiveFingerPrint({mine}), but Rank {other} "
            "is running collective: CollectiveFingerPrint(SequenceNumber=0OpType=GATHER)."
        )
        (tmp_path / f"rank_{rank}.log").write_text(traceback(rank, error))
    (first, *_) = dead.examine([tmp_path], "job").findings
    assert first.cause == "dead.collective-order"
    assert first.title.startswith("Rank 2 called another collective")
    assert first.title.endswith(": BROADCAST, not ALLREDUCE")


def test_a_folder_of_scripts_is_no_dead_job_and_one_of_logs_is(tmp_path):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "notes.log").write_text("loss 0.5\n")
    assert not dead.is_of_a_job(tmp_path)
    (tmp_path / "train.py").unlink()
    assert dead.is_of_a_job(tmp_path)


def test_files_that_are_named_together_are_one_job_if_they_are_of_ranks(folder):
    path = folder(monday__log=steps(0), friday__log=steps(0), rank_0__log="", rank_1__log="")
    for name in ("rank_0.log", "rank_1.log"):
        (path / name).write_text(steps(0))
    assert dead.are_of_one_job([path / "rank_0.log", path / "rank_1.log"])
    assert not dead.are_of_one_job([path / "monday.log", path / "friday.log"])


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [50, 80, 120, 200])
def test_the_table_marks_the_culprits_row_and_keeps_its_width(folder, width):
    stack = (
        'Thread 0x7f (most recent call first):\n  File "/home/me/eval.py", line 88 in evaluate\n'
    )
    path = folder(rank_2__log=steps(2) + stack, **waiting((0, 1, 3)))
    found = report.finish(dead.examine([path], "job"), table.load())
    lines = [plain(line) for line in report.lines(found, 2, width)]
    rows = [line for line in lines if line.startswith("▶ ")]
    assert len(rows) == 1
    assert rows[0].startswith("▶ rank 2 ")
    begin = next(n for n, line in enumerate(lines) if line.startswith("Ranks"))
    assert max(map(len, lines[begin : begin + 6])) <= width
    assert any("ranks 0, 1, 3" in line for line in lines)


def test_the_json_has_the_suspects_and_the_ranks(folder):
    path = folder(
        rank_0__log=steps(0) + traceback(0, LOST), rank_1__log=traceback(1, "ValueError: x")
    )
    found = report.finish(dead.examine([path], "job"), table.load())
    job = json.loads(json.dumps(report.document(found, 2)))["jobs"][0]
    assert job["suspects"][0]["cause"] == "exception"
    assert [row["end"] for row in job["ranks"]] == ["failed", "waited"]
    assert job["world"] == 2


def test_a_bundle_names_no_host_folder_or_file_of_the_job(tmp_path):
    for number, node in enumerate(("trinity-07", "trinity-08")):
        place = tmp_path / "secret-run" / node
        place.mkdir(parents=True)
        text = f"rank {number} of 2 is ready on {node}\n" + traceback(number, LOST)
        text = text if number else steps(0) + f"ready on {node}\n" + traceback(0, "ValueError: bad")
        (place / f"rank_{number}.log").write_text(text)
    found = report.finish(dead.examine([tmp_path / "secret-run"], "secret-run"), table.load())
    document = report.document(found, 2)
    assert "trinity-07" in json.dumps(document)
    bundle.write(str(tmp_path / "b.zip"), document)
    with zipfile.ZipFile(tmp_path / "b.zip") as archive:
        text = archive.read("report.json").decode()
    assert "ValueError" in text
    for name in ("trinity", "secret-run", "train.py", "rank_0"):
        assert name not in text


def test_what_is_missing_is_said_with_what_to_set(folder):
    logs = {f"rank_{n}__log": steps(n) + traceback(n, LATE, 40) for n in range(4)}
    found = dead.examine([folder(**logs)], "job")
    (one,) = found.findings
    assert (one.cause, one.severity) == ("dead.unexplained-hang", "problem")
    assert "ranks 0-3 waited for others, and nothing here says for whom" in one.title
    assert [line.text for line in one.evidence][3].startswith("rank 3: ")
    assert "gpuscope run --on-call train.py" in [fix.command for fix in one.fixes]
    assert "TORCH_FR_BUFFER_SIZE" in " ".join(one.missing for one in found.abstained)


@pytest.mark.parametrize(
    ("error", "evidence", "first_fix"),
    [
        (
            say.oom(
                "2.5",
                asked=2 * say.GIB,
                total=140 * say.GIB,
                held=134 * say.GIB,
                free=255 * say.MIB,
                spare=4 * say.GIB,
            ),
            "The allocator's free memory is fragmented (likely)",
            "expandable_segments:True",
        ),
        (
            "FloatingPointError: loss is nan at step 13, stopping",
            "A check of the training found a loss that is not finite (likely)",
            "set_detect_anomaly",
        ),
    ],
)
def test_one_exception_is_one_finding_with_all_that_is_known_of_it(
    folder, error, evidence, first_fix
):
    path = folder(
        rank0__log=steps(0) + traceback(0, LOST, function="main", inner=REDUCE),
        rank1__log=steps(1) + traceback(1, error),
    )
    found = report.finish(dead.examine([path], "job"), table.load()).findings
    codes = [(fix.code, fix.environment) for one in found for fix in one.fixes if not fix.now]
    assert len(codes) == len(set(codes)), "no fix is told twice"
    assert evidence in [one.text for one in found[0].evidence]
    assert not [one for one in found[1:] if one.evidence and error[:40] in one.evidence[0].text]
    later = [fix for fix in found[0].fixes if not fix.now]
    assert first_fix in later[0].code + later[0].environment


def test_a_symptom_without_a_fix_takes_the_cause_that_its_message_names_with_its_fixes():
    """An assert on the device says nothing of the hardware, whose pitfall has other fixes."""
    jobs = Path(__file__).parents[1] / "data" / "dead_jobs"
    found = dead.examine([jobs / "nccl" / "nccl-device-assert"], "job")
    (one,) = found.findings
    assert one.severity == "problem"
    assert (one.cause, one.pitfall) == ("dead.device-error", "bad-index-or-label")
    assert "An index or label is out of range (likely)" in [said.text for said in one.evidence]
    read, block, *_ = one.fixes
    assert read.now
    assert block.environment == "export CUDA_LAUNCH_BLOCKING=1"


def test_an_exception_that_no_rule_knows_can_be_looked_at_in_the_debugger(folder):
    inner = [("/home/me/data.py", 7, "__getitem__")]
    failed = traceback(1, "KeyError: 'z'", 30, "<module>", inner)
    told = dead.examine([folder(rank_0__log=steps(0), rank_1__log=steps(1) + failed)], "job")
    read, debug = told.findings[0].fixes
    assert read.now
    assert debug.title.startswith("Mend data.py:7. ")
    assert debug.command == "torchrun --standalone -m pdb -c continue train.py"


def test_what_a_row_of_the_table_has_no_room_for_ends_with_an_ellipsis(folder):
    error = "ValueError: the shapes of these two batches differ in their last dimension by one"
    path = folder(rank_0__log=steps(0) + traceback(0, LOST), rank_1__log=traceback(1, error))
    found = report.finish(dead.examine([path], "job"), table.load())
    lines = [plain(line) for line in report.lines(found, 2, 80)]
    (row,) = (line for line in lines if line.startswith("▶ "))
    assert len(row) == 80
    assert "× ValueError: the shapes" in row
    assert row.endswith("…")
