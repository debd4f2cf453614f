"""What is asked of real CUDA trainings. Run with ``pytest -m gpu tests/probe``."""

from __future__ import annotations

import collections
import json
import pickle
import time

import pytest

from gpuscope.wire.frames import Result
from tests.fakes.asking import KEYBOARD, ask, tell
from tests.fakes.probe_client import PLACE_APART, TRAINING, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


def on(device):
    code = TRAINING.replace(
        "torch.nn.Linear(32, 4))", f"torch.nn.Linear(32, 4)).to({device!r})"
    ).replace("torch.randn(8, 16)", f"torch.randn(8, 16, device={device!r})")
    watch = "import gpuscope; gpuscope.watch(model=model, optimizer=optimizer)\n"
    return code + PLACE_APART + watch + KEYBOARD


BIG = "big = torch.empty(512 << 20, dtype=torch.uint8, device='cuda:0'); del big\n"
"""A peak that nothing later reaches: who resets peaks is found out."""


@pytest.fixture(scope="module")
def training():
    with trainer(on("cuda:0") + BIG + "train(600)") as process:
        yield process, wait_for(lambda: sockets(process.pid), 120, "a socket")[0]


@pytest.fixture
def reader(training):
    made = Reader(training[1], 60.0)
    made.until(lambda: (made.value("step") or 0) > 50, 60)
    yield made
    made.close()


def peaks(process):
    return tell(
        process, "print(torch.cuda.max_memory_allocated(0), torch.cuda.max_memory_reserved(0))"
    )


def test_statistics_have_torchs_keys(training, reader):
    before = peaks(training[0])
    answer, _, _ = ask(reader, "statistics", {"device": 0})
    assert isinstance(answer, Result), answer
    (keys,) = tell(
        training[0], "import json; print(json.dumps(sorted(torch.cuda.memory_stats(0))))"
    )
    assert sorted(answer.value["statistics"]) == json.loads(keys)
    assert (
        answer.value["statistics"]["allocated_bytes.all.peak"]
        == int(before[0].split()[0])
        >= 512 << 20
    )
    assert answer.value["backend"] == "native"
    assert answer.value["seconds"] < 0.05
    assert answer.value["host_statistics"] or answer.value["host_reason"]
    assert peaks(training[0]) == before


def test_history_has_a_price_and_a_snapshot_opens_in_torchs_viewer(training, reader):
    process = training[0]
    before = peaks(process)
    trial, _, _ = ask(reader, "history", {"entries": 20000, "trial_steps": 40}, 120.0)
    assert isinstance(trial, Result), trial
    price = trial.value
    assert (price["enabled"], price["entries"], price["steps"]) == (False, 20000, 40)
    assert price["cost_low_percent"] <= price["cost_percent"] <= price["cost_high_percent"]
    assert 0 < price["baseline_step_seconds"] < 1
    assert tell(process, "print(torch._C._cuda_isHistoryEnabled())") == ["False"]

    switched, _, _ = ask(reader, "history", {"entries": 20000}, 30.0, 2)
    assert switched.value["enabled"], switched
    first = reader.value("step")
    reader.until(lambda: reader.value("step") > first + 100, 60)
    tell(process, "for _ in range(12000): torch.empty(600, device='cuda:0')")
    answer, blob, _ = ask(reader, "snapshot", {}, 120.0, 3)
    assert isinstance(answer, Result), answer
    off, _, _ = ask(reader, "history", {"entries": 0}, 30.0, 4)
    assert not off.value["enabled"]
    reserved, _, _ = ask(reader, "statistics", {"device": 0}, 30.0, 5)

    snapshot = pickle.loads(blob)
    assert answer.value["bytes"] == len(blob)
    assert answer.value["history"] is True
    assert 15000 <= answer.value["entries"] <= 20001
    assert answer.value["entries"] == sum(map(len, snapshot["device_traces"]))
    total = sum(segment["total_size"] for segment in snapshot["segments"])
    assert total == reserved.value["statistics"]["reserved_bytes.all.current"]
    files = {
        f["filename"]
        for trace in snapshot["device_traces"]
        for entry in trace
        for f in entry.get("frames", ())
    }
    assert "<string>" in files, f"no Python frames: {sorted(files)[:5]}"
    from torch.cuda import _memory_viz

    assert "segments:" in _memory_viz.segsum(snapshot)
    assert (
        "<html" in _memory_viz.trace_plot(snapshot).lower()
        or "<script" in _memory_viz.trace_plot(snapshot).lower()
    )
    assert peaks(process) == before


def test_a_snapshot_of_120k_entries_stalls_others_for_little_beyond_torchs_part(training, reader):
    process = training[0]
    on_, _, _ = ask(reader, "history", {"entries": 120000}, 30.0)
    assert on_.value["enabled"], on_
    tell(process, "for _ in range(60000): torch.empty(600, device='cuda:0')")
    tell(
        process,
        "gaps = []\nticking = True\n"
        "def ticker():\n"
        "    last = time.perf_counter()\n"
        "    while ticking:\n"
        "        time.sleep(0.0005)\n"
        "        now = time.perf_counter(); gaps.append(now - last); last = now\n"
        "threading.Thread(target=ticker, daemon=True).start()",
    )
    answer, _, _ = ask(reader, "snapshot", {}, 120.0, 2)
    (worst,) = tell(process, "ticking = False; print(max(gaps))")
    off, _, _ = ask(reader, "history", {"entries": 0}, 30.0, 3)
    assert isinstance(answer, Result), answer
    assert isinstance(off, Result), off
    assert answer.value["entries"] >= 100_000
    assert float(worst) <= answer.value["snapshot_seconds"] + 0.1, answer.value


def test_a_profile_has_the_kernels(training, reader):
    process = training[0]
    before = peaks(process)
    answer, blob, _ = ask(reader, "profile", {"steps": 5}, 240.0)
    assert isinstance(answer, Result), answer
    assert answer.value["stopped"] == "steps", answer
    assert answer.value["cuda"] is True
    events = json.loads(blob)["traceEvents"]
    kinds = collections.Counter(event.get("cat") for event in events)
    assert kinds["kernel"] > 0, kinds
    assert {e["tid"] for e in events if e["name"] == "aten::addmm"} == {process.pid}
    step = reader.value("step")
    reader.until(lambda: reader.value("step") > step + 10, 60)
    assert peaks(process) == before


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_profile_of_the_second_card_opens_no_context_on_the_first():
    with trainer(on("cuda:1") + "train(300)") as process:
        made = Reader(wait_for(lambda: sockets(process.pid), 120, "a socket")[0], 60.0)
        made.until(lambda: (made.value("step") or 0) > 20, 60)
        context = "print([torch._C._cuda_hasPrimaryContext(n) for n in range(2)])"
        assert tell(process, context) == ["[False, True]"]
        answer, blob, _ = ask(made, "profile", {"steps": 3}, 240.0)
        assert isinstance(answer, Result), answer
        time.sleep(0.1)
        assert tell(process, context) == ["[False, True]"]
        kinds = collections.Counter(event.get("cat") for event in json.loads(blob)["traceEvents"])
        assert kinds["kernel"] > 0, kinds
        made.close()
