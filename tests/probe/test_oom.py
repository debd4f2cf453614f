"""The OOM flight recorder writes its records.

It does so with a fake CUDA allocator in children of their own, and on a real device.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import subprocess
from pathlib import Path

import pytest

from gpuscope.probe import oom
from gpuscope.probe.collectives import count, describe
from gpuscope.wire import frames
from tests.fakes.forking import completed
from tests.fakes.probe_client import TRAINING, Reader, environment, sockets, trainer, wait_for
from tests.fakes.program import python

torch = pytest.importorskip("torch")

FAKE = (
    TRAINING
    + """
import os, threading, types
observers, history = [], []
BLOCK = dict(size=1 << 20, requested_size=1 << 20, address=4096, state="active_allocated", frames=[])
BLOCKS = 4
def segment(number):
    return dict(device=0, address=number << 32, total_size=20 << 20, allocated_size=20 << 20, active_size=20 << 20,
        requested_size=20 << 20, stream=0, segment_type="small", segment_pool_id=(0, 0), is_expandable=False, frames=[],
        blocks=[dict(BLOCK, address=(number << 32) + (i << 20)) for i in range(20)])
def stats(device):
    count = {"all": {"current": BLOCKS, "peak": BLOCKS}}
    return {"active": count, "inactive_split": count, "allocated_bytes": {"all": {"current": 7 << 30}}, "num_ooms": 1}
def snapshot(argument=None):
    traces = [[]] if argument == (0, 0, False) else [[dict(action="alloc", addr=i, size=512, stream=0, frames=[])
        for i in range(3)]]
    return dict(segments=[segment(i) for i in range(BLOCKS // 20 + 1)], device_traces=traces,
        allocator_settings={"PYTORCH_ALLOC_CONF": ""})
torch._C._cuda_memoryStats = stats
torch._C._cuda_memorySnapshot = snapshot
torch._C._cuda_attach_out_of_memory_observer = observers.append
torch.cuda.is_initialized = lambda: True
torch.cuda.is_available = lambda: False
torch.cuda.device_count = torch._C._cuda_getDeviceCount = lambda: 1
torch._C._cuda_hasPrimaryContext = lambda ordinal: True
def allocate(size):
    for observer in observers: observer(0, size, 140 << 30, 3 << 30)
    raise torch.OutOfMemoryError("CUDA out of memory.")
class Parameter:
    device = types.SimpleNamespace(index=0)
class Optimizer:
    param_groups = [{"params": [Parameter]}]
"""  # noqa: E501
)
START = """
import gpuscope
gpuscope.watch()
for _ in range(2): step()
recorder = sys._gpuscope_probe.safety.oom
"""
CAUGHT = """
def forward():
    allocate(5 << 30)
def caught():
    try: forward()
    except torch.OutOfMemoryError: pass
"""


@pytest.fixture
def more(tmp_path):
    return {
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "GPUSCOPE_BLACKBOX_DIR": str(tmp_path / "boxes"),
    }


def records(more: dict[str, str]) -> list[Path]:
    return sorted(Path(more["XDG_STATE_HOME"]).glob("gpuscope/records/oom-*"))


class Restricted(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> None:
        raise AssertionError(f"{module}.{name}")


def opened(path: Path) -> dict:
    data = gzip.decompress(path.read_bytes())
    assert data[:2] == b"\x80\x02"
    return Restricted(io.BytesIO(data)).load()


def run(code: str, more: dict[str, str], **variables: str) -> subprocess.CompletedProcess[str]:
    return python("-c", code, env=environment(**more, **variables))


ENDINGS = {
    "uncaught": ("", "forward()"),
    "exit": ("", "caught()\nsys.exit(7)"),
    "killed": ("", "caught()\nos.kill(os.getpid(), 9)"),
    "minute": (
        "import gpuscope.probe.oom as module; module.CONFIRM_SECONDS = 0.2",
        "caught()\nwhile recorder._open: time.sleep(0.01)",
    ),
    "loop": (
        "BLOCKS = 2000",
        "for _ in range(200): caught()\nprint(recorder.count, len(recorder._open))",
    ),
    "many": ("BLOCKS = 18000", "forward()"),
    "too many": ("BLOCKS = 90000", "forward()"),
    "unwritable": (
        "os.makedirs(os.environ['XDG_STATE_HOME']); open(os.environ['XDG_STATE_HOME'] + "
        "'/gpuscope', 'w').close()",
        "told = []; recorder._announce = lambda *event: told.append(event)\n"
        "caught()\nwhile not told: time.sleep(0.01)\nprint(told[0][1])",
    ),
    "detached": (
        "",
        "import gpuscope.probe; gpuscope.probe.detach()\ncaught()\nprint(recorder.count)",
    ),
    "raising": (
        "",
        """
def broken(*_): raise ValueError("ours")
recorder._taken = broken
caught()
def interrupted(*_): raise KeyboardInterrupt
recorder._taken = interrupted
try: forward()
except KeyboardInterrupt: print("interrupted")
""",
    ),
}
"""What is done in a process before the probe starts, and after."""
FORKS = """
import json, warnings
warnings.simplefilter("ignore")
place, endings = sys.argv[1], json.loads(sys.argv[2])
pids = {}
step()  # what torch imports with the first one is then there in all
for name, (before, after) in endings.items():
    pid = os.fork()
    if pid == 0:
        os.makedirs(os.path.join(place, name))
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(os.path.join(place, name, kind), os.O_WRONLY | os.O_CREAT, 0o600), number)
        os.environ["XDG_STATE_HOME"] = os.path.join(place, name, "state")
        os.environ["GPUSCOPE_BLACKBOX_DIR"] = os.path.join(place, name, "boxes")
        exec(before); exec(START); exec(after)
        sys.exit()
    pids[name] = pid
for name, pid in pids.items():
    print(name, os.waitpid(pid, 0)[1], sep="=", flush=True)
"""  # noqa: E501


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """By name of :data:`ENDINGS`: (status, stdout, stderr, variables that lead to its records)."""
    place = tmp_path_factory.mktemp("oom")
    argv = ["-c", str(place), json.dumps(ENDINGS)]
    code = f"import sys; sys.argv = {argv!r}\n{FAKE}{CAUGHT}START = {START!r}\n{FORKS}"
    done = completed(code, environment())
    assert done.returncode == 0, done.stderr
    out = {}
    for name, _, status in (line.partition("=") for line in done.stdout.splitlines()):
        home = place / name
        more = {"XDG_STATE_HOME": str(home / "state")}
        code = os.waitstatus_to_exitcode(int(status))
        out[name] = (code, (home / "out").read_text(), (home / "err").read_text(), more)
    return out


@pytest.mark.slow
def test_one_that_ends_the_program_is_confirmed_with_the_failing_line(ended):
    code, _, err, more = ended["uncaught"]
    assert code == 1
    assert err.count("OutOfMemoryError") == 1
    (path,) = records(more)
    assert ".confirmed." in path.name
    assert path.stat().st_mode & 0o777 == 0o600
    found = opened(path)
    about = found["gpuscope"]
    assert (about["requested_bytes"], about["total_bytes"], about["free_bytes"]) == (
        5 << 30,
        140 << 30,
        3 << 30,
    )
    assert [row[2] for row in about["stack"]][:2] == ["allocate", "forward"]
    assert about["statistics"]["allocated_bytes.all.current"] == 7 << 30
    assert (about["step"], about["device"], about["history"]) == (2, 0, 0)
    assert about["left_out"] == {"segments": 0, "blocks": 0, "bytes": 0, "entries": 0}
    assert len(found["segments"]) == 1
    assert found["device_traces"] == [[]]
    from torch.cuda import _memory_viz

    assert "20.0MiB" in _memory_viz.segsum(found)


def test_a_caught_one_is_withdrawn_by_the_next_step_and_told(more):
    code = f"""{FAKE}{START}{CAUGHT}
sys.stdin.readline()
caught()
recorder.stepped(Optimizer)
sys.stdin.readline()
"""
    with trainer(code, fork=True, **more) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        entity = reader.until(lambda: reader.alloc(0))
        process.stdin.write("\n")
        process.stdin.flush()

        def told() -> list[frames.Event]:
            return [f for f in reader.frames if isinstance(f, frames.Event) and f.e == "oom"]

        reader.until(lambda: len(told()) == 2)
        assert {event.id for event in told()} == {entity}
        assert told()[-1].data["state"] == "withdrawn"
        assert told()[-1].data["record"] == ""
        assert told()[0].data["requested_bytes"] == 5 << 30
        assert any("5.00 GiB requested" in event.text for event in told())
        assert records(more) == []
        reader.close()


@pytest.mark.slow
def test_an_end_of_any_kind_within_a_minute_confirms_and_keeps_the_black_box(ended):
    assert ended["exit"][0] == 7
    assert [".confirmed." in path.name for path in records(ended["exit"][3])] == [True]
    assert len(list(Path(ended["exit"][3]["XDG_STATE_HOME"]).glob("gpuscope/records/box-*"))) == 1


@pytest.mark.slow
def test_a_killed_one_stays_seen(ended):
    assert ended["killed"][0] == -9
    assert [".seen." in path.name for path in records(ended["killed"][3])] == [True]


@pytest.mark.slow
def test_after_a_minute_without_either_it_is_unconfirmed(ended):
    assert ended["minute"][0] == 0
    assert [".unconfirmed." in path.name for path in records(ended["minute"][3])] == [True]


@pytest.mark.slow
def test_a_loop_that_catches_many_pays_little_and_keeps_the_first_and_the_latest(ended):
    _, out, err, more = ended["loop"]
    assert out == "200 1\n", err
    found = [opened(path)["gpuscope"] for path in records(more)]
    counts = sorted(about["count"] for about in found)
    assert (counts[0], counts[-1]) == (1, 200)
    assert len(counts) <= 5, (
        "one more each time the machine takes seconds for the loop, not one an OOM"
    )
    assert sum(len(opened(path)["segments"]) for path in records(more)) >= 101
    assert all(about["stack"] and about["statistics"] for about in found)


@pytest.mark.slow
def test_many_blocks_are_cut_to_size_and_too_many_not_listed(ended):
    (path,) = records(ended["many"][3])
    assert path.stat().st_size <= oom.MAX_FILE_BYTES
    found = opened(path)
    left = found["gpuscope"]["left_out"]
    assert left["blocks"] > 0
    assert left["blocks"] + sum(len(segment["blocks"]) for segment in found["segments"]) == 18020
    assert left["bytes"] == left["segments"] * (20 << 20)
    (path,) = records(ended["too many"][3])
    assert "180000 blocks" in opened(path)["gpuscope"]["segments_why"]


@pytest.mark.slow
def test_where_nothing_can_be_written_it_is_told_why(ended):
    _, out, err, _ = ended["unwritable"]
    assert "Not recorded: " in out, err
    assert "directory" in out or "exists" in out


@pytest.mark.slow
def test_after_detach_the_observer_is_empty(ended):
    assert ended["detached"][:3] == (0, "0\n", "")
    assert records(ended["detached"][3]) == []


@pytest.mark.slow
def test_what_a_users_signal_handler_raises_gets_through_and_what_we_raise_does_not(ended):
    assert ended["raising"][1] == "interrupted\n"


def test_without_process_groups_collectives_are_unknown_and_nothing_is_imported():
    code = (
        "import sys, gpuscope.probe.collectives as c; print(c.count().code, c.describe(), "
        "'torch' in sys.modules)"
    )
    done = python("-c", code, env=environment())
    assert done.stdout == "not_initialised [] False\n"
    assert isinstance(count(), frames.Unknown)
    assert describe() == []


def test_history_is_asked_for_by_number_and_bounded():
    from gpuscope.probe.history_from_start import wanted_entries

    values = ("20000", "", "no", "-5", "99999999", "1" * 40)
    assert [wanted_entries({"GPUSCOPE_HISTORY": text}) for text in values] == [
        20000,
        0,
        0,
        0,
        oom.MAX_ENTRIES,
        0,
    ]
    assert wanted_entries({}) == 0


HISTORY = """
calls = []
torch._C._cuda_isHistoryEnabled = lambda: bool(calls) and calls[-1] is not None
def record(enabled="all", **options):
    calls.append(options.get("max_entries") if enabled else None)
torch.cuda.memory._record_memory_history = record
"""


def test_history_is_on_at_once_and_its_price_is_told(more):
    code = (
        f"{FAKE}{HISTORY}{START}assert calls == [20000]\nprint('on', flush=True)\ntrain(60, 0.01)"
    )
    with trainer(code, fork=True, GPUSCOPE_HISTORY="20000", **more) as process:
        assert process.stdout.readline() == "on\n", process.stderr.read()
        reader = Reader(sockets(process.pid)[0])

        def note() -> frames.Event | None:
            return next(
                (f for f in reader.frames if isinstance(f, frames.Event) and f.e == "note"), None
            )

        reader.until(note, 60)
        assert note().data["entries"] == 20000
        assert (
            note().data["cost_low_percent"]
            <= note().data["cost_percent"]
            <= note().data["cost_high_percent"]
        )
        assert "20000 entries costs" in note().text
        reader.close()


# ── on a real device ──────────────────────────────────────────────────────────────────────────────

gpu = pytest.mark.gpu
REAL = """
import sys, time, torch, gpuscope
gpuscope.watch()
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
def step():
    optimizer.zero_grad(); model(torch.randn(8, 256, device="cuda")).sum().backward(); optimizer.step()
for _ in range(5): step()
keep = [torch.empty(n << 10, device="cuda") for n in range(1, 600)]
def forward():
    return torch.empty(1 << 50, dtype=torch.uint8, device="cuda")  # the failing line
recorder = sys._gpuscope_probe.safety.oom
"""  # noqa: E501


@gpu
def test_a_real_oom_is_recorded_in_time_and_confirmed_by_the_end(more):
    code = (
        f"{REAL}import atexit\natexit.register(lambda: print(recorder.seconds, "
        "recorder.count))\nforward()"
    )
    done = run(code, more)
    assert done.returncode == 1
    assert "out of memory" in done.stderr
    seconds, number = done.stdout.split()
    assert int(number) == 1
    assert float(seconds) <= 0.2
    (path,) = records(more)
    assert ".confirmed." in path.name
    assert path.stat().st_size <= 2 << 20
    found = opened(path)
    about = found["gpuscope"]
    assert about["requested_bytes"] >= 1 << 50
    assert about["total_bytes"] > about["free_bytes"] > 0
    line = (
        code.splitlines().index(
            next(text for text in code.splitlines() if "the failing line" in text)
        )
        + 1
    )
    assert about["stack"][0][1:] == [line, "forward"]
    assert about["step"] == 5
    assert about["statistics"]["num_ooms"] >= 1
    assert sum(len(segment["blocks"]) for segment in found["segments"]) > 100
    assert not any(found["device_traces"])
    print(json.dumps({"seconds": float(seconds), "bytes": path.stat().st_size}))


@gpu
def test_a_real_one_that_is_caught_is_withdrawn_by_the_next_step(more):
    code = (
        f"{REAL}\ntry: forward()\nexcept torch.cuda.OutOfMemoryError: pass\n"
        "print(recorder.waiting)\nstep()\n"
    )
    done = run(code + "print(recorder.waiting)", more)
    assert done.stdout == "True\nFalse\n", done.stderr
    assert records(more) == []


@gpu
def test_with_history_the_last_allocations_are_in_the_record(more):
    code = REAL + "for _ in range(400):\n    for _ in range(50): torch.empty(1024, device='cuda')\n"
    code += "import atexit\natexit.register(lambda: print(recorder.seconds))\nforward()"
    done = run(code, more, GPUSCOPE_HISTORY="20000", GPUSCOPE_DEBUG="1")
    assert len(records(more)) == 1, done.stdout + done.stderr
    (path,) = records(more)
    assert float(done.stdout) <= 0.5
    assert path.stat().st_size <= 2 << 20
    found = opened(path)
    assert found["gpuscope"]["history"] == 20000
    entries = max(map(len, found["device_traces"]))  # each device has a history of its own
    assert 1000 < entries <= 20000
    assert any(entry.get("frames") for trace in found["device_traces"] for entry in trace)
    print(
        json.dumps(
            {"seconds": float(done.stdout), "bytes": path.stat().st_size, "entries": entries}
        )
    )
