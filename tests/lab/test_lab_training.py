"""Real torch on the CPU: the models learn, and the toggles do what they say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.models import Gpt  # noqa: E402
from gpuscope.lab.worker import Stopped, Training  # noqa: E402

CPU = torch.device("cpu")


def train(config: LabConfig, steps: int) -> tuple[Training, list[float]]:
    training = Training(config, CPU)
    return training, [float(training.step()) for _ in range(steps)]


@pytest.mark.parametrize("amp", ["off", "bf16"])
@pytest.mark.parametrize("model", ["mlp", "conv", "gpt"])
def test_the_loss_falls(model: str, amp: str) -> None:
    _, losses = train(LabConfig(model, amp), 30)
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_the_loss_falls_in_fp16_and_its_gradients_are_scaled() -> None:
    training, losses = train(LabConfig("mlp", "fp16", batch=32), 15)
    assert training.scale == 65536
    assert sum(losses[-3:]) < 0.95 * sum(losses[:3])
    assert training.taken == 15


def test_autocast_really_computes_in_the_type_asked_for() -> None:
    for amp, kind in (("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        training = Training(LabConfig("mlp", amp, batch=4), CPU)
        seen = []
        training.task.model[2].register_forward_hook(
            lambda _module, _inputs, output, seen=seen: seen.append(output.dtype)
        )
        training.step()
        assert seen == [kind]


def gradients(config: LabConfig, steps: int = 1) -> list[torch.Tensor]:
    """Those of the last step, with weights that do not move."""
    training = Training(config, CPU)
    for group in training.optimizer.param_groups:
        group.update(lr=0.0, weight_decay=0.0)
    for _ in range(steps):
        training.step()
    return [parameter.grad for parameter in training.task.model.parameters()]


@pytest.mark.parametrize("model", ["mlp", "conv", "gpt"])
@pytest.mark.parametrize("steps", [1, 2])
def test_accumulated_micro_batches_have_the_gradients_of_one_large_batch(model: str, steps: int) -> None:
    large = gradients(LabConfig(model, batch=8), steps)
    small = gradients(LabConfig(model, batch=2, accumulate=4), steps)
    for one, other in zip(large, small, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_a_step_the_scaler_skips_is_not_taken() -> None:
    training = Training(LabConfig("mlp", "fp16", batch=4), CPU)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [parameter.detach().clone() for parameter in training.task.model.parameters()]
    training.step()
    assert training.taken == 0
    assert training.scale == 2.0**39
    assert all(torch.equal(one, other) for one, other in zip(before, training.task.model.parameters(), strict=True))


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    _, first = train(LabConfig("mlp"), 3)
    _, again = train(LabConfig("mlp"), 3)
    _, other = train(LabConfig("mlp", seed=1), 3)
    assert first == again
    assert first != other


def test_a_pool_that_is_used_up_begins_again() -> None:
    task = Training(LabConfig("gpt"), CPU).task
    pool = 1024
    first, _ = task.next_batch(pool)
    task.next_batch(pool // 2)
    wrapped, _ = task.next_batch(pool)
    assert torch.equal(wrapped[pool // 2 :], first[: pool // 2])


def test_a_stop_is_noticed_between_two_micro_batches() -> None:
    training = Training(LabConfig("mlp", batch=1, accumulate=4096), CPU)
    asked = iter([False, False, True])
    with pytest.raises(Stopped):
        training.step(lambda: next(asked))


def test_gpt_small_has_the_124_million_parameters_it_is_named_for() -> None:
    model = Gpt(50304, 512, 768, 12, 12, torch.device("meta"))
    assert 123e6 < sum(parameter.numel() for parameter in model.parameters()) < 126e6
