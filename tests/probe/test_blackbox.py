"""Black boxes of real processes that end in every way, read back and replayed."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuscope.probe import blackbox, records
from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.store.blackbox import PROC_ID, BoxReader, is_box
from gpuscope.store.replay import ReplaySource
from gpuscope.store.time_minutes import of_event
from gpuscope.wire import boxes, codec, frames
from tests.fakes.probe_client import TRAINING, environment, lines_of_ours, trainer, wait_for

HELLO = frames.Hello(
    role="probe", cols={"t": ["step"], "a": ["allocated_bytes"]}, pid=7, nonce="n", t=1000.0, m=5
)
WAIT = """
import glob, os, signal, sys, time
from gpuscope.wire import boxes
def kept():
    return glob.glob(os.environ["GPUSCOPE_BLACKBOX_DIR"] + "/*.box")
def written():
    return any(any(open(one, "rb").read()[boxes.SLOTS_OFFSET :][: boxes.SLOT_BYTES]) for one in kept())
end = time.monotonic() + 60
while not written() and time.monotonic() < end: time.sleep(0.01)
"""  # noqa: E501
WATCHED = "import gpuscope; gpuscope.watch()\n" + WAIT


@pytest.fixture
def place(tmp_path):
    """(directory of boxes, directory of records, variables for a child)."""
    directory = tmp_path / "boxes"
    more = {"GPUSCOPE_BLACKBOX_DIR": str(directory), "XDG_STATE_HOME": str(tmp_path / "state")}
    return directory, tmp_path / "state/gpuscope/records", more


def run(code: str, more: dict[str, str], **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def run_fork(code: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """The same for code that imports torch."""
    with trainer(code, fork=True, **more) as process:
        out, errors = process.communicate(timeout=120)
    return subprocess.CompletedProcess([], process.returncode, out, errors)


def decoded(reader: BoxReader) -> list[frames.Frame]:
    return [codec.decode(line.line) for line in reader.lines()]


def last_words(path: Path) -> str:
    return next(
        f.text
        for f in reversed(decoded(BoxReader(path)))
        if isinstance(f, frames.Event) and f.e == "gone"
    )


# ── how it ends ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("end", "code"),
    [("", 0), ("sys.exit(0)", 0), ("sys.exit(3)", 3), ("gpuscope.probe.detach()", 0)],
)
def test_a_trainer_that_ends_by_itself_leaves_nothing(place, end, code):
    directory, kept, more = place
    done = run(f"{WATCHED}print(len(kept()))\nimport gpuscope.probe\n{end}", more)
    assert (done.returncode, done.stdout, done.stderr) == (code, "1\n", "")
    assert list(directory.iterdir()) == []
    assert not kept.exists()


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("import ctypes; ctypes.string_at(8)", -signal.SIGSEGV),
    ],
)
def test_what_kills_it_leaves_a_box_without_a_word(place, end, code):
    directory, _, more = place
    done = run(WATCHED + end, more)
    assert done.returncode == code
    (path,) = directory.iterdir()
    assert is_box(path)
    reader = BoxReader(path)
    assert reader.ended is None
    assert "without a message" in last_words(path)
    assert any(isinstance(frame, frames.Sample) for frame in decoded(reader))


def test_who_leaves_by_os_exit_has_ended_well_with_code_0_and_failed_with_another(place):
    directory, _, more = place
    assert run(WATCHED + "os._exit(0)", more).returncode == 0
    assert list(directory.iterdir()) == []
    child = "pid = os.fork()\nif not pid: os._exit(5)\nassert os.waitpid(pid, 0)[1] == 5 << 8\n"
    assert run(WATCHED + child + "os._exit(3)", more).returncode == 3
    (path,) = directory.iterdir()
    assert last_words(path) == "exited: exit code 3", "a child that it forked is not its end"


def test_who_takes_the_probe_out_has_the_os_exit_of_before(place):
    code = (
        "import os, gpuscope\nbefore = os._exit\ngpuscope.watch()\nassert os._exit is not before\n"
    )
    done = run(
        code + "from gpuscope.probe import core\ncore.detach()\nassert os._exit is before\n",
        place[2],
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("status", "said"),
    [(9, "killed by signal 9"), (15, "killed by signal 15"), (3 << 8, "exited: exit code 3")],
)
def test_who_sees_a_trainer_end_tells_its_box_how(place, monkeypatch, status, said):
    directory, _, more = place
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(directory))
    run(WATCHED + "os.kill(os.getpid(), 9)", more)
    (path,) = directory.iterdir()
    pid, start = map(int, path.name.partition(".")[0].split("-"))
    before = path.stat().st_mtime, len(decoded(BoxReader(path)))
    blackbox.note_exit(pid, start, status)
    assert last_words(path) == said
    assert (path.stat().st_mtime, len(decoded(BoxReader(path)))) == before
    blackbox.note_exit(pid, start, 7)
    assert last_words(path) == said, "the first who knows it has said it"


def test_the_box_of_one_that_was_seen_to_end_well_is_removed(place, monkeypatch):
    directory, _, more = place
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(directory))
    run(WATCHED + "os.kill(os.getpid(), 9)", more)
    (path,) = directory.iterdir()
    pid, start = map(int, path.name.partition(".")[0].split("-"))
    blackbox.note_exit(pid, start + 1, 0)
    assert path.exists(), "another process with this pid"
    blackbox.note_exit(pid, start, 0)
    assert not path.exists()


def test_an_exception_is_told_with_its_line_and_copied_and_looks_as_without_us(place):
    directory, kept, more = place
    code = WATCHED + "def train():\n    raise ValueError('loss is \\x1b[1mNaN')\ntrain()"
    done = run(code, more)
    alone = run(
        code.replace("import gpuscope; gpuscope.watch()", "end = 0").replace(
            "not written()", "False"
        ),
        more,
    )
    assert (done.returncode, done.stderr) == (alone.returncode, alone.stderr) == (1, alone.stderr)
    (path,) = directory.iterdir()
    (copy,) = kept.iterdir()
    assert copy.name.startswith("box-")
    assert copy.stat().st_size < 100_000
    for found in (path, copy):
        reader = BoxReader(found)
        assert reader.ended["type"] == "ValueError"
        assert [row[2] for row in reader.ended["stack"]] == ["train", "<module>"]
        assert "ValueError: loss is" in last_words(found)
        assert " train)" in last_words(found)


def test_a_hook_of_the_users_own_stays_theirs(place):
    directory, _, more = place
    hook = "sys.excepthook = lambda *error: print('mine', error[0].__name__)\n"
    for code in (hook + WATCHED, WATCHED + hook):
        done = run(f"import sys\n{code}assert sys.excepthook.__name__ == '<lambda>'\n1 / 0", more)
        assert (done.returncode, done.stdout) == (1, "mine ZeroDivisionError\n")
        (path,) = directory.iterdir()
        assert "ZeroDivisionError" in last_words(path)
        path.unlink()


def test_an_exception_that_a_thread_outlives_is_marked_while_it_lives(place):
    directory, _, more = place
    code = (
        f"{WATCHED}import threading\nthreading.Thread(target=lambda: time.sleep(60)).start()\n1 / 0"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment(**more), stderr=subprocess.DEVNULL
    )
    try:
        path = wait_for(lambda: next(iter(directory.glob("*.box")), None))
        wait_for(lambda: (BoxReader(path).ended or {}).get("type") == "ZeroDivisionError")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("notebook", [True, False])
def test_the_error_of_a_cell_is_no_end_of_its_notebook(place, notebook):
    directory, _, more = place
    kernel = "import types\nsys.modules['ipykernel'] = types.ModuleType('ipykernel')\n"
    code = (
        f"{WATCHED}{kernel if notebook else ''}try:\n    1 / 0\n"
        "except ZeroDivisionError as error:\n    sys.last_value = error\ntime.sleep(2.5)\n"
    )
    assert run(code, more).returncode == 0
    ends = [(BoxReader(path).ended or {}).get("type") for path in directory.glob("*.box")]
    assert ends == ([] if notebook else ["ZeroDivisionError"])


def test_the_exception_of_a_thread_is_shown_once_and_is_not_the_end(place):
    directory, _, more = place
    code = (
        f"{WATCHED}import threading\nt = threading.Thread(target=lambda: 1 / 0); t.start(); "
        "t.join()"
    )
    done = run(code, more)
    assert done.stderr.count("ZeroDivisionError") == 1
    assert lines_of_ours(done.stderr) == []
    assert (done.returncode, list(directory.iterdir())) == (0, [])


def test_a_process_of_multiprocessing_tells_its_code(place):
    directory, _, more = place
    code = f"""import multiprocessing, sys
def child(code):
    exec({WATCHED!r}, globals())
    sys.exit(code)
for code in (0, 3):
    p = multiprocessing.get_context("fork").Process(target=child, args=(code,))
    p.start(); p.join(); print(p.exitcode)
"""
    done = run(code, more)
    assert done.stdout == "0\n3\n", done.stderr
    (path,) = directory.iterdir()
    assert "exit code 3" in last_words(path)


def test_it_can_be_switched_off_and_put_elsewhere(place, tmp_path):
    directory, _, more = place
    code = (
        "import gpuscope, sys, time; gpuscope.watch(); box = sys._gpuscope_probe.safety.box\n"
        "while not (box.problem or box.path): time.sleep(0.01)\n"
        "print(box.problem)"
    )
    assert (
        run(code, {**more, "GPUSCOPE_BLACKBOX": "0"}).stdout == "disabled by GPUSCOPE_BLACKBOX=0\n"
    )
    assert not directory.exists()
    directory.mkdir(mode=0o755)
    directory.chmod(0o755)
    assert "open to others" in run(code, more).stdout
    assert list(directory.iterdir()) == []


@pytest.mark.slow
def test_a_training_with_forks_and_closed_descriptors_is_replayed(place, tmp_path):
    pytest.importorskip("torch")
    directory, _, more = place
    code = f"""{TRAINING}
import gpuscope, os, warnings
warnings.simplefilter("ignore")
gpuscope.watch()
train(1.0)
{WAIT}
os.closerange(3, 4096)
if os.fork() == 0:
    os._exit(0)
os.wait()
train(2.2)
print(sys._gpuscope_probe.steps.total, sys._gpuscope_probe.safety.box.problem, flush=True)
os.kill(os.getpid(), 9)
"""
    done = run_fork(code, more)
    total, *problem = done.stdout.split()
    assert problem == [], done.stderr
    (path,) = directory.iterdir()
    source = ReplaySource(path)
    assert source.duration_seconds > 2
    assert source.badge == "REPLAY"
    played: list[frames.Frame] = []

    async def play() -> None:
        source.set_speed(100)
        playing = asyncio.create_task(
            source.run(lambda frame, now: played.append(frame), lambda link: None)
        )
        while not source.ended:
            await asyncio.sleep(0.01)
        await source.close()
        await playing

    asyncio.run(play())
    assert played == decoded(BoxReader(path))
    rows = [row[1] for f in decoded(BoxReader(path)) if isinstance(f, frames.Sample) for row in f.t]
    # not known before the first step has ended
    steps = list(itertools.dropwhile(lambda step: step is None, rows))
    assert 0 < steps[-1] <= int(total)
    assert steps == sorted(steps)


# ── the ring and what is read from it ─────────────────────────────────────────────────────────────


@pytest.fixture
def box(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(tmp_path / "boxes"))
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    return blackbox.BlackBox(lambda hz: HELLO)


DEFINITIONS = {
    TRAINER_ID: frames.Def(
        TRAINER_ID, trainer=frames.TrainerDef(pid=7, start=3, script="train.py")
    ),
    2: frames.Def(2, alloc=frames.AllocDef(TRAINER_ID, 0, uuid="GPU-1")),
}


def fill(box: blackbox.BlackBox, count: int, wide: int = 1, first: int = 1) -> None:
    for number in range(first, first + count):
        sample = frames.Sample(
            number, number * 10**9, t=[[TRAINER_ID, number]], a=[[2, 1 << 40]] * wide
        )
        box.sample(sample, {(TRAINER_ID, "loss"): ("not_supported", "no bar")}, DEFINITIONS, {})


def steps_of(path: str | Path) -> list[int]:
    return [row[1] for f in decoded(BoxReader(path)) if isinstance(f, frames.Sample) for row in f.t]


@pytest.mark.slow
def test_the_ring_keeps_ten_minutes_of_eight_devices_and_its_size(box, monkeypatch):
    monkeypatch.setattr(blackbox, "KEY_SECONDS", 0.02)
    rows = [2, *[1 << 40] * len(frames.ALLOCATOR_COLUMNS)]
    for number in range(1, 2001):
        sample = frames.Sample(number, number * 10**9, t=[[TRAINER_ID, number]], a=[rows] * 2)
        box.sample(sample, {}, DEFINITIONS, {})
    assert box.problem == ""
    assert Path(box.path).stat().st_size == boxes.FILE_BYTES
    steps = steps_of(box.path)
    assert steps[-1] == 2000
    assert steps == list(range(steps[0], 2001))
    assert len(steps) > 600


def test_it_reads_as_a_stream_of_an_agent(box):
    fill(box, 3)
    box.event(frames.Event(2, "oom", 4 * 10**9, "full"), DEFINITIONS)
    box.ended({"how": "exception", "type": "E", "message": "m", "stack": [["a.py", 1, "f"]]})
    found = decoded(BoxReader(box.path))
    assert [type(frame).__name__ for frame in found[:2]] == ["Hello", "Key"]
    assert found[0].role == "agent"
    definitions = found[2 : 2 + found[1].n]
    assert [next(k for k in frames.DEFINITIONS if getattr(d, k)) for d in definitions] == [
        "host",
        "proc",
        "trainer",
        "gpu",
        "alloc",
    ]
    assert definitions[2].trainer.proc == PROC_ID
    assert definitions[4].alloc.gpu == definitions[3].id
    events = [frame for frame in found if isinstance(frame, frames.Event)]
    assert [event.e for event in events] == ["oom", "note", "note", "gone"]
    assert events[1].data == {"how": "exception", "type": "E", "message": "m"}
    assert (events[2].text, events[-1].id) == ("at a.py:1 f", PROC_ID)
    why = next(frame for frame in found if isinstance(frame, frames.Sample)).why
    assert [TRAINER_ID, "loss", "not_supported", "no bar"] in why


def test_torn_slots_cost_only_their_lines(box):
    fill(box, 40)
    data = bytearray(Path(box.path).read_bytes())
    for slot in (20, 21, 30):
        at = boxes.SLOTS_OFFSET + slot * boxes.SLOT_BYTES + 30
        data[at] ^= 1
    Path(box.path).write_bytes(data)
    steps = steps_of(box.path)
    assert 35 <= len(steps) < 40
    assert steps == sorted(set(steps))


def test_a_torn_header_leaves_the_other_copy(box):
    fill(box, 2)
    box.ended({"how": "exit", "code": 3})
    data = bytearray(Path(box.path).read_bytes())
    assert BoxReader(box.path).ended == {"how": "exit", "code": 3}
    newest = 0 if data[8] == 2 else boxes.HEADER_BYTES
    data[newest + 200] ^= 1
    Path(box.path).write_bytes(data)
    assert BoxReader(box.path).ended is None
    assert steps_of(box.path) == [1, 2]


@pytest.mark.parametrize("seed", range(8))
def test_hostile_boxes_are_read_without_harm(box, tmp_path, seed):
    fill(box, 30)
    rng = random.Random(seed)
    data = bytearray(Path(box.path).read_bytes()[: boxes.SLOTS_OFFSET + 80 * boxes.SLOT_BYTES])
    for _ in range(rng.choice([10, 1000, 40000])):
        data[rng.randrange(len(data))] = rng.randrange(256)
    data = data[: rng.choice([5, 40, boxes.HEADER_BYTES + 10, len(data)])]
    for name, content in (
        ("a.box", bytes(data)),
        ("b.gz", gzip.compress(bytes(data))[: rng.choice([30, 10**6])]),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        is_box(path)
        reader = BoxReader(path)
        assert reader.problem or decoded(reader)


@pytest.mark.slow
def test_a_bomb_and_what_is_no_file(tmp_path):
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(boxes.MAGIC + bytes(64 << 20)))
    assert BoxReader(bomb).problem
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "missing", "/dev/zero"):
        assert not is_box(path)
        assert BoxReader(path).problem.code == "unreadable"


def test_lies_in_a_header_do_not_raise(box, tmp_path):
    fill(box, 2)
    about = json.loads(boxes.read_header(Path(box.path).read_bytes()))
    for lie in (
        {"hello": 5},
        {"hello": '{"k":"bye"}'},
        {"nonce": "zz"},
        {"v": 99},
        {"v": "x"},
        {"ended": [1]},
        {"ended": {"how": [], "stack": [[1], 2, {}], "type": {}, "message": 7, "code": []}},
    ):
        path = tmp_path / "lie.box"
        rest = Path(box.path).read_bytes()[boxes.SLOTS_OFFSET :]
        head = boxes.header(0, json.dumps({**about, **lie}).encode())
        path.write_bytes(head.ljust(boxes.SLOTS_OFFSET, b"\0") + rest)
        reader = BoxReader(path)
        assert reader.problem or decoded(reader)
        if "v" in lie:
            assert f"has format {lie['v']}, written by gpuscope" in reader.problem.text


def test_no_room_no_box(box, monkeypatch):
    monkeypatch.setattr(records, "FREE_BYTES", 1 << 60)
    fill(box, 2)
    assert "nearly full" in box.problem
    assert box.path == ""
    assert box.due == float("inf")
    assert list(Path(os.environ["GPUSCOPE_BLACKBOX_DIR"]).iterdir()) == []


def test_a_box_that_is_removed_is_made_anew_and_a_foreign_file_is_left_alone(box):
    fill(box, 2)
    path = Path(box.path)
    path.unlink()
    fill(box, 3, first=3)
    assert steps_of(box.path)[-1] == 5
    path.unlink()
    path.write_bytes(b"the user's own")
    fill(box, 1, first=6)
    assert path.read_bytes() == b"the user's own"


def test_old_boxes_go_and_those_of_the_living_stay(box, tmp_path):
    directory = tmp_path / "boxes"
    directory.mkdir(mode=0o700)
    alive = (
        directory
        / f"{os.getpid()}-{Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]}.box"
    )
    for number in range(blackbox.MAX_BOXES + 5):
        path = directory / f"999999999-{number}.box"
        path.touch()
        os.utime(path, (time.time() - number * 3600,) * 2)
    (directory / "999999999-1000.box.new").touch()
    (directory / "notes.txt").touch()
    week = directory / "999999998-5.box"
    week.touch()
    os.utime(week, (1, 1))
    alive.touch()
    os.utime(alive, (1, 1))
    blackbox.clean(str(directory))
    left = {path.name for path in directory.iterdir()}
    assert alive.name in left
    assert "notes.txt" in left
    assert not left & {week.name, "999999999-1000.box.new"}
    assert len([name for name in left if name.startswith("999999999")]) <= blackbox.MAX_BOXES
    assert "999999999-0.box" in left


def test_records_are_private_bounded_and_the_confirmed_go_last(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(records, "MAX_FILES", 4)
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    first = Path(records.write("oom-h-1-1-1.confirmed.pickle.gz", b"x"))
    assert first.parent.stat().st_mode & 0o777 == 0o700
    assert first.stat().st_mode & 0o777 == 0o600
    for number in range(8):
        records.write(f"oom-h-1-1-{number + 2}.unconfirmed.pickle.gz", b"y")
    left = sorted(path.name for path in first.parent.iterdir())
    assert len(left) == 4
    assert first.name in left
    first.parent.chmod(0o755)
    with pytest.raises(OSError, match="open to others"):
        records.write("oom-h-1-1-99.seen.pickle.gz", b"z")


def test_ps_names_the_newest_box_of_the_dead_and_the_command(place):
    from gpuscope.cli import dead_trainers

    directory, _, more = place
    assert dead_trainers.line(directory) == ""
    run(WATCHED + "os._exit(1)", more)
    (path,) = directory.iterdir()
    (
        directory
        / f"{os.getpid()}-{Path('/proc/self/stat').read_text().rpartition(')')[2].split()[19]}.box"
    ).touch()
    (directory / "notes.txt").touch()
    assert dead_trainers.line(directory).startswith("1 job ended badly in the last day: 1 failed. ")
    assert dead_trainers.line(directory).endswith(f"gpuscope replay {path}")


def test_an_end_before_the_first_sample_stands_in_the_box_that_follows(box):
    """The trainer's thread says how it ends while the probe's is still taking the first sample."""
    box.ended({"how": "exception", "type": "ValueError", "message": "m", "stack": []})
    fill(box, 1)
    assert (BoxReader(box.path).ended or {}).get("type") == "ValueError"


TRAINED = """
import sys, time
from gpuscope.probe import core, time_ledger
time_ledger.USUAL_SECONDS = 0.005
time_ledger.COST_SHARE = 1.0
core.arm("watch")
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def step():
    optimizer.zero_grad()
    model(torch.ones(8)).sum().backward()
    optimizer.step()
""" + WAIT.replace("time.sleep(0.01)", "step()")  # the box begins with the first step
FAILS = (
    TRAINED
    + """
until = time.monotonic() + 1.0
while time.monotonic() < until: step()
raise ValueError("no more")
"""
)
KILLED = (
    TRAINED.replace(
        "time_ledger.COST_SHARE", "time_ledger.SENT_EARLY = (0.3,); time_ledger.COST_SHARE"
    )
    + """
from gpuscope.store.blackbox import BoxReader
while not any(b'"e":"time"' in line.line for one in kept() for line in BoxReader(one).lines()):
    step()
os.kill(os.getpid(), signal.SIGKILL)
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("code", [FAILS, KILLED])
def test_the_ledger_of_a_training_that_died_is_in_its_box(place, code):
    directory, _, more = place
    run_fork(code, more)
    (box,) = directory.glob("*.box")
    events = [f for f in decoded(BoxReader(box)) if isinstance(f, frames.Event) and f.e == "time"]
    assert events
    minute = of_event(events[-1].data)
    assert minute["steps"] > 0
    assert sum(seconds for _, seconds, _ in minute["rows"]) == pytest.approx(
        minute["seconds"], abs=0.01
    )
