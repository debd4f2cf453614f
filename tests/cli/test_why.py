"""``gpuscope why PID`` says where the time goes, and why it does not know."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.attach.targets import Target
from gpuscope.cli import look, one_trainer, trainers_of, work
from gpuscope.cli import main as cli
from gpuscope.cli.commands import why
from gpuscope.cli.commands.doctor.live import examine
from gpuscope.cli.watched_host import watched
from gpuscope.doctor import live
from gpuscope.errors import UserError
from gpuscope.probe import rendezvous
from gpuscope.wire import frames
from gpuscope.wire.codec import encode
from gpuscope.wire.recording import RecordingWriter
from tests.cli.test_snapshot_live import frames_of
from tests.fakes import clocks, jobs, paces, views
from tests.fakes.asked import AskedSource, fails, gives
from tests.fakes.documented import keys
from tests.fakes.probe_client import TRAINING, sockets, trainer, wait_for
from tests.recordings import REDACTED, SHIPPED, without_samples


def minute(looks: int = 300) -> dict[str, Any]:
    return {
        "m": 100_000_000_000,
        "age_seconds": 60.0,
        "seconds": 60.0,
        "steps": 100,
        "looks": looks,
        "rows": [["input", 30.0, looks // 2], ["forward", 30.0, looks // 2]],
        "places": [["input", "data.py:12 __getitem__", 30.0]],
        "collections": 0,
    }


def half_idle(pid: int) -> list[frames.Frame]:
    """A trainer whose GPU has nothing to do while its thread waits."""
    out = frames_of(pid)
    assert isinstance(out[-1], frames.Sample)
    out[-1].g = [views.device_row(0, 40.0, 40.0, sm_active_percent=40.0)]
    return out


@pytest.fixture
def ask(monkeypatch, capsys):
    """Run the verb over a trainer that answers so: (exit code, output, errors, what was asked)."""
    for name in ("FIND_SECONDS", "ALL_SECONDS", "NONE_SECONDS"):
        monkeypatch.setattr(trainers_of, name, 0.3)
    monkeypatch.setattr(why, "LOOK_SECONDS", 0.01)

    def run(
        *words: str,
        time: Any = None,
        frames: Any = None,
        look: Any = None,
        work: Any = None,
        **more: Any,
    ) -> tuple[int, str, str, list[Any]]:
        none = fails("unsupported", "the training does not use CUDA")
        uncounted = fails("refused", "parts of this training are compiled")
        seen = frames or half_idle(os.getpid())
        source = AskedSource(seen, time=time, look=look or none, work=work or uncounted, **more)
        monkeypatch.setattr("gpuscope.tui.app.launch.local_source", lambda hz, settings: source)
        code = cli.main(["why", *words])
        out, errors = capsys.readouterr()
        return code, out, errors, source.asked

    return run


def test_it_says_what_takes_most_and_what_a_step_would_take_without_it(ask):
    value = {"minutes": [minute()], "problem": ""}
    code, out, _, asked = ask(str(os.getpid()), time=gives(value))
    assert code == 1
    said = " ".join(out.split())
    assert "50 % of the time (44 % to 56 %) goes into input wait" in said
    assert "at data.py:12 __getitem__" in said
    assert "a step would take 300 ms or more instead of 600 ms" in said
    assert "num_workers" in out
    assert [name for name, _ in asked] == ["time", "look", "work", "time", "recent"]
    assert "Useful work: unknown: parts of this training are compiled." in said
    assert asked[0][1]["close_seconds"] == 0.01


@pytest.mark.parametrize("called", [True, False])
def test_a_call_of_gc_collect_is_told_from_python_s_own_collections(ask, called):
    told = {**minute(), "rows": [["collection", 30.0, 60], ["forward", 30.0, 150]], "places": []}
    told["places"] = [["collection", "train.py:24 main", 29.0]] if called else []
    code, out, _, _ = ask(str(os.getpid()), "--no-look", time=gives({"minutes": [told]}))
    said = " ".join(out.split())
    assert code == 1
    assert "goes into garbage collection" in said
    assert ("garbage collection, at train.py:24 main." in said) == called
    assert ("Calls of gc.collect() take 50 % of the last" in said) == called
    assert ("Fix: Take calls of gc.collect() out of the loop" in said) == called
    assert ("\n        - gc.collect()\n" in out) == called, "what to take out is shown"
    assert ("Fix: Exempt long-lived objects from collection" in said) == (not called)


def test_the_document_has_the_rows_and_the_causes(ask):
    value = {"minutes": [minute()], "problem": ""}
    code, out, _, asked = ask(str(os.getpid()), "--json", "--no-look", time=gives(value))
    document = json.loads(out)
    assert code == 1
    assert [name for name, _ in asked] == ["time", "recent"]
    assert [row["row"] for row in document["rows"]] == ["input", "forward"]
    assert document["rows"][0]["share"] == 0.5
    assert document["causes"][0]["pitfall"] == "num-workers"
    assert document["causes"][0]["step_seconds_at_least"] == 0.3
    assert sorted(document) == sorted(keys("why", "the document"))
    assert sorted(document["rows"][0]) == sorted(keys("why", "each of `rows`"))
    assert sorted(document["causes"][0]) == sorted(keys("why", "each of `causes`"))


LOOK = {
    "seconds": 0.1,
    "steps": 4,
    "kernels": [
        ["nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_TNN", 40, 0.03, 0.03],
        ["ncclDevKernel_AllReduce_Sum_f32_RING_LL", 4, 0.03, 0.02],
    ],
    "left_out": [0, 0, 0.0, 0.0],
    "idle": [["sync", 0.05, 8, "train.py:12 main", 0.04]],
    "communication": [0.03, 0.02, 4],
    "copies": [0.0, 0.0, 0],
    "events": 96,
    "start_seconds": 0.002,
    "stop_seconds": 0.04,
    "lost_seconds": 0.09,
}


def test_the_device_is_looked_at_and_the_price_is_said_before_and_after(ask):
    code, out, errors, _ = ask(
        str(os.getpid()), time=gives({"minutes": [minute()], "problem": ""}), look=gives(LOOK)
    )
    assert code == 1
    assert "up to about 0.15 s of training time, once" in errors
    assert "4 steps of 25.0 ms: busy for 50 % of the time" in out
    assert "at train.py:12 main" in out
    assert "2. Syncs such as .item() leave the GPU idle for 25 % of the time" in out
    assert "Gain: saves at most 25 % of the wall clock" in out, (
        "the look has not met the other half"
    )
    assert "Seen: most of it at train.py:12 main (stack)" in out
    assert "Fix: Sum on the GPU, read every N steps" in out
    assert "Repro: gpuscope lab pitfall host-sync-in-loop" in out
    assert "cost 90.0 ms of training time: the training paused for 42.0 ms" in out


def test_the_document_has_the_look(ask):
    value = {"minutes": [minute()], "problem": ""}
    _, out, errors, _ = ask(str(os.getpid()), "--json", time=gives(value), look=gives(LOOK))
    found = json.loads(out)["look"]
    assert sorted(found) == sorted(keys("why", "`look`"))
    assert errors == ""
    assert [(row["row"], round(row["share"], 3)) for row in found["rows"]] == [
        ("idle-sync", 0.5),
        ("products-half", 0.3),
        ("communication", 0.2),
    ]
    assert (found["problem"], found["lost_seconds"]) == (None, 0.09)
    first, one = json.loads(out)["causes"]
    assert (first["row"], first["severity"]) == ("input", "warning")
    assert (one["row"], one["pitfall"], one["cause"]) == ("read", "host-sync-in-loop", "look.reads")
    assert one["saves_share_at_most"] == pytest.approx(0.25)
    assert first["saves_share_at_most"] > one["saves_share_at_most"]
    assert "gpuscope lab pitfall host-sync-in-loop" in one["proof"]
    _, out, _, asked = ask(str(os.getpid()), "--json", "--no-look", time=gives(value))
    assert (json.loads(out)["look"], [name for name, _ in asked]) == (None, ["time", "recent"])


def test_the_work_of_a_step_is_told_with_its_floor_and_its_price(ask):
    code, out, errors, _ = ask(
        str(os.getpid()),
        time=gives({"minutes": [minute()], "problem": ""}),
        work=gives(clocks.WORK),
    )
    assert code == 1
    assert "Counting the FLOPs of a step makes it some 0.1 s longer" in errors
    said = " ".join(out.split())
    assert "Useful work: 600 ms a step; this GPU could do the part with known FLOPs in" in said
    assert "MFU at least 11 % (PaLM convention: 66 TFLOP of the model / (step × 989.5" in said
    assert "17 % of the hardware FLOPs are recomputed by activation checkpointing." in said
    assert "The FLOPs of aten::_fft_c2c (2) are not known." in said
    assert "Counting the step cost the training 120 ms." in said


def test_the_document_derives_the_work_by_class_of_operators(ask):
    value = {"minutes": [minute()], "problem": ""}
    _, out, _, _ = ask(str(os.getpid()), "--json", time=gives(value), work=gives(clocks.WORK))
    found = json.loads(out)["useful_work"]
    assert sorted(found) == sorted(keys("why", "`useful_work`"))
    flops = 2 * 4096**3
    assert (found["problem"], found["complete"], found["type"]) == (None, False, "bf16")
    assert (found["model_flops"], found["hardware_flops"]) == (480 * flops, 576 * flops)
    assert found["mfu"] == pytest.approx(480 * flops / (0.6 * 989.5e12))
    assert found["card"]["source"] == "NVIDIA H200 Tensor Core GPU data sheet, SXM"
    assert {row["class"] for row in found["rows"]} == {"products", "optimizer", "memory", "unknown"}
    assert sum(row["floor_seconds"] for row in found["rows"]) == found["floor_seconds"]
    assert sum(row["floor_share"] for row in found["rows"]) == pytest.approx(1.0)


def test_a_training_on_the_cpu_has_flops_but_no_peak(ask):
    value = {"minutes": [minute()], "problem": ""}
    work = gives({**clocks.WORK, "cuda": False})
    _, out, _, _ = ask(str(os.getpid()), time=gives(value), work=work)
    said = " ".join(out.split())
    assert "at least 66 TFLOP a step; MFU unknown: the training runs on the CPU" in said


@pytest.mark.parametrize(
    ("code", "reason", "then"),
    [
        (
            "refused",
            "another profiler runs in this training; two at once would end it",
            "when that profiler has ended",
        ),
        ("refused", "the training has started a profiler of its own", "profiler has ended"),
        ("refused", "Nsight Systems profiles this process", "in a run without Nsight"),
        (
            "failed",
            "the profiler heard nothing of CUDA: CUPTI is missing",
            "torch.profiler.supported_activities()",
        ),
        ("refused", "the training runs in another thread", "import torch in the thread that"),
        ("unsupported", "no step was seen yet", "after the first steps"),
        ("failed", "no step ended in time", "waits for slow steps"),
        ("unfinished", "look was not done within 7 s: it is being read", "waits for slow steps"),
    ],
)
def test_why_nobody_could_look_is_said_with_what_to_do_next(ask, code, reason, then):
    value = gives({"minutes": [minute()], "problem": ""})
    status, out, _, _ = ask(str(os.getpid()), time=value, look=fails(code, reason))
    said = " ".join(out.split())
    assert status == 1, "its wall clock is known all the same"
    assert f"No GPU trace was taken: {reason}." in said
    assert then in said.partition("Next: ")[2]


def test_a_step_that_was_not_counted_in_time_is_told_from_a_silent_probe(ask):
    value = gives({"minutes": [minute()], "problem": ""})
    for code, said in (("unfinished", "no whole step ended within"), ("timeout", "no answer")):
        _, out, _, _ = ask(str(os.getpid()), time=value, work=fails(code, "no answer within 9 s"))
        assert f"Useful work: unknown: {said}" in " ".join(out.split())


def hanging():
    """Frames of this process as a trainer that has stood at one line for 4 minutes."""
    told = half_idle(os.getpid())
    names = {"stall_at": "late.py:31 main", "step_age_seconds": 240.0}
    for sample in (one for one in told if isinstance(one, frames.Sample)):
        for row in sample.t:
            for name, value in names.items():
                row[1 + frames.TRAINER_COLUMNS.index(name)] = value
    return told


def test_to_wait_for_the_next_step_of_a_hang_is_no_advice(ask):
    told = hanging()
    late = fails("unfinished", "no answer within 9 s")
    value = gives({"minutes": [minute()], "problem": ""})
    unseen = fails("failed", "no step ended in time")
    status, out, _, _ = ask(str(os.getpid()), frames=told, time=value, look=unseen, work=late)
    said = " ".join(out.split())
    assert status == 1
    assert "Stalled for 4 min 00 s" in said
    assert "Useful work" not in said
    assert "GPU trace" not in said
    assert "waits for slow steps" not in said
    _, out, _, _ = ask(str(os.getpid()), "--json", frames=told, time=value, look=unseen, work=late)
    assert "stands still" in json.loads(out)["look"]["problem"]


def test_what_to_do_about_a_hang_is_said_where_it_is_told(ask):
    told = hanging()
    value = gives({"minutes": [minute()], "problem": ""})
    _, out, _, _ = ask(str(os.getpid()), "--no-look", frames=told, time=value)
    head = out.partition("\n\n")[0]
    assert "\nNow: Read the stacks of all its threads" in head
    assert f"\n     gpuscope attach {os.getpid()}\n" in head
    assert "\nFix: " in head
    assert f"\nEvidence and other fixes: gpuscope doctor {os.getpid()}" in head


def test_a_loss_that_is_nan_comes_before_faster_steps(ask):
    told = half_idle(os.getpid())
    for sample in (one for one in told if isinstance(one, frames.Sample)):
        for row in sample.t:
            row[1 + frames.TRAINER_COLUMNS.index("loss")] = None
            reason = "the progress bar shows loss nan since step 26"
            sample.why.append([row[0], "loss", frames.NOT_SUPPORTED, reason])
    value = gives({"minutes": [minute()], "problem": ""})
    status, out, _, _ = ask(str(os.getpid()), "--no-look", frames=told, time=value)
    assert status == 1
    head, _, rest = out.partition("\n\n")
    assert "loss is nan" in head
    assert "a faster step is no gain." in " ".join(head.split())
    assert "\nNow: End it" in head
    assert f"kill {os.getpid()}" in head
    assert "\nFor the next run:\n\n1. " in rest


def test_nothing_is_told_twice(ask, monkeypatch):
    """What the sentence and the table tell, the cause below them does not repeat."""
    monkeypatch.setenv("COLUMNS", "80")
    value = gives({"minutes": [minute()], "problem": ""})
    _, out, _, _ = ask(str(os.getpid()), "--no-look", time=value)
    head, cause = out.split("\n1. ")
    assert "44 % to 56 %" in head
    assert "data.py:12 __getitem__  50 %" in head
    assert "Gain:" not in cause
    assert "data.py:12" not in cause
    assert "50 %" in cause.splitlines()[0]
    assert "Seen:" in cause, "what only it tells stays"
    last = f"After a fix: gpuscope why {os.getpid()}    shows whether steps are shorter"
    assert cause.endswith(f"\n\n{last}\n")


def test_a_row_that_takes_next_to_nothing_is_left_out(ask):
    told = {**minute(), "rows": [["forward", 59.99, 300], ["collection", 0.01, 0]]}
    _, out, _, _ = ask(str(os.getpid()), "--no-look", time=gives({"minutes": [told]}))
    assert "\nforward pass" in out
    assert "garbage collection" not in out
    assert "not attributed" not in out
    assert "\nwall clock" in out


def test_a_line_of_the_forward_pass_that_takes_most_of_the_time_is_named(ask):
    told = {**minute(), "rows": [["forward", 60.0, 300]]}
    told["places"] = [["forward", "model.py:6 forward", 55.0]]
    _, out, _, _ = ask(str(os.getpid()), "--no-look", time=gives({"minutes": [told]}))
    said = " ".join(out.split())
    assert "92 % at model.py:6 forward; no other row is worth fixing." in said


def test_no_line_of_the_ranks_is_wider_than_the_page(ask, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    rows = {"forward": 15.0, "backward": 15.0, "optimizer": 10.0, "checkpoint": 20.0}
    time = by_rank(n1=rows, n2=rows)
    _, out, _, _ = ask("train.py", "--no-look", frames=ranks_of(1001, 1002), time=time)
    ranks = [line for line in out.splitlines() if line.startswith("rank ")]
    assert len(ranks) == 2
    assert all(len(line) <= 80 and "%" in line for line in ranks)
    assert sum(line.endswith("← below") for line in ranks) == 1


def test_what_does_not_fit_into_the_time_is_left_out_with_a_sentence(ask, monkeypatch):
    monkeypatch.setattr(why, "WHOLE_SECONDS", 0.0)
    value = gives({"minutes": [minute()], "problem": ""})
    status, out, _, asked = ask(str(os.getpid()), time=value)
    said = " ".join(out.split())
    assert status == 1
    assert "No GPU trace was taken: the trainer answered so late that no time was left" in said
    assert "Useful work: unknown: a step is counted within 1.12 s, too long to wait for" in said
    assert {name for name, _ in asked} == {"time", "recent"}


def asked_in_turn(monkeypatch, step: float, cuda: bool, close: float, whole: float):
    """Return when a look and a count of a trainer are asked for, and the seconds given to each."""
    definition = SimpleNamespace(cuda=cuda)
    one = SimpleNamespace(trainer=SimpleNamespace(definition=definition, number=lambda _: step))
    began, asked = time.monotonic(), {}

    def takes(name):
        async def take(found, seconds):
            asked[name] = time.monotonic() - began, seconds
            return None, name

        return take

    monkeypatch.setattr(look, "take", takes("look"))
    monkeypatch.setattr(work, "take", takes("work"))
    looks, works = asyncio.run(why._look_and_count({7: one}, close, began + whole))
    assert (looks, works) == ({7: (None, "look")}, {7: (None, "work")})
    return one, asked


@pytest.mark.parametrize(("step", "early"), [(0.01, False), (0.3, True)])
def test_on_a_cpu_a_slow_step_is_counted_while_samples_are_taken(monkeypatch, step, early):
    monkeypatch.setattr(why, "AFTER_WORK_SECONDS", 0.0)
    one, asked = asked_in_turn(monkeypatch, step, False, close=0.4, whole=0.8)
    assert (asked["work"][0] < 0.4) == early
    assert asked["work"][1] >= work.needed_seconds(one), "else it is left out"


def test_the_trace_of_slow_steps_leaves_time_to_count_one(monkeypatch):
    one, asked = asked_in_turn(monkeypatch, 1.0, True, close=0.2, whole=8.2)
    seconds, left = asked["look"][1], 8.2 - why.AFTER_WORK_SECONDS
    assert look.one_step_seconds(one) <= seconds <= left - work.needed_seconds(one) + 0.01
    assert asked["work"][0] >= 0.2, "a step that is counted would be in the trace of another rank"


def test_a_slow_step_is_traced_though_the_device_is_a_step_behind(monkeypatch):
    """It waits for the end of a step, and traces one until the device has come by it, one later."""
    _, asked = asked_in_turn(monkeypatch, 1.4, True, close=0.1, whole=8.5)
    assert asked["look"][1] * look.RECORDED_SHARE >= 3 * 1.4


@pytest.mark.parametrize(("left", "asked"), [(2.0, False), (3.0, True)])
def test_a_step_is_counted_where_one_that_begins_at_once_would_end_in_time(
    left, asked, monkeypatch
):
    """Whether one does begin, the probe decides."""
    questions = []

    async def answer(one, request, seconds, late):
        questions.append((request, seconds))
        return None, late

    monkeypatch.setattr(work, "answer_of", answer)
    one = SimpleNamespace(trainer=SimpleNamespace(number=lambda _: 2.0))
    found, why_not = asyncio.run(work.take(one, left))
    assert found is None
    assert questions == ([("work", left)] if asked else [])
    assert ("no whole step ended" if asked else "a step is counted within 4.50 s") in why_not


def test_a_look_of_before_is_told_where_no_other_is_wanted(ask):
    value = {"minutes": [minute()], "problem": "", "look": LOOK}
    code, out, _, asked = ask(str(os.getpid()), "--no-look", time=gives(value))
    assert code == 1
    assert [name for name, _ in asked] == ["time", "recent"]
    assert "2. Syncs such as .item() leave the GPU idle for 25 % of the time" in out


def test_readings_that_are_late_are_not_waited_for_where_no_look_is_wanted(ask, monkeypatch):
    monkeypatch.setattr(why, "QUICK_SECONDS", 0.2)
    given_up = []

    async def recent(*_: Any) -> dict[str, Any]:
        try:
            await asyncio.sleep(20)
        except asyncio.CancelledError:
            given_up.append(True)
            raise
        return {}

    value = {"minutes": [minute()], "problem": ""}
    begin = time.monotonic()
    code, out, _, _ = ask(str(os.getpid()), "--no-look", time=gives(value), recent=recent)
    assert time.monotonic() - begin < 5
    assert (code, given_up) == (1, [True])
    said = " ".join(out.split())
    assert "What changed in the last minutes is left out, and" in said
    assert "50 % of the time (44 % to 56 %) goes into input wait" in said


def test_of_a_trainer_that_answers_late_what_it_has_told_before_is_said_in_time(ask, monkeypatch):
    monkeypatch.setattr(why, "QUICK_SECONDS", 0.2)
    data = {"m": 100_000_000_000, "seconds": 60.0, "steps": 100, "looks": 300}
    data |= {"rows": "input 30.000 150|forward 30.000 150", "places": ""}
    number = 300 + os.getpid() % 100
    told = frames.Event(number, "time", 160_000_000_000, "", data)

    async def late(*_: Any) -> dict[str, Any]:
        await asyncio.sleep(20)
        return {}

    begin = time.monotonic()
    seen = [*half_idle(os.getpid()), told]
    code, out, _, _ = ask(str(os.getpid()), "--no-look", frames=seen, time=late, recent=late)
    assert time.monotonic() - begin < 5
    said = " ".join(out.split())
    assert "50 % of the time (44 % to 56 %) goes into input wait" in said
    assert (code, "The probe answers late" in said) == (1, True)


def test_what_clock_and_look_have_seen_is_one_cause(ask):
    copies = {**LOOK, "kernels": [["Memcpy HtoD (Pageable -> Device)", 4, 0.05, 0.05]]}
    told = minute()
    told["rows"] = [["copy", 30.0, 150], ["forward", 30.0, 150]]
    value = {"minutes": [told], "problem": "", "look": copies}
    _, out, _, _ = ask(str(os.getpid()), "--no-look", "--json", time=gives(value))
    document = json.loads(out)
    causes = [one["pitfall"] for one in document["causes"]]
    assert sorted(causes) == ["host-sync-in-loop", "pin-memory"]


def test_of_a_mig_slice_the_kernels_are_told_and_the_card_is_not_judged(ask):
    frames_there = frames_of(os.getpid())
    for frame in frames_there:
        if isinstance(frame, frames.Def) and frame.alloc is not None:
            frame.alloc.gpu = frame.alloc.uuid = None
    value = {"minutes": [minute()], "problem": "", "look": LOOK}
    code, out, _, _ = ask(str(os.getpid()), "--no-look", frames=frames_there, time=gives(value))
    said = " ".join(out.split())
    assert code == 1
    assert "It trains on a MIG slice or on a GPU that the driver does not list here" in said
    assert "gpuscope devices" in said
    assert "Syncs such as .item() leave the GPU idle" in said


def test_few_looks_are_said_to_be_few(ask):
    code, out, _, _ = ask(
        str(os.getpid()), "--no-look", time=gives({"minutes": [minute(10)], "problem": ""})
    )
    assert code == 3
    assert "Too few samples to tell" in " ".join(out.split())


def test_a_trainer_that_has_not_trained_yet_is_said_so(ask):
    value = {"minutes": [], "problem": "no optimizer step was seen yet"}
    code, _, errors, _ = ask(str(os.getpid()), "--no-look", time=gives(value))
    assert code == 3
    assert "Why: no optimizer step was seen yet" in errors


def test_a_process_that_does_not_exist(ask):
    code, _, errors, _ = ask("4194303")
    assert code == 3
    assert "no process has pid 4194303 here" in errors
    assert "Next: gpuscope ps" in errors


def test_of_a_trainer_that_has_ended_its_newest_black_box_is_named(ask, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(tmp_path))
    for name, age in (("4194303-7.box", 60), ("4194303-9.box", 0), ("41943-9.box", 0)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    box = tmp_path / "4194303-9.box"
    code, _, errors, _ = ask("4194303")
    assert code == 3
    assert "no process has pid 4194303 here: its trainer has ended" in errors
    assert f"Next: gpuscope doctor {box}    says how it ended; gpuscope why {box}" in errors
    (problem,) = examine(4194303).problems
    assert problem.startswith("No process has pid 4194303 here: its trainer has ended. Next: ")
    assert f"gpuscope doctor {box}" in problem


def test_a_process_without_python_is_not_offered_a_probe(ask, monkeypatch):
    monkeypatch.setattr(trainers_of, "NONE_SECONDS", 0.0)
    with subprocess.Popen(["sleep", "1000"]) as other:
        command = Path(f"/proc/{other.pid}/cmdline")
        wait_for(lambda: command.read_bytes().startswith(b"sleep"), 30, "the program")
        code, _, errors, _ = ask(str(other.pid), frames=frames_of(os.getpid()))
        other.kill()
    assert code == 3
    assert f"pid {other.pid} (sleep 1000) runs no Python, so it is no training" in errors
    assert "--inject" not in errors
    assert "Next: gpuscope ps" in errors


# ── a whole job, and which one ──


def ranks_of(*pids: int, script: str = "train.py") -> list[Any]:
    """One job with these processes as its ranks."""
    out: list[Any] = [views.hello(), views.host_def(), *(views.gpu(n) for n, _ in enumerate(pids))]
    for rank, pid in enumerate(pids):
        out += views.trainer(pid, rank, len(pids), "ada", True, "run-1", script)
    rows = [views.trainer_row(pid % 100, 100, 0.5) for pid in pids]
    out.append(frames.Sample(0, int(views.END * 1e9), h=[views.host_row()], t=rows))
    return out


def by_rank(**rows: dict[str, float]) -> Any:
    """An answer to ``time`` for each trainer: ``n7=…`` for the one with id 307."""

    async def answer(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        own = rows[f"n{args['trainer'] - 300}"]
        told = minute(300)
        told["rows"] = [[name, seconds, int(5 * seconds)] for name, seconds in own.items()]
        told["places"] = [["other", "train.py:40 augment", own.get("other", 0.0)]]
        return {"minutes": [told], "problem": ""}

    return answer


def test_the_ranks_of_a_job_stand_side_by_side_and_the_odd_one_is_named(ask):
    time = by_rank(n1={"forward": 20.0, "backward": 40.0}, n2={"forward": 20.0, "other": 40.0})
    code, out, _, _ = ask("--no-look", frames=ranks_of(1001, 1002), time=time)
    said = " ".join(out.split())
    assert code == 1
    begin = "train.py, rank 1, pid 1002: The others wait for rank 1, 400 ms a step (67 %): "
    line = "other code at train.py:40 augment"
    assert said.startswith(f"{begin}it spends 400 ms a step on {line}, the others 0 s. ")
    assert "of the time goes into" not in said, "it is told once"
    assert "Nothing to warn of" not in said
    assert "RANK STEP WHERE ITS TIME GOES" in said
    assert "rank 0 600 ms backward pass 67 % · forward pass 33 %" in said
    assert "Look at train.py:40 augment:" in said
    code, out, _, _ = ask("train.py", "--no-look", "--json", frames=ranks_of(1001, 1002), time=time)
    document = json.loads(out)
    assert document["odd_rank"]["rank"] == document["rank"] == 1
    assert document["odd_rank"]["step_seconds"] == pytest.approx(0.4)
    assert [one["rank"] for one in document["trainers"]] == [0, 1]


def test_a_job_is_also_meant_by_its_script_where_the_script_lies(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("import torch\n")
    time = by_rank(n1={"forward": 20.0}, n2={"forward": 20.0})
    for word in ("train.py", "./train.py", str(tmp_path / "train.py")):
        words = (word, "--no-look", "--json")
        _, out, _, _ = ask(*words, frames=ranks_of(1001, 1002), time=time)
        assert [one["rank"] for one in json.loads(out)["trainers"]] == [0, 1], word
    code, _, errors, _ = ask("other.py", "--no-look", frames=ranks_of(1001, 1002), time=time)
    assert code == 3
    assert "no running job is called other.py. Choose one:" in errors


def test_ranks_that_are_alike_have_no_odd_one(ask):
    alike = {"forward": 20.0, "backward": 39.0, "other": 1.0}
    time = by_rank(n1=alike, n2=alike)
    code, out, _, _ = ask("run-1", "--no-look", frames=ranks_of(1001, 1002), time=time)
    assert code == 0
    assert "others wait" not in out


def test_of_one_rank_it_says_that_there_are_others(ask):
    pid = os.getpid()
    time = by_rank(**{f"n{pid % 100}": {"forward": 60.0}, f"n{(pid + 1) % 100}": {"forward": 60.0}})
    code, out, _, asked = ask(str(pid), "--no-look", frames=ranks_of(pid, pid + 1), time=time)
    assert code == 0
    assert "It is one of 2 ranks here; all of them: gpuscope why train.py" in " ".join(out.split())
    assert len(asked) == 2


def test_where_two_jobs_have_one_script_all_ranks_are_those_of_their_torchrun(ask):
    """The key of a job of torchrun is an address, so that it would be taken for a host's name."""
    pid = os.getpid()
    first, other = [pid, pid + 1], [pid + 2, pid + 3]
    told = ranks_of(*first)[:-1]
    for rank, one in enumerate(other):
        told += views.trainer(one, rank, 2, "ada", True, "127.0.0.1:29712")
    for frame in told:
        if isinstance(frame, frames.Def) and frame.proc is not None:
            frame.proc.ppid = 4242 if frame.proc.pid in first else 4343
    rows = [views.trainer_row(one % 100, 100, 0.5) for one in (*first, *other)]
    told.append(frames.Sample(0, int(views.END * 1e9), h=[views.host_row()], t=rows))
    time = by_rank(**{f"n{one % 100}": {"forward": 60.0} for one in (*first, *other)})
    _, out, _, _ = ask(str(pid), "--no-look", frames=told, time=time)
    assert "It is one of 2 ranks here; all of them: gpuscope why 4242" in " ".join(out.split())
    _, _, errors, _ = ask("train.py", "--no-look", frames=told, time=time)
    assert "gpuscope why 4242    (train.py, 2 ranks here)" in errors
    assert "gpuscope why 4343    (train.py, 2 ranks here)" in errors


@pytest.mark.parametrize("called", ["train.py", "./train.py", "{folder}/train.py"])
def test_a_job_is_called_by_its_script_in_the_folder_of_that_script_too(
    ask, tmp_path, monkeypatch, called
):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "other.py"):
        (tmp_path / name).write_text("import torch\n")
    time = by_rank(n1={"forward": 60.0}, n2={"forward": 60.0})
    two = ranks_of(1001, 1002)
    code, out, _, _ = ask(called.format(folder=tmp_path), "--no-look", frames=two, time=time)
    assert code == 0
    assert out.startswith("train.py, rank ")
    code, _, errors, _ = ask("other.py", "--no-look", frames=two, time=time)
    assert code == 3
    assert "no running job is called other.py. Choose one:" in errors


def test_jobs_of_another_host_are_listed_with_what_leads_there(ask, monkeypatch):
    told = [*ranks_of(1001, 1002), *views.trainer(1003, 0, 1, "ada", True, "run-2", "other.py")]
    rows = [views.trainer_row(n, 100, 0.5) for n in (1, 2, 3)]
    told.append(frames.Sample(1, int(views.END * 1e9), h=[views.host_row()], t=rows))
    shown = AskedSource(told)
    monkeypatch.setattr(one_trainer, "source_at", lambda *_: asyncio.sleep(0, shown))
    code, _, errors, _ = ask("ada@far", "--no-look", "--ssh-command", "ssh -p 2222")
    assert code == 3
    assert "(train.py, 2 ranks there)" in errors
    assert "gpuscope why ada@far:1001 --ssh-command 'ssh -p 2222'" in errors


def test_where_several_jobs_run_they_are_listed_to_choose_from(ask):
    two = [*ranks_of(1001), *views.trainer(1002, 0, 1, "ada", True, "run-2", "other.py")]
    rows = [views.trainer_row(n, 100, 0.5) for n in (1, 2)]
    two.append(frames.Sample(1, int(views.END * 1e9), h=[views.host_row()], t=rows))
    code, _, errors, asked = ask("--no-look", frames=two)
    assert code == 3
    assert "2 jobs run here. Choose one:" in errors
    assert "gpuscope why 1001    (train.py)" in errors
    assert "gpuscope why 1002    (other.py)" in errors
    assert asked == []
    code, _, errors, _ = ask("nobody", "--no-look", frames=two)
    assert "no recording, host or job is called nobody. Choose one:" in errors
    three = [*two[:-1], *views.trainer(1003, 0, 1, "ada", True, "run-3", "other.py")]
    rows = [views.trainer_row(n, 100, 0.5) for n in (1, 2, 3)]
    three.append(frames.Sample(1, int(views.END * 1e9), h=[views.host_row()], t=rows))
    code, _, errors, _ = ask("other.py", "--no-look", frames=three)
    assert code == 3
    assert "2 jobs are called other.py here. Choose one:" in errors
    assert "train.py" not in errors, "nobody asked for another job"


@pytest.mark.parametrize("name", ["nofile", "train.py", "./nofile", "logs/night.json"])
def test_a_name_of_nothing_is_a_file_that_is_missing_where_nothing_trains(ask, name):
    nobody = [views.hello(), views.host_def()]
    nobody.append(frames.Sample(0, int(views.END * 1e9), h=[views.host_row()]))
    code, _, errors, _ = ask(name, "--no-look", frames=nobody)
    assert code == 3
    why = "Why: there is no folder logs\n" if name.startswith("logs") else ""
    assert errors == f"gpuscope why: there is no file {name}\n{why}Next: check the path\n"


def test_a_path_of_nothing_is_a_missing_file_whatever_trains(ask):
    _, _, errors, asked = ask("logs/night", "--no-look", time=gives({"minutes": [minute()]}))
    assert errors.startswith(
        "gpuscope why: there is no file logs/night\nWhy: there is no folder logs\n"
    )
    assert asked == []


def test_where_nothing_trains_it_says_how_to_start(ask):
    nobody = [views.hello(), views.host_def()]
    nobody.append(frames.Sample(0, int(views.END * 1e9), h=[views.host_row()]))
    code, _, errors, _ = ask("--no-look", frames=nobody)
    assert code == 3
    assert "no trainer with a probe runs here" in errors
    assert "gpuscope run train.py" in errors


def test_a_trainer_that_ends_while_it_is_looked_at_is_told_with_what_it_had_said(ask):
    answers = [gives({"minutes": [minute()], "problem": ""}), fails("gone", "pid 1 has ended")]

    async def answer(*words: Any) -> dict[str, Any]:
        return await answers.pop(0)(*words)  # type: ignore[no-any-return]

    code, out, _, _ = ask(str(os.getpid()), time=answer)
    assert code == 1
    assert "it did not answer again: pid 1 has ended" in " ".join(out.split())


def test_a_process_of_another_user_is_said_to_be_theirs(ask, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    nobody = [views.hello(), views.host_def()]
    nobody.append(frames.Sample(0, int(views.END * 1e9), h=[views.host_row()]))
    code, _, errors, _ = ask("1", "--no-look", frames=nobody)
    assert code == 3
    assert "pid 1 belongs to root: its probe, if it has one, answers only that user" in errors
    assert "as root or root" not in errors
    assert "gpuscope why 1" in errors


def test_the_rank_whose_collectives_run_least_is_the_one_that_the_others_wait_for(ask):
    alike = {"forward": 20.0, "backward": 40.0}
    time = by_rank(n1=alike, n2=alike)

    async def look(args: Any, on_progress: Any, path: Any) -> dict[str, Any]:
        late = args["trainer"] == 302
        return {**LOOK, "communication": [0.004 if late else 0.06, 0.02, 4]}

    code, out, _, _ = ask(frames=ranks_of(1001, 1002), time=time, look=look)
    said = " ".join(out.split())
    assert code == 1
    assert said.startswith("train.py, rank 1, pid 1002")
    assert "GPU trace: the others wait 14.0 ms a step for rank 1." in said


# ── files ──


def test_a_recording_is_asked_like_a_trainer(capsys, tmp_path):
    path = tmp_path / "night.gsr"
    data = {
        "m": int(views.END * 1e9),
        "seconds": 60.0,
        "steps": 100,
        "looks": 300,
        "rows": "input 30.0 150|forward 30.0 150",
        "places": "input 30.0 data.py:12 __getitem__",
    }
    event = frames.Event(301, "time", int(views.END * 1e9), "", data)
    with RecordingWriter(path) as writer:
        for number, frame in enumerate([*half_idle(1001), event]):
            writer.write("node", number / 100, encode(frame))
    assert cli.main(["why", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "train.py, rank 0, pid 1001: 50 % of the time" in out
    assert "data.py:12 __getitem__" in out
    assert cli.main(["why", str(path), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["steps"] == 100


def test_the_doctor_judges_the_same_minutes_of_a_file(capsys, tmp_path):
    """A trainer tells of its last minute as it ends, and what it did there counts for both."""
    path = tmp_path / "night.gsr"
    told: list[tuple[float, frames.Frame]] = [(0.0, one) for one in half_idle(1001)]
    begin = int((views.END - 100) * 1e9)
    for at, began, seconds, waited in ((60, 0, 60.0, 54.0), (100, 60, 40.0, 6.0)):
        data = {
            "m": begin + began * 1_000_000_000,
            "seconds": seconds,
            "steps": 100,
            "looks": int(5 * seconds),
            "rows": f"input {waited} {5 * waited:.0f}|forward {seconds - waited} "
            f"{5 * (seconds - waited):.0f}",
        }
        told.append((at, frames.Event(301, "time", begin + at * 1_000_000_000, "", data)))
        sample = half_idle(1001)[-1]
        assert isinstance(sample, frames.Sample)
        sample.m = begin + at * 1_000_000_000
        told.append((at - 1.0, sample))
    told.append((100.1, frames.Event(301, "gone", int(views.END * 1e9), "exited with code 1")))
    with RecordingWriter(path) as writer:
        for at, frame in sorted(told, key=lambda one: one[0]):
            writer.write("node", at, encode(frame))
    cli.main(["why", str(path)])
    why_says = " ".join(capsys.readouterr().out.split())
    cli.main(["doctor", str(path)])
    doctor_says = " ".join(capsys.readouterr().out.split())
    assert "waits for input 60 % of the last 1 min 40 s" in why_says
    assert "waits for input 60 % of the last 1 min 40 s" in doctor_says


def of_cpu(share: float, busy: float = 50.0) -> list[frames.Frame]:
    """A trainer on a CPU of two cores that waits for input for this share of its last minute."""
    out = frames_of(os.getpid(), cuda=False)
    for frame in out:
        if isinstance(frame, frames.Def) and frame.host is not None:
            frame.host.cpu_count = 2
    assert isinstance(out[-1], frames.Sample)
    out[-1].h = [views.host_row(cpu_percent=busy)]
    rows = (
        f"input {60 * share} {300 * share:.0f}|forward {60 * (1 - share)} {300 * (1 - share):.0f}"
    )
    data = {"m": 100_000_000_000, "seconds": 60.0, "steps": 100, "looks": 300}
    number = 300 + os.getpid() % 100
    return [*out, frames.Event(number, "time", 160_000_000_000, "", {**data, "rows": rows})]


@pytest.mark.parametrize(
    ("share", "code", "severity"),
    [(0.02, 0, None), (0.18, 0, "info"), (0.28, 0, "info"), (0.45, 1, "warning")],
)
def test_it_warns_of_a_wait_for_input_exactly_where_the_doctor_does(ask, share, code, severity):
    seen = of_cpu(share)
    host, history = views.seen(seen)
    told = [one for one in live.examine(host, history).findings if one.cause == "live.input_bound"]
    late = fails("timeout", "no answer")
    status, out, _, _ = ask(str(os.getpid()), "--no-look", frames=seen, time=late)
    assert status == code == any(one.severity != "info" for one in told)
    assert [one.severity for one in told] == ([severity] if severity else [])
    assert ("Nothing to warn of; the most to gain" in out) == (severity == "info")
    assert (f"waits for input {share * 100:.0f} % of the last 1 min" in out) == bool(told)
    for one in told:
        assert one.title in out
        assert "num_workers=1, persistent_workers=True" in one.fixes[0].code
        assert one.fixes[0].code in out
        assert "pin_memory" not in out


def test_a_few_samples_do_not_say_that_there_is_nothing_to_warn_of(ask):
    seen = of_cpu(0.9)
    for frame in seen:
        if isinstance(frame, frames.Event) and frame.data is not None:
            frame.data |= {"seconds": 8.0, "looks": 40, "rows": "input 7.2 36|forward 0.8 4"}
    late = fails("timeout", "no answer")
    _, out, _, _ = ask(str(os.getpid()), "--no-look", frames=seen, time=late)
    assert "90 % of the time" in out
    assert "Nothing to warn of" not in out


def test_a_rank_that_became_a_tenth_slower_is_named_with_since_when(capsys, tmp_path):
    path = tmp_path / "job.gsr"
    told = paces.job(minutes=5)
    told.sort(key=lambda one: one.m if isinstance(one, (frames.Sample, frames.Event)) else 0)
    with RecordingWriter(path) as writer:
        for number, frame in enumerate(told):
            writer.write("node", number / 100, encode(frame))
    assert cli.main(["why", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "rank 3, pid" in out.split(":")[0]
    assert re.search(
        r"The others wait for rank 3, [\d.]+ ms a step \(\d+ %\) since \d+:\d+: its own work", out
    )
    assert cli.main(["why", str(path), "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    slow = document["straggler"]
    assert slow["rank"] == document["rank"] == 3
    assert slow["own_step_seconds"] / slow["usual_own_step_seconds"] == pytest.approx(1.1, abs=0.02)
    assert slow["since"] > 0
    assert document["odd_rank"] is None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("gone.box", None, "there is no file"),
        ("empty.box", b"", "is missing"),
        ("noise.gsr", b"\x00" * 5000, "is missing"),
    ],
)
def test_a_file_that_is_none_is_said_so(capsys, tmp_path, name, content, said):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    assert cli.main(["why", str(path)]) == 3
    errors = capsys.readouterr().err
    assert said in errors
    assert "Next: " in errors


def test_where_nobody_looked_the_readings_of_the_cards_have_a_say(capsys):
    path = str(SHIPPED / "h200x2-ddp.gsr")
    assert cli.main(["why", path]) == 1
    out = capsys.readouterr().out
    first = " ".join(out.partition("\n\n")[0].split())
    assert first.startswith("ddp_train.py, rank ")
    assert "99 % of the time is forward, backward and optimizer (263 steps, 76.4 ms each" in first
    worst = "Tensor cores idle on GPU 0, 1: matmuls likely in FP32; a fix saves at most 87 % of"
    assert 0 < first.index(worst) < first.index("99 % of the time"), "first what is wrong"
    # of the rows of the table, so that a reader can add them up
    assert "Seen: forward and backward take 93 % of each step of rank 1 (stack)" in out
    assert re.search(r"^backward pass +81 %", out, re.MULTILINE)
    assert re.search(r"^forward pass +12 %", out, re.MULTILINE)
    assert "1. Tensor cores idle on GPU 0, 1: matmuls likely in FP32" in out
    assert "Fix: Compute forward and loss in bf16" in out
    assert cli.main(["why", "--json", path]) == 1
    (found,) = json.loads(capsys.readouterr().out)["readings"]
    assert (found["cause"], found["severity"]) == ("live.tensor_idle", "warning")
    assert sorted(found) == sorted(keys("why", "each of `readings`"))


def test_a_recording_may_know_no_time_and_says_what_else_to_ask(capsys):
    path = REDACTED / "h200-lab.gsr"
    assert cli.main(["why", str(path)]) == 3
    errors = capsys.readouterr().err
    assert "nothing in it says where the time went" in errors
    assert "gpuscope doctor" in errors


def test_a_recording_without_samples_shows_the_parts_of_a_step_that_it_has(capsys, tmp_path):
    path = str(without_samples(REDACTED.parent / "slow-input-cpu.gsr", tmp_path / "parts.gsr"))
    assert cli.main(["why", path]) == 1, "the doctor would warn of this wait for input"
    out = capsys.readouterr().out
    assert "92 % of a step is input, by the mean of its last 32 steps" in " ".join(out.split())
    rows = dict(re.findall(r"^(\w+) +([\d.]+) %", out, re.MULTILINE))
    assert float(rows.pop("step")) == 100
    assert sum(map(float, rows.values())) == pytest.approx(100, abs=1)
    assert "1. script-1 waits for input 92 % of the last 32 steps" in out
    assert cli.main(["why", "--json", path]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["rows"] == []
    assert sorted(document["parts"][0]) == sorted(keys("why", "each of `parts`"))
    assert sum(part["seconds"] for part in document["parts"]) == pytest.approx(0.0984, abs=1e-4)


def test_a_recorded_hang_is_the_answer_and_nothing_is_promised_of_faster_steps(capsys):
    path = SHIPPED / "h200x2-stall.gsr"
    assert cli.main(["why", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("stall_train.py, rank 1, pid ")
    assert ": rank 1 is stuck at stall_train.py:34 in __getitem__; rank 0 waits for it" in out
    assert "The times below are the mean of its last 32 steps." in out
    assert "input 2 % 560 µs" in out, "as on the Time tab: two samples before the hang tell nothing"
    assert "57 %" not in out
    assert f"gpuscope doctor {path}" in out
    for word in ("goes into", "shorter", "could be", "The others wait", "Gain"):
        assert word not in out, word


def test_a_hang_that_is_over_is_a_line_of_its_own_and_no_habit(capsys, tmp_path):
    path = tmp_path / "after.gsr"
    told = jobs.ranks()
    ids = [one.id for one in told if isinstance(one, frames.Def) and one.trainer is not None]
    for rank, entity in enumerate(ids):
        for number in range(5):
            row = "input" if rank == 3 else "communication"
            event = clocks.minute(entity, number, 5, 64, **({row: 9.0} if number == 3 else {}))
            if number == 3:
                assert event.data is not None
                event.data |= {"long": f"{row} 54.0 261 data.py:31 __getitem__", "long_steps": 1}
                event.data |= {"long_m": event.data["m"], "long_seconds": 400.0}
            told.append(event)
    with RecordingWriter(path) as writer:
        for number, frame in enumerate(told):
            writer.write("node", number / 100, encode(frame))
    cli.main(["why", "--json", str(path)])
    (last,) = (one for one in json.loads(capsys.readouterr().out)["trainers"] if one["rank"] == 3)
    assert [one["seconds"] for one in last["left_out"]] == [400.0]
    assert last["steps"] == 5 * 64 - 1
    assert last["window_seconds"] == pytest.approx(246.0, abs=0.1)
    shares = {row["row"]: row["share"] for row in last["rows"]}
    assert shares["input"] < 0.15
    cli.main(["why", str(path)])
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"One step of 6 min 40 s \(\S+\) is left out: it is not typical\.", out)
    assert "The others wait" not in out


def hang(path: Path, minutes: int) -> None:
    """Record minutes of a training, in the last of which rank 3 got stuck."""
    told = jobs.ranks(stalled=True)
    ids = [one.id for one in told if isinstance(one, frames.Def) and one.trainer is not None]
    for rank, entity in enumerate(ids):
        for number in range(minutes):
            more = {"input": 9.0} if number == minutes - 1 and rank == 3 else {}
            told.append(clocks.minute(entity, number, minutes, 64, **more))
    with RecordingWriter(path) as writer:
        for number, frame in enumerate(told):
            writer.write("node", number / 100, encode(frame))


def test_the_times_before_a_hang_are_of_the_steps_before(capsys, tmp_path):
    path = tmp_path / "hang.gsr"
    hang(path, 10)
    assert cli.main(["why", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "rank 3, pid" in out.split(":")[0]
    assert "Stalled for 47 s: rank 3 is stuck at data.py:88" in out
    assert "The times below are of the steps before." in out
    assert "320 steps in 5 min 00 s" in out, "without the minute of the hang"
    assert "Gain" not in out


def test_where_the_hang_is_in_all_that_was_sampled_the_last_steps_are_told(capsys, tmp_path):
    path = tmp_path / "hang.gsr"
    hang(path, 1)
    assert cli.main(["why", str(path)]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "The times below are the mean of its last 32 steps." in out
    assert "step 100 % 500 ms" in out
    assert "wall clock" not in out


# ── real processes ──


def verb(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", "why", *words]
    root = Path(__file__).parents[2]
    return subprocess.run(command, capture_output=True, text=True, timeout=90, cwd=root)


WATCHED = TRAINING + "import gpuscope\ngpuscope.watch(model=model, optimizer=optimizer)\n"


@pytest.mark.slow
def test_a_real_trainer_and_its_box_after_it_was_killed(tmp_path):
    more = {"GPUSCOPE_BLACKBOX_DIR": str(tmp_path)}
    code = (
        "from gpuscope.probe import time_ledger\ntime_ledger.SENT_EARLY = (1.0, 2.0, 3.0)\n"
        "time_ledger.USUAL_SECONDS = 0.02\n" + WATCHED + "train(100_000, 0.02)"
    )
    with trainer(code, fork=True, **more) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        done = verb(str(process.pid), "--json")
        assert done.returncode in (0, 1), done.stderr
        live = json.loads(done.stdout)
        wait_for(
            lambda: [box for box in tmp_path.glob("*.box") if b'"e":"time"' in box.read_bytes()],
            60,
            "a minute in the box",
        )
    assert live["steps"] > 0
    assert live["useful_work"]["model_flops"] > 0
    assert "runs on the CPU" in live["useful_work"]["problem"]
    assert sum(row["seconds"] for row in live["rows"]) == pytest.approx(
        live["window_seconds"], abs=0.001
    )
    (box,) = tmp_path.glob("*.box")
    told = json.loads(verb(str(box), "--json").stdout)
    assert told["pid"] == live["pid"]
    assert told["steps"] > 0
    assert {row["row"] for row in told["rows"]} & {"forward", "backward", "optimizer", "other"}


@pytest.mark.slow
def test_what_a_trainer_without_cuda_remembers_of_a_gpu_counts_nowhere():
    """What it remembers is put into it; with CUDA it would be a finding."""
    code = (
        "import gc, time\nfrom gpuscope.probe.time_ledger import TimeLedger\nfound = []\n"
        "while not found:\n"
        "    found = [one for one in gc.get_objects() if isinstance(one, TimeLedger)]\n"
        "    time.sleep(0.05)\n"
        f"found[0].look = {LOOK!r}\n"
    )
    with trainer(WATCHED + code + "train(100_000, 0.02)", fork=True) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        told = json.loads(verb(str(process.pid), "--json").stdout)
        command = [sys.executable, "-m", "gpuscope", "doctor", str(process.pid), "--json"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=90, cwd=Path(__file__).parents[2]
        )
    assert told["look"] == {"problem": "the training does not use CUDA"}
    assert "read" not in {one["row"] for one in told["causes"]}
    found = json.loads(done.stdout)["findings"]
    assert not [one for one in found if str(one["cause"]).startswith("look.")]


@pytest.mark.slow
def test_a_real_trainer_that_dies_while_it_is_looked_at_is_told_as_far_as_it_is_known():
    with trainer(WATCHED + "train(100_000, 0.02)", fork=True) as process:
        wait_for(lambda: sockets(process.pid), 60, "a socket")
        asking = subprocess.Popen(
            [sys.executable, "-m", "gpuscope", "why", str(process.pid)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        time.sleep(3.5)
        process.kill()
        out, errors = asking.communicate(timeout=90)
    said = " ".join((out + errors).split())
    assert "Traceback" not in said
    assert asking.returncode in (0, 1, 3)
    assert "has ended" in said or "did not answer again" in said


@pytest.mark.slow
def test_the_box_of_a_training_that_died_before_its_first_step_says_so(tmp_path):
    with trainer(WATCHED + "time.sleep(1000)", fork=True, GPUSCOPE_BLACKBOX_DIR=str(tmp_path)) as t:
        wait_for(lambda: sockets(t.pid), 60, "a socket")
        wait_for(lambda: list(tmp_path.glob("*.box")), 60, "a box")
    (box,) = tmp_path.glob("*.box")
    done = verb(str(box))
    assert done.returncode == 3
    assert "nothing in it says where the time went" in done.stderr
    assert "the training ended before its first optimizer step" in done.stderr
    assert f"gpuscope doctor {box}" in done.stderr


def test_a_probe_is_waited_for_that_has_not_started_yet_or_does_not_answer(
    ask, monkeypatch, tmp_path
):
    monkeypatch.setattr(trainers_of, "NONE_SECONDS", 0.0)
    run = [sys.executable, "-m", "gpuscope", "run", "--no-doctor", "--", "sleep", "1000"]
    begun = subprocess.Popen(run, stderr=subprocess.DEVNULL)
    try:
        command = Path(f"/proc/{begun.pid}/cmdline")
        wait_for(lambda: b"sleep\0" in command.read_bytes().split(b"--\0")[0], 60, "the program")
        begin = time.monotonic()
        code, _, errors, _ = ask(str(begun.pid), frames=frames_of(os.getpid()))
        assert (code, time.monotonic() - begin >= 0.3) == (3, True)
        assert "its probe has not started yet" in errors
        assert f"gpuscope why {begun.pid}    again, once it trains; or gpuscope attach" in errors
        monkeypatch.setattr(trainers_of, "FIND_SECONDS", 60.0)
        code, _, errors, _ = ask(str(begun.pid), "--no-look", frames=frames_of(os.getpid()))
        assert time.monotonic() - begin < 60, "an answer at once waits for no first step"
        assert "its probe has not started yet" in errors
        monkeypatch.setattr(trainers_of, "FIND_SECONDS", 0.3)
        monkeypatch.setattr(rendezvous, "BASE", str(tmp_path))
        place = Path(rendezvous.directory())
        place.mkdir()
        (place / f"{begun.pid}-1.sock").touch()
        _, _, errors, _ = ask(str(begun.pid), frames=frames_of(os.getpid()))
        assert f"the probe in pid {begun.pid} has not answered within 8 s" in errors
    finally:
        begun.kill()
        begun.wait()


@pytest.mark.slow
def test_processes_that_cannot_be_asked_are_told_apart():
    with trainer("import time; time.sleep(1000)") as plain:
        done = verb(str(plain.pid), "--no-look")
        assert done.returncode == 3
        assert f"there is no probe in pid {plain.pid}" in done.stderr
        assert "gpuscope run train.py" in done.stderr
    with trainer(WATCHED + "time.sleep(1000)", fork=True) as idle:
        wait_for(lambda: sockets(idle.pid), 60, "a socket")
        done = verb(str(idle.pid), "--no-look")
        assert done.returncode == 3
        assert "no optimizer step was seen yet" in done.stderr
        assert "again, after the first steps" in done.stderr
    done = verb(str(idle.pid), "--no-look")
    assert done.returncode == 3
    assert f"no process has pid {idle.pid} here" in done.stderr


def test_few_samples_give_no_shares(ask):
    few = {**minute(), "looks": 2, "rows": [["forward", 9.0, 1], ["backward", 9.0, 1]]}
    _, out, _, _ = ask(str(os.getpid()), "--no-look", time=gives({"minutes": [few], "problem": ""}))
    assert "Too few samples" in out
    assert "%" not in out


def test_what_the_gpu_works_beside_costs_the_same_here_as_in_the_doctor(ask):
    value = minute() | {"rows": [["read", 40.0, 200], ["forward", 20.0, 100]]}
    seen = half_idle(os.getpid())
    code, out, _, _ = ask(
        str(os.getpid()),
        *("--no-look", "--json"),
        frames=seen,
        time=gives({"minutes": [value], "problem": ""}),
    )
    (one,) = json.loads(out)["causes"]
    assert (one["cause"], one["severity"], code) == ("live.reads", "warning", 1)
    assert one["saves_share_at_most"] == pytest.approx(0.6), "its GPU is idle for no more"


@pytest.mark.parametrize("there", [True, False])
def test_a_process_that_another_host_does_not_have_is_said_as_soon_as_that_host_answers(
    there, monkeypatch
):
    """A probe in one that it has may still be found."""
    monkeypatch.setattr(trainers_of, "FIND_THERE_SECONDS", 2.0)
    monkeypatch.setattr(trainers_of, "ASK_SECONDS", 0.1)
    rows = [{"pid": 4194303}] if there else []
    source = AskedSource(frames_of(os.getpid()), inject=gives({"processes": rows}))
    place = Target("ssh", "ada@node:4194303", host="ada@node", pid=4194303)

    async def find() -> None:
        async with watched(source) as host:
            await trainers_of.trainers_of(host, place, "why")

    begin = time.monotonic()
    with pytest.raises(UserError) as refused:
        asyncio.run(find())
    assert (time.monotonic() - begin < 1.5) != there
    assert ("no process has pid 4194303 on" in str(refused.value)) != there
    assert ("there is no probe in pid 4194303" in str(refused.value)) == there
    assert [name for name, _ in source.asked] == ["inject"]
