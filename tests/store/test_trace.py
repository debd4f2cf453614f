"""The table of a profile agrees with torch's own sums on a real trace.

It is exact on a made-up one, and safe with any bytes.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpuscope.store import trace
from gpuscope.store.trace import TraceError, decode_table, read_events, read_table, tabulate


def event(
    name: str, start: float, length: float, kind: str = "cpu_op", **more: Any
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": kind,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": start,
        "dur": length,
        **more,
    }


def kernel(
    name: str, start: float, length: float, device: int = 0, kind: str = "kernel"
) -> dict[str, Any]:
    return event(name, start, length, kind, args={"device": device})


def row(table: trace.Table, name: str) -> trace.TraceRow:
    return next(row for row in table.rows if row.name == name)


# ── sums ──


def test_self_time_is_without_what_was_called_in_turn():
    table = tabulate(
        [event("aten::linear", 0, 100), event("aten::t", 10, 20), event("aten::addmm", 30, 60)]
    )
    linear = row(table, "aten::linear")
    assert linear.self_seconds == pytest.approx(20e-6)
    assert linear.total_seconds == pytest.approx(100e-6)
    assert row(table, "aten::addmm").self_seconds == pytest.approx(60e-6)


def test_a_call_inside_one_of_the_same_name_counts_once_in_the_total():
    table = tabulate([event("aten::to", 0, 100), event("aten::to", 10, 50)])
    assert row(table, "aten::to").total_seconds == pytest.approx(100e-6)
    assert row(table, "aten::to").self_seconds == pytest.approx(100e-6)
    assert row(table, "aten::to").calls == 2


def test_threads_do_not_nest_in_each_other():
    table = tabulate([event("a::x", 0, 100), {**event("a::y", 10, 50), "tid": 2}])
    assert row(table, "a::x").self_seconds == pytest.approx(100e-6)


def test_a_device_line_is_a_union_that_adds_up():
    table = tabulate(
        [
            kernel("gemm", 0, 100),
            kernel("gemm", 50, 100),  # another stream: until 150
            # until 200, half of it beside the gemm
            kernel("ncclDevKernel_AllReduce_Sum_f32", 100, 100),
            kernel("Memcpy HtoD", 190, 30, kind="gpu_memcpy"),  # until 220
            kernel("Memset", 300, 10, kind="gpu_memset"),
            kernel("gemm", 500, 10, device=1),
        ]
    )
    first, second = (line for line in table.lines if line.name.startswith("GPU"))
    assert (first.name, second.name) == ("GPU 0", "GPU 1")
    microseconds = {kind: round(seconds * 1e6) for kind, seconds in first.shares.items()}
    assert microseconds == {"kernel": 150, "collective": 50, "memcpy": 20, "memset": 10, "idle": 80}
    assert sum(first.shares.values()) == pytest.approx(first.span_seconds)
    assert row(table, "gemm").calls == 3
    assert row(table, "ncclDevKernel_AllReduce_Sum_f32").kind == "collective"


def test_steps_by_the_marks_of_the_profiler_else_by_the_optimizer():
    marks = [event(f"ProfilerStep#{n}", 100 * n, 90, "user_annotation") for n in range(3)]
    assert tabulate([*marks, event("aten::mm", 5, 5)]).steps == pytest.approx([90e-6] * 3)
    ends = [event("Optimizer.step#AdamW.step", 100 * n, 10, "user_annotation") for n in range(4)]
    assert tabulate(ends).steps == pytest.approx([100e-6] * 3)


@pytest.mark.slow
def test_it_agrees_with_torch_on_a_real_trace(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile

    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 32)).pow(2).mean().backward()
            optimizer.step()
    path = tmp_path / "trace.json"
    profiled.export_chrome_trace(str(path))
    table = read_table(str(path))
    theirs = {row.key: row for row in profiled.key_averages()}
    for name in (
        "aten::addmm",
        "aten::mm",
        "aten::relu",
        "autograd::engine::evaluate_function: AddmmBackward0",
    ):
        ours = row(table, name)
        assert ours.calls == theirs[name].count
        assert ours.self_seconds * 1e6 == pytest.approx(
            theirs[name].self_cpu_time_total, rel=0.01, abs=2
        )
        assert ours.total_seconds * 1e6 == pytest.approx(
            theirs[name].cpu_time_total, rel=0.01, abs=2
        )
    assert len(table.steps) == 3
    (line,) = table.lines
    assert sum(line.shares.values()) == pytest.approx(line.span_seconds)


# ── reading ──


def wrapped(events: list[Any], **more: Any) -> str:
    return json.dumps({"schemaVersion": 1, **more, "traceEvents": events, "traceName": "x"})


def test_events_are_read_one_by_one_however_they_are_cut(monkeypatch):
    events = [event(f"op::{n}", n, 1, args={"nested": [n, {"x": "}]"}]}) for n in range(500)]
    for size in (7, 64, 1000, 1 << 20):
        monkeypatch.setattr(trace, "CHUNK_CHARS", size)
        assert list(read_events(io.StringIO(wrapped(events)))) == events


def test_a_bare_list_is_a_trace_too():
    assert len(list(read_events(io.StringIO(json.dumps([event("a::b", 0, 1)]))))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not json",
        "{}",
        '{"traceEvents": 3}',
        '{"traceEvents": [',
        '{"traceEvents": [{"ph":',
        "[" * 100_000,
        '{"traceEvents": [' + "[" * 100_000,
        '{"traceEvents": [{"a": tru}]}',
        "\x00" * 100,
    ],
)
def test_what_is_no_trace_is_refused_in_words(text, tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(text)
    with pytest.raises(TraceError):
        read_table(str(path))


def test_odd_events_are_left_out():
    odd = [
        None,
        3,
        [],
        {"ph": "X"},
        event("x", -1, 5),
        event("x", float("nan"), 5),
        event("x", 0, float("inf")),
        event("x", True, 5),
        event(7, 0, 5),
        {**event("x", 0, 5), "cat": None},
        {**event("x", 0, 5), "ph": "B"},
    ]
    table = tabulate([*odd, event("aten::mm", 0, 5)])
    assert table.events == 1
    assert [row.name for row in table.rows] == ["aten::mm"]
    with pytest.raises(TraceError, match="no timed events"):
        tabulate(odd)


def test_names_are_cleaned_and_bounded(monkeypatch):
    monkeypatch.setattr(trace, "MAX_NAMES", 10)
    table = tabulate([event(f"op::{n}\x1b]52;c;A\x07" + "x" * 1000, n, 1) for n in range(50)])
    assert len(table.rows) <= 11
    assert sum(row.calls for row in table.rows) == 50
    assert all(
        len(row.name) <= trace.MAX_NAME_CHARS and row.name.isprintable() for row in table.rows
    )
    assert "names" in table.cut


def test_a_deep_pile_of_calls_ends():
    events = [event(f"op::{n % 3}", n, 10_000 - 2 * n) for n in range(2000)]
    assert tabulate(events).events == 2000


def test_the_child_prints_the_table_or_why_not(tmp_path):
    path = tmp_path / "trace.json"
    path.write_text(wrapped([event("aten::mm", 0, 5), kernel("gemm", 3, 4)]))
    for name, wanted in ((path, "aten::mm"), (tmp_path / "missing.json", "cannot read it")):
        done = subprocess.run(
            [sys.executable, "-m", "gpuscope.store.trace", str(name)],
            capture_output=True,
            timeout=60,
        )
        assert wanted in done.stdout.decode()
        if wanted == "aten::mm":
            assert decode_table(done.stdout) == read_table(str(path))
        else:
            with pytest.raises(TraceError, match="cannot read it"):
                decode_table(done.stdout)


@pytest.mark.parametrize(
    "answer",
    [b"", b"{", b"[]", b"3", b'{"rows": 3}', b'{"rows": [{"x": 1}], "lines": []}', b"\xff"],
)
def test_any_answer_of_the_child_is_a_table_or_refused(answer):
    with pytest.raises(TraceError):
        decode_table(answer)


def test_a_folder_is_no_trace(tmp_path: Path):
    with pytest.raises(OSError, match="directory"):
        read_table(str(tmp_path))
