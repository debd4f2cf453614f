"""Which two runs of the Lab are compared, and how their comparison is called."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpuscope.lab.comparison_row import ComparisonRow
from gpuscope.lab.config import LabConfig
from gpuscope.lab.metrics import Started
from gpuscope.text import styled
from gpuscope.tui.lab.compare import comparison_lines, table_lines
from gpuscope.tui.lab.pair import ComparedRuns, curves, curves_over_time, not_drawn
from gpuscope.tui.runs.run import RunView
from gpuscope.tui.theme import UNICODE
from tests.tui import lab_data


def test_equal_losses_are_one_curve_and_say_so(tmp_path):
    one, other = LabConfig(model="mlp-tiny"), LabConfig(model="mlp-tiny", amp="bf16")
    pair = ComparedRuns()
    documents = [lab_data.document(config, 100.0) for config in (one, other)]
    pair.follow(lab_data.ledger(tmp_path / "l.sqlite", *documents)[::-1], None)
    (series,), _ = curves(pair, None)
    assert series.label == "A = B"
    assert pair.title() == "A #1 · B #2"


def test_runs_on_unlike_devices_are_called_not_comparable(tmp_path):
    config = LabConfig(model="gpt")
    cpu = lab_data.document(config, 100.0) | {
        "preset": "gpt-tiny",
        "device": "cpu",
        "device_name": "i9",
    }
    gpu = cpu | {"preset": "gpt-small", "device": "cuda", "device_name": "NVIDIA H200"}
    pair = ComparedRuns()
    pair.follow(lab_data.ledger(tmp_path / "l.sqlite", cpu, gpu)[::-1], None)
    assert not pair.complete, "nobody has asked for it"
    pair.mark("a", 1)
    pair.mark("b", 2)
    assert pair.title().endswith("not comparable: gpt-tiny on CPU, gpt-small on H200")
    found = pair.comparison()
    assert found is not None
    lines = comparison_lines(found, 74, 30, UNICODE)
    text = "\n".join("".join(piece for piece, _ in line) for line in lines)
    assert text.startswith("≠ model gpt-tiny → gpt-small")
    assert "better" not in text
    assert "worse" not in text


PLAIN = LabConfig(model="mlp-tiny", device="cpu", steps=100)
ABORTED, FAILED = {"steps": 12}, {"error": {"what": "It was killed.", "why": "a signal"}}


def pair_of(path: Path, *runs: tuple[LabConfig, dict[str, Any]]) -> ComparedRuns:
    """Return what is chosen among these runs, the oldest first, which have the numbers from 1."""
    documents = [lab_data.document(config, 100.0, **more) for config, more in runs]
    for document, (config, _) in zip(documents, runs, strict=True):
        document["config"]["steps"] = config.steps
    pair = ComparedRuns()
    pair.follow(lab_data.ledger(path / "l.sqlite", *documents)[::-1], None)
    return pair


def lines_of(pair: ComparedRuns, rows: int = 30) -> list[str]:
    found = pair.comparison()
    assert found is not None
    lines = comparison_lines(found, 100, rows, UNICODE)
    return ["".join(piece for piece, _ in line) for line in lines]


def test_aborted_failed_and_identical_runs_are_passed_over(tmp_path):
    bf16 = replace(PLAIN, amp="bf16")
    runs = [(PLAIN, {}), (bf16, {}), (bf16, ABORTED), (PLAIN, FAILED), (bf16, {})]
    pair = pair_of(tmp_path, *runs)
    assert pair.title() == "A #1 · B #5"
    assert lines_of(pair)[0] == "≠ amp off → bf16"
    assert not pair.lacking


def test_one_more_run_of_equal_settings_leaves_a_pair_that_differs(tmp_path):
    longer = replace(PLAIN, steps=50)
    pair = pair_of(tmp_path, (replace(PLAIN, amp="bf16"), {}), (PLAIN, {}), (longer, {}))
    assert pair.title() == "A #1 · B #3", "runs 2 and 3 differ in their length alone"
    same = replace(PLAIN, device="auto", model="mlp")  # what it stands for is in the document
    (tmp_path / "other").mkdir()
    pair = pair_of(tmp_path / "other", (PLAIN, {}), (same, {"preset": "mlp-tiny"}))
    assert not pair.complete, "a name that stands for the same is no other setting"


def test_what_a_comparison_lacks_is_one_sentence(tmp_path):
    two = "Two finished runs that differ in a setting are compared here"
    assert ComparedRuns().lacking == f"{two}; so far there is none."
    for number, (runs, told) in enumerate(
        (
            ([(PLAIN, {}), (PLAIN, ABORTED)], f"{two}; so far there is one."),
            ([(PLAIN, FAILED)], f"{two}; so far there is none."),
            (
                [(PLAIN, {}), (PLAIN, {})],
                f"{two}; the 2 finished runs so far all have the same settings.",
            ),
            (
                [(PLAIN, {}), (replace(PLAIN, model="gpt-tiny"), {})],
                f"{two}, of one model on one device; no two of the 2 so far are such runs.",
            ),
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        pair = pair_of(folder, *runs)
        assert not pair.complete
        assert pair.lacking == told


def test_an_aborted_run_that_is_chosen_by_hand_says_after_how_many_steps(tmp_path):
    bf16 = replace(PLAIN, amp="bf16")
    pair = pair_of(tmp_path, (PLAIN, {}), (bf16, ABORTED), (bf16, FAILED))
    pair.mark("b", 2)
    assert pair.title() == "A #1 · B #2"
    assert "◆ B was aborted after 12 of 100 steps" in lines_of(pair, rows=5)
    pair.mark("b", 3)
    assert "◆ B failed after 100 steps: It was killed: a signal" in lines_of(pair, rows=5)


def test_a_run_without_an_end_is_whole_once_its_speed_is_known(tmp_path):
    open_end = replace(PLAIN, steps=None)
    early = {"steps": 2, "samples_per_second": None, "step_seconds": None}
    pair = pair_of(tmp_path, (open_end, {}), (replace(open_end, amp="bf16"), early))
    assert pair.lacking.endswith("so far there is one.")
    pair.mark("b", 2)
    assert "◆ B was aborted after 2 steps, before its speed was measured" in lines_of(pair)


@pytest.mark.parametrize(("speeds", "ends"), [((100.0, 200.0), (8.0, 4.0)), ((100.0, 0.0), (8.0,))])
def test_over_seconds_the_faster_run_is_done_first(speeds, ends, tmp_path):
    configs = LabConfig(device="cpu"), LabConfig(device="cpu", amp="bf16")
    documents = [lab_data.document(config, 100.0) for config in configs]
    for document, speed in zip(documents, speeds, strict=True):
        document["samples_per_second"] = speed or None
    pair = ComparedRuns()
    pair.follow(lab_data.ledger(tmp_path / "l.sqlite", *documents)[::-1], None)
    assert tuple(one.seconds[-1] for one in curves_over_time(pair)) == pytest.approx(ends)


def running(preset: str) -> RunView:
    """A run in progress with three losses."""
    started = Started({}, preset, "cpu", "a CPU", "2.13.0", 1000, 8)
    run = RunView(LabConfig(model=preset), started=started)
    for step in range(1, 4):
        run.samples.append(8 * step)
        run.losses.append(2.0 / step)
        run.paces.append(100.0)
    return run


def test_no_other_models_loss_stands_on_the_axis_of_the_run_in_progress(tmp_path):
    documents = [
        lab_data.document(LabConfig(model="mlp-tiny", amp=amp), 100.0 + at) | {"preset": "mlp-tiny"}
        for at, amp in enumerate(("off", "bf16"))
    ]
    documents[1]["loss_curve"] = [[8, 5.0], [16, 4.0]]
    pair = ComparedRuns()
    pair.follow(lab_data.ledger(tmp_path / "l.sqlite", *documents)[::-1], None)

    def labels(run: RunView | None) -> list[str]:
        return [one.label for one in curves(pair, run)[0]]

    assert labels(running("mlp-tiny")) == ["now", "A #1", "B #2"]
    assert not_drawn(pair, running("mlp-tiny")) == ""
    assert labels(running("gpt-tiny")) == ["now"]
    assert not_drawn(pair, running("gpt-tiny")) == " · A and B train another model"
    assert labels(None) == ["A #1", "B #2"], "the comparison itself is of one model"


def test_of_two_models_that_were_marked_by_hand_only_a_is_drawn(tmp_path):
    documents = [
        lab_data.document(LabConfig(model=name), 100.0) | {"preset": name}
        for name in ("mlp-tiny", "gpt-tiny")
    ]
    pair = ComparedRuns()
    pair.follow(lab_data.ledger(tmp_path / "l.sqlite", *documents)[::-1], None)
    pair.mark("a", 1)
    pair.mark("b", 2)
    assert [one.label for one in curves(pair, None)[0]] == ["A #1"]
    assert [one.label for one in curves_over_time(pair)] == ["A #1"]
    assert not_drawn(pair, None) == " · B trains another model"


def repeats_of(tmp_path: Path, counts: tuple[int, int]) -> ComparedRuns:
    """A pair of so many interleaved repeats each, as it stands when a series is under way."""
    documents, marks = [], []
    for repeat in range(max(counts)):
        for amp, count in zip(("off", "bf16"), counts, strict=True):
            if repeat < count:
                config = LabConfig(model="mlp-tiny", amp=amp)
                documents.append(lab_data.document(config, 100.0 + 60 * repeat * (amp == "off")))
                marks.append((repeat, amp))
    entries = lab_data.ledger(tmp_path / "l.sqlite", *documents)
    entries = [
        replace(one, group="g", cell=amp, repeat=repeat)
        for one, (repeat, amp) in zip(entries, marks, strict=True)
    ]
    pair = ComparedRuns()
    pair.follow(entries[::-1], None)
    pair.mark("a", next(one.id for one in entries if one.cell == "off"))
    pair.mark("b", next(one.id for one in entries if one.cell == "bf16"))
    return pair


def test_the_heading_says_of_which_repeats_the_figures_are(tmp_path):
    """The list of runs has the means of all repeats, also of those without a partner so far."""
    assert repeats_of(tmp_path, (3, 2)).title() == "A #5, 2 of 3 repeats · B #4 ×2"


@pytest.mark.parametrize("width", [64, 90])
def test_an_interval_is_told_whole_or_not_at_all(tmp_path, width):
    pair = repeats_of(tmp_path, (2, 2))
    comparison = pair.comparison()
    assert comparison is not None
    row = comparison.row("samples_per_second")
    assert row is not None
    assert row.wide
    lines = [styled.plain(line) for line in comparison_lines(comparison, width, 30, UNICODE)]
    (said,) = [line for line in lines if line.startswith("samples/s")]
    assert ("too noisy (" if width == 90 else " wide ") in said
    assert "…" not in said.partition(")")[0]
    assert "too noisy: 4 repeats may be enough, or a machine that does nothing" in " ".join(lines)


def test_a_long_interval_becomes_how_far_it_reaches(tmp_path):
    comparison = repeats_of(tmp_path, (3, 3)).comparison()
    assert comparison is not None
    long = ComparisonRow("x", "x", "s", 1.0, 0.00013, 0.00013, 0.00012, 0.00014, "b", "lower")
    lines = table_lines(replace(comparison, rows=[long]), 90, UNICODE)
    said = styled.plain([*lines][1])
    assert "±8 %" in said
    assert "…" not in said
