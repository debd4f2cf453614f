"""torch.compile runs for real.

Graphs are counted, breaks and recompiles named, and warm-up is kept apart from steady steps.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import metrics  # noqa: E402
from gpuscope.lab.advice import explain  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.run import Run  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not shutil.which("g++") or " " in torch.__file__,
        reason="torch.compile needs g++ on a CPU, and torch in a folder whose name has no blank",
    ),
]
MODULE = """
import torch
from torch import nn

def make(batch, device):
    model = nn.Linear(4, 1).to(device)
    inputs = torch.ones(batch, 4, device=device)
    def forward():
        outputs = model(inputs)
        torch._dynamo.graph_break()
        return outputs.square().mean()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), forward

def growing(batch, device):
    model, optimizer, _ = make(batch, device)
    sizes = iter(range(2, 1000))
    @torch._dynamo.disable
    def fetch():
        return torch.ones(min(next(sizes), 4), 4, device=device)
    def forward():
        return model(fetch()).square().mean()
    return model, optimizer, forward
"""


@pytest.fixture(autouse=True)
def as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GPUSCOPE", "0")
    monkeypatch.setenv("GPUSCOPE_ORIGIN", "lab")
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "breaks.py").write_text(MODULE)
    monkeypatch.delitem(sys.modules, "breaks", raising=False)
    # else it compiles a program for each it could be
    with torch._inductor.config.patch({"cpp.vec_isa_ok": False}):
        yield
    torch._dynamo.reset()
    torch._logging.set_logs()


def finished(**toggles: object) -> tuple[list[metrics.Record], dict[str, object]]:
    heard: list[metrics.Record] = []
    run = Run(LabConfig(device="cpu", **toggles), heard.append)  # type: ignore[arg-type]
    run.train()
    return heard, run.tally.document()


def test_a_preset_is_one_graph_and_its_first_step_is_apart() -> None:
    heard, document = finished(
        model="mlp-tiny", batch=4, compile="default", fullgraph=True, steps=12
    )
    found = document["compile"]
    assert (found["mode"], found["fullgraph"]) == ("default", True)
    assert (found["graphs"], found["graph_breaks"], found["recompiles"]) == (1, [], [])
    assert found["first_step_seconds"] > document["step_seconds"]["p95"]
    assert document["warmup_seconds"] >= found["first_step_seconds"]
    assert document["step_seconds"]["count"] == 7
    last = heard[-1]
    assert isinstance(last, metrics.Step)
    assert (last.graphs, last.graph_breaks, last.recompiles) == (1, 0, 0)


def test_breaks_are_counted_and_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    _, document = finished(model="breaks:make", compile="default", steps=4)
    (row,) = document["compile"]["graph_breaks"]
    line = MODULE.split("\n").index("        torch._dynamo.graph_break()") + 1
    assert row["where"] == f"{tmp_path / 'breaks.py'}:{line}"
    assert "graph_break" in row["reason"]
    assert row["count"] == 1
    assert document["compile"]["graphs"] == 2
    assert "Graph break" not in capfd.readouterr().err


def test_recompiles_are_counted_and_named_and_belong_to_the_warm_up() -> None:
    _, document = finished(model="breaks:growing", compile="default", steps=14)
    found = document["compile"]
    assert found["recompiles"]
    assert "size mismatch" in found["recompiles"][0]["reason"]
    assert "forward" in found["recompiles"][0]["function"]
    assert sum(row["count"] for row in found["recompiles"]) + 1 == found["graphs"]
    assert document["step_seconds"]["p95"] < found["first_step_seconds"]


def test_a_graph_break_under_fullgraph_is_an_error_that_says_what_to_do() -> None:
    config = LabConfig(model="breaks:make", device="cpu", compile="default", fullgraph=True)
    run = Run(config, lambda record: None)
    with pytest.raises(Exception, match="graph_break") as error:
        run.train()
    failure = explain(error.value, config, run.tally)
    assert failure.what == "The model cannot be compiled as one graph (at step 1)."
    assert failure.next == "gpuscope lab --model breaks:make --device cpu --compile default"
