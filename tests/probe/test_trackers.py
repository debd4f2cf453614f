"""Trainers that log to the real W&B, TensorBoard and MLflow while the probe adds its numbers."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.probe.trackers import report_of
from gpuscope.wire.frames import (
    ALLOCATOR_COLUMNS,
    NOT_INITIALISED,
    NOT_SUPPORTED,
    TRAINER_COLUMNS,
    AllocDef,
    Def,
    Sample,
    TrainerDef,
)
from tests.fakes.probe_client import PLACE_APART, TRAINING, lines_of_ours, trainer

pytest.importorskip("torch")


def needs(*modules: str) -> Any:
    missing = [module for module in modules if find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


START = """
import gpuscope
from gpuscope.probe import trackers
trackers.SECONDS = 0.05
gpuscope.watch()
tracking = sys._gpuscope_probe.trackers
if tracking: tracking.due = 0.0
reports = {"W&B": [], "TensorBoard": [], "MLflow": []}
def counted(library):
    log = library.log
    def counting(found, report):
        log(found, report)
        reports[library.name].append(report)
    library.log = counting
for library in tracking._libraries if tracking else ():
    counted(library)
def until_written(name):
    "Train until the probe has written once more."
    before, end = len(reports[name]), time.monotonic() + 60
    while len(reports[name]) == before and tracking:
        assert time.monotonic() < end, "never written"
        step()
        time.sleep(0.001)
"""
"""Start the probe, which writes often. To put between a training and a trainer's own code."""


def ended(code: str, folder: Path, track: str | None = "1", **more: str | None) -> tuple[str, str]:
    """What a trainer has written to its two outputs, which ended well and stood in ``folder``."""
    begin = TRAINING + PLACE_APART + f"import os; os.chdir({str(folder)!r})\n"
    with trainer(begin + code, fork=True, GPUSCOPE_TRACK=track, **more) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return out, errors


# ── the report ────────────────────────────────────────────────────────────────────────────────────


def sampled(reason: str = NOT_INITIALISED, **values: Any) -> Any:
    trainer_row = [TRAINER_ID, *(values.get(name) for name in TRAINER_COLUMNS)]
    sizes = {"allocated_bytes": 3 << 30, "alloc_retries": 2}
    rows = [[entity, *(sizes.get(name) for name in ALLOCATOR_COLUMNS)] for entity in (2, 3)]
    definitions = {
        TRAINER_ID: Def(TRAINER_ID, trainer=TrainerDef(pid=1, start=1)),
        2: Def(2, alloc=AllocDef(TRAINER_ID, 1)),
        3: Def(3, alloc=AllocDef(TRAINER_ID, -1)),
    }
    sample = Sample(q=1, m=1, t=[trainer_row], a=rows)
    return report_of(sample, {(TRAINER_ID, "stall_at"): (reason, "why")}, definitions)


def test_a_report_leaves_out_what_is_unknown():
    assert sampled() is None
    assert sampled(step=7) == (
        7,
        {"stalled": 0, "cuda1/allocated_gib": 3, "cuda1/alloc_retries": 2},
        None,
    )
    assert "stalled" not in sampled(NOT_SUPPORTED, step=7).values


def test_a_report_has_the_share_of_the_input_and_the_stall():
    found = sampled(
        step=7,
        step_seconds=0.4,
        step_seconds_mean=0.5,
        loader_wait_seconds=0.1,
        stall_at="a.py:1 f",
    )
    assert found.values["step_seconds"] == 0.4
    assert found.values["input_share"] == pytest.approx(0.2)
    assert found.values["stalled"] == 1


# ── TensorBoard ───────────────────────────────────────────────────────────────────────────────────

WRITERS = [
    pytest.param(
        "torch.utils.tensorboard",
        marks=[needs("tensorboard", "tensorboardX"), pytest.mark.slow],
    ),
    pytest.param("tensorboardX", marks=needs("tensorboardX")),
]


def events(folder: Path) -> list[tuple[str, int, Any]]:
    """(tag, step, value) in the order of the file, of which there is one."""
    from tensorboardX.proto.event_pb2 import Event

    (path,) = folder.iterdir()
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):  # each is its size, a checksum of that, itself and a checksum
        (size,) = struct.unpack_from("<Q", data, at)
        event = Event.FromString(data[at + 12 : at + 12 + size])
        at += 12 + size + 4
        for value in event.summary.value:
            text = value.tensor.string_val
            out.append((value.tag, event.step, text[0].decode() if text else value.simple_value))
    return out


@pytest.mark.parametrize("module", WRITERS)
def test_the_open_summary_writer_gets_the_numbers_and_keeps_its_own(module, tmp_path):
    code = f"""
from {module} import SummaryWriter
{START}
writer = SummaryWriter("run")
for i in range(20):
    writer.add_scalar("loss", i / 4, 100 + i)
    if i in (5, 9): until_written("TensorBoard")
sys._gpuscope_probe.announce("stall", "it stands at a.py:1")
until_written("TensorBoard"); until_written("TensorBoard")
writer.close()
for _ in range(50): step(); time.sleep(0.005)
print(os.listdir("."), len(os.listdir("run")))
"""
    out, errors = ended(code, tmp_path)
    assert lines_of_ours(errors) == []
    found = events(tmp_path / "run")
    assert [row for row in found if row[0] == "loss"] == [
        ("loss", 100 + i, i / 4) for i in range(20)
    ]
    ours = [row for row in found if row[0].startswith("gpuscope/step_seconds")]
    steps = [step for _, step, _ in ours]
    assert len(steps) >= 3
    assert steps == sorted(steps)
    assert all(value > 0 for _, _, value in ours)
    texts = [row[2] for row in found if row[0].startswith("gpuscope/finding")]
    assert texts == ["it stands at a.py:1"]
    assert out == "['run'] 1\n", "a second file was opened after close()"


@needs("tensorboardX")
def test_a_library_that_raises_is_told_of_once_and_left_alone(tmp_path):
    code = f"""
from tensorboardX import SummaryWriter
{START}
writer = SummaryWriter("run")
until_written("TensorBoard")
def full(*_): raise OSError(28, "No space left on device")
writer.file_writer.add_summary = full
calls, find = [], tracking._tensorboard.find
def finding(rank):
    calls.append(rank)
    return find(rank)
tracking._tensorboard.find = finding
end = time.monotonic() + 60
while len(calls) < 6 and time.monotonic() < end: step(); time.sleep(0.001)
print(len(calls) >= 6, tracking._failed == {{"TensorBoard": find(0).key}})
writer.file_writer = None  # as close() leaves it
other = SummaryWriter("other")
until_written("TensorBoard")
"""
    out, errors = ended(code, tmp_path, GPUSCOPE_DEBUG="1")
    assert out == "True True\n"
    assert lines_of_ours(errors) == [
        "gpuscope: no longer logged to TensorBoard: OSError: [Errno 28] No space left on device"
    ]


@needs("tensorboardX")
def test_a_library_that_does_not_return_holds_up_nobody(tmp_path):
    """Neither the trainer's steps, nor the probe's samples, nor the end of both."""
    code = f"""
import threading
from tensorboardX import SummaryWriter
{START}
writer = SummaryWriter("run")
inside = threading.Event()
def hang(*_):
    inside.set()
    threading.Event().wait()
writer.file_writer.add_summary = hang
while not inside.is_set(): step(); time.sleep(0.001)
sampler = sys._gpuscope_probe.sampler
until, steps = sampler._q + 5, sys._gpuscope_probe.steps.total
while sampler._q < until: step(); time.sleep(0.001)
print(sys._gpuscope_probe.steps.total > steps, tracking._reports.qsize())
"""
    out, errors = ended(code, tmp_path, GPUSCOPE_DEBUG="1")
    assert out == "True 1\n"
    assert lines_of_ours(errors) == []


@needs("tensorboardX")
def test_only_the_process_that_made_the_writer_finds_it_and_a_rank_only_its_own(tmp_path):
    code = f"""
from tensorboardX import SummaryWriter
{START}
first = SummaryWriter("shared")
tensorboard = tracking._tensorboard
print(tensorboard.find(0) is not None, tensorboard.find(3) is not None)
second = SummaryWriter("shared", filename_suffix=".2")
print(tensorboard.find(0) is not None, tensorboard.find(3) is not None)
sys.stdout.flush()
child = os.fork()
if child == 0:
    print(sys._gpuscope_probe.trackers._tensorboard.find(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
from gpuscope.probe import detach; detach()
print(type(vars(SummaryWriter)["__init__"]).__name__)
"""
    out, _ = ended(code, tmp_path)
    assert out == "True True\nTrue False\nNone\nfunction\n"


# ── W&B ───────────────────────────────────────────────────────────────────────────────────────────


def records(path: Path) -> Iterator[bytes]:
    """The records of an offline run: a log of blocks of 32 KiB, with parts of records in them."""
    data, at, parts = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def offline_run(folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any], dict[str, str]]:
    """Rows of the history, the summary as set by hand, and what is drawn over what."""
    from wandb.proto.wandb_internal_pb2 import Record

    (path,) = folder.glob("wandb/offline-run-*/*.wandb")
    rows, summary, axes = [], {}, {}
    for data in records(path):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row = {
                item.key or "/".join(item.nested_key): json.loads(item.value_json)
                for item in record.history.item
            }
            rows.append({"_step": record.history.step.num, **row})
        for item in record.summary.update:
            summary[item.key or "/".join(item.nested_key)] = json.loads(item.value_json)
        if record.metric.step_metric:
            axes[record.metric.name or record.metric.glob_name] = record.metric.step_metric
    return rows, summary, axes


OFFLINE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_ERROR_REPORTING": "false"}


@needs("wandb")
@pytest.mark.slow
@pytest.mark.parametrize("numbered", [True, False])
def test_the_users_rows_in_wandb_are_what_they_are_without_us(numbered, tmp_path):
    """The probe writes between two calls for one step, where a call that commits would do harm."""
    where = ", step=10 * i" if numbered else ""
    code = f"""
import wandb
{START}
run = wandb.init(project="p", dir=".")
for i in range(12):
    run.log({{"loss": i / 4}}{where}{"" if numbered else ", commit=False"})
    if i in (0, 5, 9): until_written("W&B")
    run.log({{"accuracy": i / 8}}{where})
    if i == 7: until_written("W&B")
sys._gpuscope_probe.announce("stall", "it stands at a.py:1")
until_written("W&B"); until_written("W&B")
run.finish()
print(wandb.run, len(reports["W&B"]) >= 5)
"""
    out, errors = ended(code, tmp_path, **OFFLINE)
    assert out == "None True\n"
    assert lines_of_ours(errors) == []
    rows, summary, axes = offline_run(tmp_path)
    own = [
        {name: value for name, value in row.items() if name in ("_step", "loss", "accuracy")}
        for row in rows
    ]
    expected = [
        {"_step": 10 * i if numbered else i, "loss": i / 4, "accuracy": i / 8} for i in range(12)
    ]
    assert [row for row in own if len(row) > 1] == expected
    ours = [row for row in rows if "gpuscope/step" in row]
    assert len(ours) >= 4
    assert all(row["gpuscope/step_seconds"] > 0 for row in ours[1:])
    steps = [row["gpuscope/step"] for row in ours]
    assert steps == sorted(steps)
    assert summary["gpuscope/finding"] == "it stands at a.py:1"
    assert axes == {"gpuscope/*": "gpuscope/step"}


@needs("wandb")
@pytest.mark.slow
def test_a_run_of_wandb_that_the_parent_opened_is_not_the_childs(tmp_path):
    code = f"""
import wandb
{START}
run = wandb.init(project="p", dir=".")
found = tracking._libraries[0].find
os.environ.pop("WANDB_RUN_ID", None)
print(found(0) is not None, found(3) is not None)
os.environ["WANDB_RUN_ID"] = run.id
print(found(0) is not None, found(3) is not None)
sys.stdout.flush()
child = os.fork()
if child == 0:
    print(sys._gpuscope_probe.trackers._libraries[0].find(0), flush=True)
    os._exit(0)
os.waitpid(child, 0)
run.finish()
wandb.init(mode="disabled")
print(found(0))
"""
    out, _ = ended(code, tmp_path, **OFFLINE)
    assert out == "True True\nTrue False\nNone\nNone\n"


# ── MLflow ────────────────────────────────────────────────────────────────────────────────────────


@needs("mlflow")
@pytest.mark.slow
@pytest.mark.parametrize("store", ["sqlite:///{}/mlflow.db", "file://{}/mlruns"])
def test_the_active_run_of_mlflow_gets_the_numbers_and_keeps_its_own(store, tmp_path):
    code = f"""
import json, mlflow
mlflow.set_tracking_uri({store.format(tmp_path)!r})
{START}
with mlflow.start_run() as run:
    for i in range(8):
        mlflow.log_metric("loss", i / 4, step=10 * i)
        if i in (2, 5): until_written("MLflow")
    sys._gpuscope_probe.announce("stall", "it stands at a.py:1")
    until_written("MLflow"); until_written("MLflow")
written = len(reports["MLflow"])
for _ in range(50): step(); time.sleep(0.005)
client = mlflow.MlflowClient()
key = run.info.run_id
def history(name): return [(m.step, m.value) for m in client.get_metric_history(key, name)]
about = client.get_run(key)
print(len(reports["MLflow"]) - written, mlflow.active_run())
print(json.dumps([history("loss"), history("gpuscope/step_seconds")]))
print(about.info.status, about.data.tags["gpuscope.finding"])
print(len(client.search_runs(["0"])))
"""
    out, errors = ended(
        code, tmp_path, MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true"
    )
    after, found, about, runs = out.splitlines()
    assert (after, runs) == ("0 None", "1")
    assert about == "FINISHED it stands at a.py:1"
    loss, ours = json.loads(found)
    assert loss == [[10 * i, i / 4] for i in range(8)]
    assert len(ours) >= 3
    assert [step for step, _ in ours] == sorted(step for step, _ in ours)
    assert lines_of_ours(errors) == []


# ── nothing open, nothing asked ───────────────────────────────────────────────────────────────────

LIBRARIES = [name for name in ("tensorboard", "tensorboardX", "wandb", "mlflow") if find_spec(name)]


@pytest.mark.parametrize("imported", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_trainer_without_an_open_run_is_untouched(imported, tmp_path):
    imports = "".join(f"import {name}\n" for name in LIBRARIES if imported)
    if imported and "tensorboard" in LIBRARIES:
        imports += "import torch.utils.tensorboard\n"
    code = f"""
{imports}
{START}
step()
before = set(sys.modules)
calls = []
write = tracking._write
tracking._write = lambda library, report: (write(library, report), calls.append(library.name))
end = time.monotonic() + 60
while len(calls) < 9 and time.monotonic() < end: step(); time.sleep(0.001)
names = ("wandb", "mlflow", "tensorboard", "tensorboardX")
print(len(calls) >= 9, [n for n in set(sys.modules) - before if n.split(".")[0] in names])
print(getattr(sys.modules.get("wandb"), "run", None), os.listdir("."), reports)
"""
    out, errors = ended(code, tmp_path, GPUSCOPE_DEBUG="1")
    assert out == "True []\nNone [] {'W&B': [], 'TensorBoard': [], 'MLflow': []}\n"
    assert lines_of_ours(errors) == []


@needs("tensorboardX")
def test_nothing_is_wrapped_or_written_unless_asked_for(tmp_path):
    code = f"""
from tensorboardX import SummaryWriter
{START}
print(tracking, type(vars(SummaryWriter)["__init__"]).__name__)
"""
    assert ended(code, tmp_path, track=None)[0] == "None function\n"
    assert ended(code, tmp_path, track="0")[0] == "None function\n"
