"""Every loop and factory of a claim really runs, with tiny models.

They run on the CPU here, and on a GPU with ``pytest -m gpu``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import claim_loops, factory  # noqa: E402
from gpuscope.lab.claims import CLAIMS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
BY_LOOP = {claim.loop: claim for claim in CLAIMS if claim.loop}
ON_CPU = [name for name, claim in BY_LOOP.items() if not claim.cannot_cpu]
FACTORIES = sorted(
    {
        str(cell["model"])
        for claim in CLAIMS
        for cell in claim.cells.values()
        if ":" in str(cell.get("model", ""))
    }
)


def figures(loop: str, device: str) -> list[dict[str, float | None]]:
    words = [
        sys.executable,
        "-m",
        "gpuscope.lab.claim_loops",
        loop,
        "--device",
        device,
        "--repeats",
        "2",
        "--tiny",
    ]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = process.stdout.read()
        assert process.wait(20) == 0, process.stderr.read()[-3000:]
    return [json.loads(line) for line in said.splitlines()]


def check(loop: str, device: str) -> None:
    found = figures(loop, device)
    assert len(found) == 2
    keys = {figure.key for figure in BY_LOOP[loop].figures}
    for repeat in found:
        assert repeat.keys() == keys
        # where a tiny model loses nothing, a share of that is unknown
        assert all(isinstance(value, float) for key, value in repeat.items() if key != "remaining")


def test_each_loop_belongs_to_a_claim():
    assert BY_LOOP.keys() == claim_loops.LOOPS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("loop", ON_CPU)
def test_on_a_cpu(loop: str):
    check(loop, "cpu")


@pytest.mark.slow
def test_it_and_its_loader_end_with_whoever_started_it():
    words = [
        sys.executable,
        "-m",
        "gpuscope.lab.claim_loops",
        "workers",
        "--device",
        "cpu",
        "--repeats",
        "100000",
    ]
    between = [
        sys.executable,
        "-c",
        "import subprocess, sys; subprocess.run(sys.argv[1:])",
        *words,
        "--tiny",
    ]
    with subprocess.Popen(
        between, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.kill()
        process.communicate(timeout=30)  # the pipe ends when nobody holds it any more


def test_the_loss_of_gradients_without_a_scaler_is_seen():
    exact = [torch.tensor([1.0, 0.0, 1e-9, 2.0])]
    assert claim_loops._share_lost(
        exact, [gradient.half().float() for gradient in exact]
    ) == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", FACTORIES)
def test_each_factory_that_a_cell_names_trains(name: str):
    if name.endswith(("_half", "_single")):
        pytest.skip("as large as a GPU")
    made = factory.make(name, factory.find(name), 4, CPU, False)
    before = made.forward().item()
    for _ in range(20):
        made.optimizer.zero_grad()
        made.forward().backward()
        made.optimizer.step()
    assert made.forward().item() < before


@pytest.mark.slow
def test_a_graph_break_is_an_error_where_the_whole_is_asked_for():
    model, _, forward = claim_loops.broken(4, CPU)
    assert model is not None
    torch.compile(forward, backend="eager")()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(forward, backend="eager", fullgraph=True)()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
@pytest.mark.parametrize("loop", BY_LOOP)
def test_on_a_gpu(loop: str):
    if torch.cuda.device_count() < BY_LOOP[loop].gpus:
        pytest.skip("needs 2 CUDA devices")
    check(loop, "cuda")
