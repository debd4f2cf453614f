"""What the gym taught the live rules, over made-up streams that go through the real store."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.cli.commands.doctor import live_script
from gpuscope.doctor import order
from gpuscope.probe.rendezvous import start_ticks
from gpuscope.wire import frames as f
from tests.fakes import jobs, views
from tests.fakes.views import GIB, host_row, row, trainer_row

from .test_live import found, named, one, put, severe, text

MIB = 1 << 20


def evaluating(gib_a_second: float, after: float = 5.0, phase: str = "eval") -> list[f.Frame]:
    """Return the frames of an evaluation: forty samples, two a second.

    The last step is ``after`` seconds old at the end, and memory climbs since.
    """
    began = 40 - int(2 * after)
    frames = put(one(40, phase=phase), "step", lambda q: 4000 + min(q, began))
    put(frames, "step_age_seconds", lambda q: 0.1 + max(0, q - began) / 2)
    return put(
        frames, "allocated_bytes", lambda q: int((40 + max(0, q - began) / 2 * gib_a_second) * GIB)
    )


def test_memory_that_climbs_between_two_steps_is_an_evaluation_that_keeps_its_graph():
    finding = found(evaluating(9.0))[0]
    assert (finding.pitfall, finding.severity, finding.confidence) == (
        "no-grad-eval",
        "problem",
        "likely",
    )
    assert "is full in about" in finding.title
    assert "the model is in evaluation mode" in text(finding)
    assert "9.00 GiB per second" in text(finding)


def test_a_slow_climb_is_a_warning_in_evaluation_and_a_word_elsewhere():
    assert named(evaluating(2.0), "no-grad-eval").severity == "warning"
    assert named(evaluating(2.0, phase="train"), "no-grad-eval").severity == "info"


def test_an_evaluation_whose_memory_comes_and_goes_is_left_alone():
    assert severe(found(evaluating(0.0))) == []
    assert severe(found(evaluating(0.5))) == [], (
        "a few outputs are kept, as many an evaluation does"
    )
    waves = put(evaluating(0.0), "allocated_bytes", lambda q: int((40 + 20 * (q % 2)) * GIB))
    assert severe(found(waves)) == []


def on_the_cpu(
    size: int, seconds: float, cuda: bool = False, steps: int = 400, count: int = 1
) -> list[f.Frame]:
    """Return the frames of so many trainings on the CPU of a host with a GPU."""
    frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0)]
    for n in range(1, count + 1):
        pid = 7020 + n
        proc = f.ProcDef(pid, 700, views.WALL, "ada", "python train.py", "python", 1, True)
        trainer = f.TrainerDef(
            pid, 700, 100 + n, script="train.py", torch_version="2.13.0", cuda=cuda
        )
        frames += [
            f.Def(100 + n, proc=proc),
            f.Def(300 + n, trainer=trainer),
            f.Def(400 + n, alloc=f.AllocDef(300 + n, -1)),
        ]
    for q, at, _ in views.ticks(10):
        sample = f.Sample(q, int(at * 1e9), h=[host_row()], g=[views.device_row(0, 0.0, 0.0)])
        for n in range(1, count + 1):
            sample.t.append(trainer_row(n, steps + q, seconds))
            sample.a.append(row("a", 400 + n, parameter_bytes=size))
        frames.append(sample)
    return frames


@pytest.mark.parametrize(
    ("size", "seconds", "cuda", "severity"),
    [
        (20 << 10, 0.001, False, None),  # so small on purpose
        (20 << 10, 0.001, True, None),
        (512 * MIB, 0.02, False, "info"),  # fast enough, and CUDA was never asked for
        (512 * MIB, 0.02, True, "warning"),
        (512 * MIB, 0.5, False, "warning"),
        (20 << 10, 0.5, False, "warning"),
    ],
)
def test_a_model_on_the_cpu_is_a_fault_where_it_was_meant_for_the_gpu(
    size: int, seconds: float, cuda: bool, severity: str | None
):
    said = [
        finding.severity
        for finding in found(on_the_cpu(size, seconds, cuda))
        if "device" in finding.pitfall
    ]
    assert said == ([] if severity is None else [severity])


def test_a_torch_without_cuda_is_one_finding_with_the_command_for_this_driver():
    """What the environment says of the machine is not said again beside it."""
    frames = on_the_cpu(512 * MIB, 0.5, count=3)
    for frame in frames:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            frame.trainer.torch_version = "2.13.0+cpu"
        elif isinstance(frame, f.Def) and frame.host is not None:
            frame.host.cuda_driver_version = "12.8"
    (said,) = (one for one in found(frames) if one.pitfall == "wrong-torch-build-cpu-only")
    assert said.where == "pid 7021", "the oldest of them, also where another is the first job"
    (fix,) = said.fixes
    assert fix.command.endswith("/whl/cu126"), "a driver for CUDA 12, and no Blackwell"
    assert said.severity == "problem", "as the environment has it"
    of_machine = replace(said, where="", cause="environment.cpu-only")
    assert order.rank([of_machine, said]) == [said]
    assert order.rank([of_machine]) == [of_machine]


def test_where_the_weights_are_is_known_after_a_few_steps():
    assert named(on_the_cpu(512 * MIB, 0.5, steps=4), "move-model-to-device").severity == "warning"


def test_short_steps_without_a_loader_are_too_little_work():
    idle = {"sm_active_percent": 3.0}
    without = {"loader_wait_seconds": None}
    short = one(device=idle, **without, step_seconds=0.001, step_seconds_mean=0.001)
    assert "without a DataLoader" in text(named(short, "too-small-workload"))
    assert not any(
        finding.pitfall == "too-small-workload" for finding in found(one(device=idle, **without))
    )


def test_a_scaler_that_found_its_scale_long_ago_is_left_alone():
    start = put(one(120, skipped_steps=12), "step", lambda q: 20 + q)
    assert severe(found(start)) == []
    still = put(put(one(120), "step", lambda q: 20 + q), "skipped_steps", lambda q: 12 + q // 8)
    assert named(still, "bf16-instead-of-fp16").severity == "warning"


def test_on_a_cpu_a_straggler_is_named_once_it_lasts_and_is_as_grave_as_what_it_costs():
    def ranks(cuda: bool, seconds: float = 90.0, **more: float) -> list[f.Frame]:
        frames = jobs.ranks(slow=1, seconds=seconds)
        for frame in frames:
            if isinstance(frame, f.Def) and frame.trainer is not None:
                frame.trainer.cuda = cuda
            for values in frame.t if isinstance(frame, f.Sample) else ():
                if values[0] != 301:
                    values[1 + f.TRAINER_COLUMNS.index("compute_seconds")] = 0.5 * more.get(
                        "compute", 0.5
                    )
        return frames

    def straggler(cuda: bool, **more: float) -> list[str]:
        found = views.judged(views.store_of(ranks(cuda, **more))).findings
        return [
            one.severity for one in found if one.cause.startswith(("ranks.", "live.communication"))
        ]

    assert straggler(True) == ["warning"]
    assert straggler(False, seconds=30.0) == [], "1.4 times as long, not for long"
    assert straggler(False) == ["warning"], "29 % of a step for a minute and a half"
    assert straggler(False, compute=0.3, seconds=30.0) == [], (
        "too early to say, also that it is no rank but the transport"
    )
    assert straggler(False, compute=0.3) == ["warning"], "twice as long"


@pytest.mark.parametrize(
    ("readings", "cause"),
    [
        ({"sm_active_percent": 9.0, "utilization_percent": 99.0}, "ranks.host_paced"),
        ({"sm_active_percent": None, "utilization_percent": 60.0}, "ranks.host_paced"),
        ({"sm_active_percent": 70.0, "utilization_percent": 99.0}, "ranks.straggler"),
        ({"sm_active_percent": None, "utilization_percent": 99.0}, "ranks.straggler"),
    ],
)
def test_a_rank_whose_gpu_idles_is_late_with_its_launches_and_has_no_more_work(readings, cause):
    frames = jobs.ranks()
    for sample in (frame for frame in frames if isinstance(frame, f.Sample)):
        for rank, values in enumerate(sample.t):
            shares = (
                {"compute": 0.9, "communication": 0.0}
                if rank == 1
                else {"compute": 0.4, "communication": 0.5}
            )
            for name, seconds in jobs.split(0.03, **shares).items():
                values[1 + f.TRAINER_COLUMNS.index(name)] = seconds
        for values in sample.g:
            for name, value in readings.items():
                values[1 + f.DEVICE_COLUMNS.index(name)] = value
    (said,) = [
        one
        for one in views.judged(views.store_of(frames)).findings
        if one.cause.startswith("ranks.")
    ]
    assert said.cause == cause
    assert (said.severity == "warning") == (cause == "ranks.straggler")
    assert (said.effect is None) == (cause == "ranks.host_paced"), "nothing says what could be won"


# ── the script of a trainer ───────────────────────────────────────────────────────────────────────


class Rank:
    """Of a trainer's view only what the look at its script needs; the process is this one."""

    def __init__(self, script: Path, **numbers: float) -> None:
        self.definition = f.TrainerDef(os.getpid(), start_ticks(), script=str(script))
        self.number = numbers.get


SOURCE = """
import torch
from torch.utils.data import DataLoader
from data import Pictures
loader = DataLoader(Pictures(), shuffle=True)
model = torch.nn.Linear(4, 4).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
total = 0
for x in loader:
    loss = model(x.cuda()).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total += loss
"""


def looked_at(script: Path, **numbers: float) -> list[str]:
    report = live_script.examine([Rank(script, **numbers)])  # type: ignore[list-item]
    return [finding.pitfall for finding in report.findings]


def aged(path: Path, seconds: float) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


def test_the_script_of_a_trainer_is_read_too_and_its_figures_outweigh_what_it_says_of_its_loader(
    tmp_path: Path,
):
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    aged(script, 86400 * 365)
    assert set(looked_at(script)) >= {"detach-loss-accumulation", "num-workers"}
    assert "num-workers" in looked_at(script, step_seconds_mean=0.1, loader_wait_seconds=0.05)
    calm = looked_at(script, step_seconds_mean=0.1, loader_wait_seconds=0.001)
    assert "detach-loss-accumulation" in calm
    assert "num-workers" not in calm


def test_a_script_that_was_changed_or_is_none_is_not_judged(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text(SOURCE)
    aged(script, -3600)
    assert looked_at(script) == []
    assert "changed since" in live_script.examine([Rank(script)]).examined[0]  # type: ignore[list-item]
    assert looked_at(tmp_path / "gone.py") == []
    assert looked_at(tmp_path) == []


def test_a_free_gpu_is_advised_only_where_one_is_free():
    def fixes(free: bool) -> list[str]:
        frames: list[f.Frame] = [views.hello(), views.host_def(), views.gpu(0), views.gpu(1)]
        for q, at, _ in views.ticks(10):
            full = [views.device_row(i, 139.0, 90.0, free_bytes=MIB) for i in range(2)]
            rows = [full[0], views.device_row(1, 0.01, 0.0)] if free else full
            frames.append(f.Sample(q, int(at * 1e9), h=[host_row()], g=rows))
        said = [one for one in found(frames) if one.where == "GPU 0"]
        return [fix.title for one in said for fix in one.fixes]

    assert fixes(True) == ["Choose a free GPU: 1"]
    assert fixes(False) == ["Wait until a GPU has room: now none of this host is free"]
