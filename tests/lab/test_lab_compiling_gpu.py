"""The lab's compiled models on a real GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lab.gpu_workers import Toggles, document, documents, workers

pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


# The mode that times dozens of kernels for each matrix product gets a model with few products: with
# gpt-small it had not ended after 280 s on an H100.
@pytest.mark.parametrize(
    ("mode", "model"),
    [("default", "gpt"), ("reduce-overhead", "gpt"), ("max-autotune", "mlp-small")],
)
def test_every_mode_of_compile_learns_as_eager_does(mode: str, model: str) -> None:
    """One run after the other, because the steps of the compiled one are timed."""
    toggles: Toggles = {"model": model, "batch": 2, "accumulate": 2, "amp": "bf16", "steps": 40}
    eager, compiled = document(**toggles), document(**toggles, compile=mode, fullgraph=True)
    found = compiled["compile"]
    assert (found["mode"], found["graphs"], found["graph_breaks"]) == (mode, 1, [])
    assert found["first_step_seconds"] > 10 * compiled["step_seconds"]["median"]
    assert compiled["warmup_seconds"] > found["first_step_seconds"]
    assert compiled["loss_last"] == pytest.approx(eager["loss_last"], rel=0.05)
    assert compiled["step_seconds"]["p95"] < 3 * compiled["step_seconds"]["median"]


def test_replayed_graphs_keep_the_gradients_that_zero_grad_leaves_in_place() -> None:
    toggles: Toggles = {"model": "gpt", "batch": 2, "set_to_none": False, "steps": 30}
    eager, replayed = documents(toggles, {**toggles, "compile": "reduce-overhead"})
    assert replayed["loss_last"] == pytest.approx(eager["loss_last"], rel=0.05)


def test_compile_goes_with_tf32_checkpointing_and_validation() -> None:
    found = document(
        model="gpt",
        batch=2,
        compile="default",
        tf32=True,
        checkpoint=True,
        validate="no-grad",
        steps=25,
    )
    assert found["compile"]["graphs"] >= 1
    assert found["validation_loss"] > 0
    assert any("grad_mode" in row["reason"] for row in found["compile"]["recompiles"])


OWN = """\
import torch
from torch import nn
def make(batch, device):
    model = nn.Linear(64, 64).to(device)
    sizes = iter(range(2, 1000))
    @torch._dynamo.disable
    def fetch(): return torch.ones(min(next(sizes), 5), 64, device=device)
    def forward():
        outputs = model(fetch())
        torch._dynamo.graph_break()
        return outputs.square().mean()
    return model, torch.optim.SGD(model.parameters(), lr=0.01), forward
"""


def test_breaks_and_recompiles_are_named_by_this_torch(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    toggles: Toggles = {"model": "own:make", "compile": "default", "steps": 20}
    ((records, errors),) = workers(toggles, cwd=str(tmp_path))
    assert records[-1]["kind"] == "ended", errors
    found = records[-1]["summary"]["compile"]
    assert any(row["where"] == f"{tmp_path / 'own.py'}:10" for row in found["graph_breaks"]), found
    assert all(row["reason"] for row in found["graph_breaks"] + found["recompiles"])
    assert any("size mismatch" in row["reason"] for row in found["recompiles"]), found
