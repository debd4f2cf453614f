"""Processes without optimizer steps: each is recognised on evidence, and not without it."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.process_kind import ProcessKind, course, flat_end, recognise, stepless
from gpuscope.store.view import History
from gpuscope.wire import frames as f
from tests.fakes import inside, views
from tests.fakes.views import GIB

CARD = views.TOTAL


def flat(size: float, seconds: float = 300.0) -> History:
    """A reading every second that does not move."""
    moments = tuple(views.END - seconds + at for at in range(int(seconds) + 1))
    return History(moments, tuple(size for _ in moments))


def found(
    command: str,
    held: History,
    *,
    step: int | None = None,
    step_age: float | None = None,
    backend: str = "native",
    kernel: str = "6.8.0",
    probe: bool = True,
    events: tuple[f.Event, ...] = (),
    **readings: f.Scalar,
) -> ProcessKind | None:
    """Return what is said of one process on an H200.

    ``held`` is the history of its allocated (else used) bytes.
    """
    frames: list[f.Frame] = [views.hello(), views.host_def(kernel=kernel), views.gpu(0)]
    frames.append(f.Def(100, proc=f.ProcDef(700, 1, views.WALL, "ada", command, "python", 1, True)))
    frames.append(f.Def(200, use=f.UseDef(100, 10)))
    values: dict[str, f.Scalar] = {
        "allocated_bytes": held.values[-1] if held.values else None,
        **readings,
    }
    sample = f.Sample(
        1, int(views.END * 1e9), h=[views.host_row()], g=[views.device_row(0, 130.0, 3.0)]
    )
    sample.u = [views.row("u", 200, used_bytes=readings.get("used_bytes", 130 * GIB))]
    if probe:
        trainer = f.TrainerDef(700, 1, 100, script=None, backend=backend, cuda=True)
        frames += [f.Def(300, trainer=trainer), f.Def(400, alloc=f.AllocDef(300, 0, None, 10))]
        sample.t = [
            views.row(
                "t", 300, step=step, step_age_seconds=step_age, step_seconds=0.5 if step else None
            )
        ]
        sample.a = [views.row("a", 400, **{k: v for k, v in values.items() if k != "used_bytes"})]
    host = views.host_of([*frames, sample, *events])
    trainer_view = host.trainers[0] if probe else None
    allocator = trainer_view.allocators[0] if trainer_view else None
    return recognise(host, host.devices[0], trainer_view, allocator, host.processes[0], held)


def oom(seconds_ago: float) -> f.Event:
    return inside.event(
        seconds_ago, "oom", "tried 4 GiB", 400, requested_bytes=4 * GIB, state="seen"
    )


# ── a server that takes its share by design ───────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/opt/venv/bin/vllm serve llama --port 8000", "vLLM"),
        ("VLLM::EngineCore", "vLLM"),
        ("python -m sglang.launch_server --model x", "SGLang"),
        ("text-generation-server serve mistral", "TGI"),
        ("python serve.py --gpu-memory-utilization 0.85", "an inference server"),
    ],
)
def test_a_server_that_reserves_most_of_the_card_and_stands_still_is_no_leak(
    command: str, name: str
):
    finding = found(command, flat(0.84 * CARD), reserved_bytes=int(0.86 * CARD))
    assert finding is not None
    assert finding.kind == "by_design"
    assert finding.says.startswith(name)
    assert "not a leak" in finding.says
    assert "86 % of the GPU" in finding.ground


def test_a_share_that_was_asked_for_is_by_design_though_it_is_smaller():
    command = "python -m vllm.entrypoints.api_server --gpu-memory-utilization 0.5"
    finding = found(command, flat(0.48 * CARD), reserved_bytes=int(0.49 * CARD))
    assert finding is not None
    assert finding.kind == "by_design"
    assert "--gpu-memory-utilization" in finding.ground


@pytest.mark.parametrize(
    ("held", "reserved"),
    [
        (flat(0.84 * CARD, 60.0), 0.86),  # not flat for long enough yet
        (flat(0.30 * CARD), 0.40),  # not most of the card
        # grows
        (
            History(
                tuple(map(float, range(300))), tuple((0.5 + i / 900) * CARD for i in range(300))
            ),
            0.86,
        ),
        (History(), 0.86),
    ],
)
def test_without_the_evidence_a_server_is_not_excused(held: History, reserved: float):
    finding = found("vllm serve llama", held, reserved_bytes=int(reserved * CARD))
    assert finding is None or finding.kind != "by_design"


def test_a_training_of_the_same_name_is_not_excused():
    held = flat(0.84 * CARD)
    assert (
        found(
            "python train_vllm_draft.py",
            held,
            step=900,
            step_age=0.3,
            reserved_bytes=int(0.86 * CARD),
        )
        is None
    )


def test_a_server_without_a_probe_is_told_from_what_the_driver_says():
    finding = found("vllm serve llama", flat(0.9 * CARD), probe=False, used_bytes=int(0.9 * CARD))
    assert finding is not None
    assert finding.kind == "by_design"
    assert "held 90 % of the GPU" in finding.ground
    assert "no optimizer steps" not in finding.ground, "nobody looked"


# ── a notebook after an exception ─────────────────────────────────────────────────────────────────

KERNEL = "/usr/bin/python -m ipykernel_launcher -f /run/kernel-1.json"


def test_memory_a_notebook_keeps_after_an_oom_is_told_with_what_frees_it():
    finding = found(KERNEL, flat(60 * GIB, 90.0), events=(oom(100.0),), reserved_bytes=90 * GIB)
    assert finding is not None
    assert finding.kind == "kept"
    assert "60.0 GiB stay allocated" in finding.says
    assert "sys.last_traceback" in finding.advice
    assert "an OOM 1 min 40 s ago" in finding.ground


@pytest.mark.parametrize(
    ("command", "held", "events", "step_age"),
    [
        (KERNEL, flat(60 * GIB), (), None),  # no OOM was seen: it may be wanted
        (KERNEL, flat(60 * GIB, 300.0), (oom(10.0),), None),  # it held that much long before
        (KERNEL, flat(60 * GIB, 90.0), (oom(100.0),), 0.4),  # it trains
        (KERNEL, flat(0.2 * GIB, 90.0), (oom(100.0),), None),  # little
        ("python train.py", flat(60 * GIB, 90.0), (oom(100.0),), None),  # no notebook
    ],
)
def test_without_the_evidence_a_notebook_is_not_blamed(
    command: str, held: History, events: tuple[f.Event, ...], step_age: float | None
):
    step = 10 if step_age is not None else None
    finding = found(
        command, held, events=events, step=step, step_age=step_age, reserved_bytes=90 * GIB
    )
    assert finding is None or finding.kind != "kept"


# ── the others ────────────────────────────────────────────────────────────────────────────────────


def test_more_than_the_card_lies_in_system_memory():
    finding = found(
        "python train.py",
        flat(CARD + 20 * GIB),
        step=5,
        step_age=0.2,
        kernel="5.15-microsoft-standard-WSL2",
    )
    assert finding is not None
    assert finding.kind == "spill"
    assert finding.says.startswith("20.0 GiB are in system memory")
    assert "the kernel is WSL's" in finding.ground


def test_comfyui_is_told_by_its_command():
    finding = found(
        "python /opt/ComfyUI/main.py --listen", flat(20 * GIB), backend="cudaMallocAsync"
    )
    assert finding is not None
    assert finding.kind == "comfyui"
    assert "cudaMallocAsync" in finding.ground


def test_the_drivers_allocator_is_told_also_while_training():
    finding = found(
        "python train.py", flat(20 * GIB), step=9, step_age=0.1, backend="cudaMallocAsync"
    )
    assert finding is not None
    assert finding.kind == "async"


def test_a_process_without_steps_is_shown_by_time_once_it_has_had_time_to_begin():
    finding = found("python infer.py", flat(20 * GIB))
    assert finding is not None
    assert finding.kind == "stepless"
    assert found("python infer.py", flat(20 * GIB, 10.0)) is None


def test_a_trainer_that_stands_for_long_says_since_when_and_one_that_trains_says_nothing():
    finding = found("python train.py", flat(20 * GIB), step=900, step_age=1800.0)
    assert finding is not None
    assert finding.ground == "last optimizer step 30 min 00 s ago"
    assert found("python train.py", flat(20 * GIB), step=900, step_age=0.4) is None


def test_stepless_is_unknown_without_a_probe():
    assert stepless(None) is None


# ── courses ───────────────────────────────────────────────────────────────────────────────────────


def test_a_course_ends_where_something_was_unknown():
    history = History((1.0, 2.0, 3.0, 4.0, 5.0), (9.0, None, 3.0, 4.0, 5.0))
    now = course(history)
    assert now is not None
    assert (now.seconds, now.low, now.high, now.last, now.since) == (2.0, 3.0, 5.0, 5.0, 3.0)
    assert course(History((1.0,), (1.0,))) is None
    assert course(History((1.0, 2.0), (1.0, None))) is None


def test_the_flat_end_is_as_long_as_it_is_flat():
    values: list[Any] = [50.0, 10.0, 10.4, 9.8, 10.1]
    now = flat_end(History((0.0, 1.0, 2.0, 3.0, 4.0), tuple(values)), 1.0)
    assert now is not None
    assert (now.since, now.seconds) == (1.0, 3.0)
    assert flat_end(History((0.0, 1.0), (50.0, 10.0)), 1.0) is None
