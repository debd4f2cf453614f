"""Recordings of a user's own trainer can be compared.

Some are committed ones, some are made ones with a known truth.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.cli.commands.lab.recorded import WINDOW, RecordedError, comparand, trainings
from gpuscope.wire import codec
from gpuscope.wire.frames import (
    COLUMNS,
    AllocDef,
    Def,
    GpuDef,
    Hello,
    HostDef,
    Row,
    Sample,
    TrainerDef,
)
from gpuscope.wire.recording import RecordingWriter
from tests.recordings import REDACTED


def row(table: str, number: int, **readings: object) -> Row:
    return [number, *(readings.get(column) for column in COLUMNS[table])]  # type: ignore[list-item]


def written(path: Path, frames: list[object], seconds: float = 0.5) -> Path:
    with RecordingWriter(path) as writer:
        for number, frame in enumerate(frames):
            writer.write("node", number * seconds, codec.encode(frame))  # type: ignore[arg-type]
    return path


def session(samples: list[Sample], *trainers: TrainerDef) -> list[object]:
    """Return the frames of one host with one device.

    Trainers have the ids 10, 11 … and allocators on the device 20, 21 …
    """
    hello = Hello(
        host="node",
        boot="b",
        t=1000.0,
        m=0,
        hz=2.0,
        cols={name: list(cols) for name, cols in COLUMNS.items()},
    )
    frames: list[object] = [
        hello,
        Def(0, host=HostDef(driver_version="580.1")),
        Def(1, gpu=GpuDef("GPU-a", 0, "H200")),
    ]
    for index, trainer in enumerate(trainers):
        frames.append(Def(10 + index, trainer=trainer))
        frames.append(Def(20 + index, alloc=AllocDef(10 + index, 0, "GPU-a", 1)))
    return [*frames, *samples]


def steady(
    count: int, step_seconds: float = 0.01, peak: int = 1 << 30, **more: object
) -> list[Sample]:
    """A sample each half second; the probe's readings are exact."""
    per_sample = int(0.5 / step_seconds)
    samples = []
    for number in range(1, count + 1):
        step = number * per_sample
        trainer = row(
            "t",
            10,
            step=step,
            step_seconds=step_seconds,
            step_seconds_p95=2 * step_seconds,
            step_age_seconds=0.0,
            loss=100.0 / step,
            loader_wait_seconds=0.001,
            **more,
        )
        memory = row("a", 20, peak_allocated_bytes=peak + number, peak_reserved_bytes=2 * peak)
        device = row("g", 1, tensor_active_percent=40.0)
        samples.append(Sample(number, number * 500_000_000, g=[device], t=[trainer], a=[memory]))
    return samples


def trainer(pid: int = 7, **more: object) -> TrainerDef:
    return TrainerDef(
        pid, start=pid, torch_version="2.11.0", script="/home/me/train.py", cuda=True, **more
    )  # type: ignore[arg-type]


def test_what_a_recording_tells(tmp_path: Path) -> None:
    path = written(tmp_path / "run.gsr", session(steady(20), trainer()))
    found = comparand(path)
    assert (found.pids, found.title, found.steps) == ((7,), "train.py", 950)
    document = found.entry.document
    assert document["step_seconds"]["median"] == pytest.approx(0.01)
    assert document["step_seconds"]["p95"] == pytest.approx(0.02)
    assert document["step_seconds"]["low"] == pytest.approx(0.01)
    assert document["peak_allocated_bytes"] == (1 << 30) + 20
    assert document["peak_reserved_bytes"] == 2 << 30
    assert document["tensor_active_percent"] == 40.0
    assert document["input_seconds"] == pytest.approx(0.001)
    assert document["loss_by_step"][-1] == [1000, 0.1]
    assert (found.entry.device, found.entry.device_name, found.entry.torch_version) == (
        "cuda",
        "H200",
        "2.11.0",
    )
    assert found.entry.source == "recording"
    assert found.entry.config is None
    assert found.entry.environment["driver"] == "580.1"
    assert found.entry.at == pytest.approx(1010.0)


def test_what_it_cannot_tell_is_null_with_a_reason(tmp_path: Path) -> None:
    path = written(tmp_path / "run.gsr", session(steady(20), trainer()))
    document = comparand(path).entry.document
    reasons = {entry["path"]: entry["reason"] for entry in document["unknown"]}
    for key in ("samples_per_second", "samples_per_step", "warmup_seconds", "loss_curve"):
        assert document[key] is None
        assert reasons[key]
    assert set(reasons) == {
        key for key, value in document.items() if value is None and key != "error"
    }
    told = comparand(path, samples=32).entry.document
    assert told["samples_per_second"] == pytest.approx(3200.0)
    assert told["loss_curve"][-1] == [32_000, 0.1]


def test_too_few_steps_have_no_interval(tmp_path: Path) -> None:
    steps = WINDOW * 4 // 50
    path = written(tmp_path / "run.gsr", session(steady(steps), trainer()))
    found = comparand(path).entry.document["step_seconds"]
    assert found["median"] == pytest.approx(0.01)
    assert (found["low"], found["high"]) == (None, None)


def test_the_interval_is_of_windows_that_share_no_step(tmp_path: Path) -> None:
    samples = steady(100)
    for number, sample in enumerate(samples):  # slower and slower
        sample.t[0][1 + COLUMNS["t"].index("step_seconds")] = 0.01 + number * 1e-5
    found = comparand(written(tmp_path / "run.gsr", session(samples, trainer()))).entry.document[
        "step_seconds"
    ]
    assert 0.010 < found["low"] < found["median"] < found["high"] < 0.011
    assert found["median"] == pytest.approx(0.0105, rel=0.01)


def test_ranks_of_one_job_are_one_training(tmp_path: Path) -> None:
    samples = steady(20)
    for sample in samples:
        sample.t.append([11, *sample.t[0][1:]])
        sample.a.append(row("a", 21, peak_allocated_bytes=5 << 30, peak_reserved_bytes=6 << 30))
    ranks = [trainer(7, rank=0, world_size=2, job="j"), trainer(8, rank=1, world_size=2, job="j")]
    path = written(tmp_path / "run.gsr", session(samples, *ranks))
    found = comparand(path, pid=8)
    assert found.pids == (7, 8)
    assert found.entry.document["world_size"] == 2
    assert found.entry.document["peak_allocated_bytes"] == 5 << 30
    assert [rank["rank"] for rank in found.entry.document["ranks"]] == [0, 1]


def test_several_trainings_must_be_told_apart(tmp_path: Path) -> None:
    samples = steady(10)
    for sample in samples:
        sample.t.append([11, *sample.t[0][1:]])
    path = written(tmp_path / "run.gsr", session(samples, trainer(7), trainer(8)))
    with pytest.raises(RecordedError) as caught:
        comparand(path)
    assert f"{path}:7    train.py, 450 steps" in str(caught.value)
    assert f"{path}:8    train.py, 450 steps" in str(caught.value)
    assert comparand(path, pid=8).pids == (8,)
    with pytest.raises(RecordedError, match="no training with pid 9"):
        comparand(path, pid=9)


def test_a_trainer_without_steps_or_memory(tmp_path: Path) -> None:
    sample = Sample(
        1,
        500_000_000,
        t=[row("t", 10)],
        why=[[10, "step", "not_supported", "no optimizer has stepped"]],
    )
    frames = session([sample], TrainerDef(7, start=7))
    frames = [frame for frame in frames if not (isinstance(frame, Def) and frame.alloc)]
    document = comparand(written(tmp_path / "run.gsr", frames)).entry.document
    assert (document["step_seconds"], document["peak_allocated_bytes"], document["device"]) == (
        None,
        None,
        "cpu",
    )
    reasons = {entry["path"]: entry["reason"] for entry in document["unknown"]}
    assert reasons["step_seconds"] == "no optimizer has stepped"


@pytest.mark.parametrize("content", [b"", b"no recording", b"\x1f\x8b\x08 cut"])
def test_files_that_are_no_recording(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gsr"
    path.write_bytes(content)
    with pytest.raises(RecordedError, match=r"is not a gpuscope recording|cannot read"):
        comparand(path)
    with pytest.raises(RecordedError, match="cannot read"):
        comparand(tmp_path / "none.gsr")


def test_an_empty_recording_holds_no_training(tmp_path: Path) -> None:
    with pytest.raises(RecordedError, match="contains no training"):
        comparand(written(tmp_path / "run.gsr", session([])))


def test_a_cut_recording_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    whole = written(tmp_path / "run.gsr", session(steady(200), trainer()))
    cut = tmp_path / "cut.gsr"
    data = whole.read_bytes()
    cut.write_bytes(data[: len(data) * 2 // 3])
    assert 0 < comparand(cut).steps < comparand(whole).steps


def test_recordings_of_real_trainings() -> None:
    first, second = trainings(REDACTED / "h200-lab.gsr")
    assert first.entry.document["step_seconds"]["median"] == pytest.approx(0.0162, rel=0.02)
    assert second.entry.document["peak_allocated_bytes"] == 4_417_952_256
    (ddp,) = trainings(REDACTED / "h200x2-ddp.gsr")
    assert len(ddp.pids) == 2
    assert ddp.entry.document["loss_by_step"][0][1] > ddp.entry.document["loss_by_step"][-1][1]
    for found in (first, second, ddp):
        assert found.entry.device_name == "NVIDIA H200"
        steps = found.entry.document["step_seconds"]
        assert steps["low"] <= steps["median"] <= steps["high"] < steps["p95"]
