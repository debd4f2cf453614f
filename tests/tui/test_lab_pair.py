"""Which two runs of the Lab are compared, and how their comparison is called."""

from __future__ import annotations

from gpuscope.lab.config import LabConfig
from gpuscope.tui.lab.compare import comparison_lines
from gpuscope.tui.lab.pair import ComparedRuns, curves
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
    assert pair.title().endswith("not comparable: gpt-tiny on CPU, gpt-small on H200")
    found = pair.comparison()
    assert found is not None
    lines = comparison_lines(found, 74, 30, UNICODE)
    text = "\n".join("".join(piece for piece, _ in line) for line in lines)
    assert text.startswith("≠ model gpt-tiny → gpt-small")
    assert "better" not in text
    assert "worse" not in text
