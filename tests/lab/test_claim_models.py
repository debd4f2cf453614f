"""Every model that a claim's cells name really trains.

Those that need no GPU are tested on the CPU here, all of them on a GPU with ``pytest -m gpu``.
"""

from __future__ import annotations

import math
import time

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import claim_models, factory  # noqa: E402
from gpuscope.lab.claims import CLAIMS, Claim  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.parallel import World  # noqa: E402
from gpuscope.lab.training import Training  # noqa: E402

CPU = torch.device("cpu")


def models(device: str) -> list[tuple[Claim, LabConfig]]:
    """Return each claim's cells on a device that train a model of ``claim_models``."""
    return [
        (claim, config)
        for claim in CLAIMS
        if device in ("cuda", *([] if claim.cannot_cpu else ["cpu"]))
        for config in claim.configs(device, 8).values()
        if config.factory
    ]


def name_of(case: object) -> str:
    return case.model.partition(":")[2] if isinstance(case, LabConfig) else ""


def losses(config: LabConfig, steps: int, **changes: object) -> list[float]:
    """Return the losses of a few steps as the Lab's runner makes them."""
    changed = LabConfig.from_mapping({**config.to_mapping(), **changes})
    device = torch.device(changed.device, *([0] if changed.device == "cuda" else []))
    training = Training(changed, World(0, 1, 0, "", device))
    return [float(training.step()) for _ in range(steps)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "config", [one for _, one in models("cpu") if "broken" not in one.model], ids=name_of
)
def test_on_a_cpu(config: LabConfig):
    found = losses(config, 2, batch=2)
    assert all(map(math.isfinite, found))
    assert 0 <= found[-1] <= 1


def test_an_image_takes_its_seconds_of_a_core_however_slow_the_clock_is():
    begin = time.thread_time()
    next(iter(claim_models.Images(8, 0.05)))
    assert 0.05 <= time.thread_time() - begin < 0.2


@pytest.mark.slow
def test_a_scaler_keeps_gradients_that_fp16_loses():
    without, scaled = (
        losses(config, 1)[0] for claim, config in models("cpu") if "gradscaler" in claim.id
    )
    assert scaled < 0.1 * without


def test_a_reading_is_a_loss_that_the_lab_can_train():
    made = claim_models.reading(iter([0.25, 0.5]).__next__, CPU)
    for value in (0.25, 0.5):
        loss = factory.checked("a:b", made[2]())
        loss.backward()
        made[1].step()
        assert loss.item() == value


def test_the_loss_of_gradients_without_a_scaler_is_seen():
    exact = [torch.tensor([1.0, 0.0, 1e-9, 2.0])]
    found = [gradient.half().float() for gradient in exact]
    assert claim_models.share_lost(exact, found) == pytest.approx(1 / 3)


def test_a_broken_model_trains():
    made = factory.make("broken", claim_models.broken, 4, CPU, False)
    before = made.forward().item()
    for _ in range(20):
        made.optimizer.zero_grad()
        made.forward().backward()
        made.optimizer.step()
    assert made.forward().item() < before


@pytest.mark.slow
def test_a_graph_break_is_an_error_where_the_whole_is_asked_for():
    model, _, forward = claim_models.broken(4, CPU)
    assert model is not None
    torch.compile(forward, backend="eager")()
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        torch.compile(forward, backend="eager", fullgraph=True)()


@pytest.mark.gpu
@pytest.mark.parametrize(("claim", "config"), models("cuda"), ids=name_of)
def test_on_a_gpu(claim: Claim, config: LabConfig):
    if torch.cuda.device_count() < claim.gpus:
        pytest.skip("needs 2 CUDA devices")
    if "broken" in config.model:
        pytest.skip("is to fail")
    first, second = losses(config, 2)
    assert math.isfinite(first)
    # weights in fp16 do not survive a step of AdamW, and their claim asks for memory only
    assert math.isfinite(second) or config.model.endswith("_half")
