"""The models learn, with real torch on the CPU.

The toggles of precision, batch and memory do what they say.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from gpuscope.lab import machine, models  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.models import MODELS, Gpt  # noqa: E402
from gpuscope.lab.parallel import World  # noqa: E402
from gpuscope.lab.toggles import PRESETS  # noqa: E402
from gpuscope.lab.training import Clock, Training, TrainingStopped  # noqa: E402

CPU = torch.device("cpu")
ALONE = World(0, 1, 0, "", CPU)
FAMILIES = sorted(PRESETS)


def make(**toggles: object) -> Training:
    return Training(LabConfig(**toggles), ALONE)  # type: ignore[arg-type]


def train(steps: int, **toggles: object) -> tuple[Training, list[float]]:
    training = make(**toggles)
    losses = [float(training.step()) for _ in range(steps)]
    training.close()
    return training, losses


@pytest.fixture
def as_before() -> Iterator[None]:
    """Torch's global switches are set back after the test."""
    yield
    machine.apply(LabConfig())


# ── precision ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("model", FAMILIES)
def test_the_loss_falls(model: str, optimizer: str) -> None:
    """In bf16 it is compared with this one below."""
    _, losses = train(45 if optimizer == "sgd" else 30, model=model, optimizer=optimizer)
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_the_loss_falls_in_fp16_and_its_gradients_are_scaled() -> None:
    training, losses = train(15, model="mlp", amp="fp16", batch=32)
    assert training.scale == 65536
    assert sum(losses[-3:]) < 0.98 * sum(losses[:3])
    assert training.taken == 15


def test_autocast_really_computes_in_the_type_asked_for() -> None:
    for amp, kind in (("off", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        training = make(model="mlp-tiny", amp=amp, batch=4)
        seen = []
        linear = next(
            part for part in training.work.model.modules() if isinstance(part, torch.nn.Linear)
        )
        linear.register_forward_hook(
            lambda _module, _inputs, output, seen=seen: seen.append(output.dtype)
        )
        training.step()
        assert seen == [kind]


def test_a_step_the_scaler_skips_is_not_taken() -> None:
    training = make(model="mlp", amp="fp16", batch=4)
    training.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = [parameter.detach().clone() for parameter in training.work.model.parameters()]
    training.step()
    assert training.taken == 0
    assert training.scale == 2.0**39
    assert all(
        torch.equal(one, other)
        for one, other in zip(before, training.work.model.parameters(), strict=True)
    )


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("tf32", [True, False])
def test_tf32_is_set_for_products_and_convolutions_alike(tf32: bool, as_before: None) -> None:
    machine.apply(LabConfig(tf32=tf32))
    assert torch.get_float32_matmul_precision() == ("high" if tf32 else "highest")
    assert torch.backends.cuda.matmul.allow_tf32 is tf32
    assert torch.backends.cudnn.allow_tf32 is tf32


@pytest.mark.slow
def test_deterministic_is_strict_and_its_runs_are_the_same_to_the_bit(as_before: None) -> None:
    runs = []
    for _ in range(2):
        machine.apply(LabConfig(deterministic=True))
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        training, losses = train(4, model="conv", deterministic=True)
        runs.append(
            (losses, [parameter.detach() for parameter in training.work.model.parameters()])
        )
    assert runs[0][0] == runs[1][0]
    assert all(torch.equal(one, other) for one, other in zip(runs[0][1], runs[1][1], strict=True))
    machine.apply(LabConfig(cudnn_benchmark=True))
    assert torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.slow
def test_channels_last_lays_out_the_weights_and_learns_the_same() -> None:
    _, plain = train(3, model="conv")
    training, losses = train(3, model="conv", channels_last=True)
    weights = [weight for weight in training.work.model.parameters() if weight.dim() == 4]
    assert weights
    assert all(one.is_contiguous(memory_format=torch.channels_last) for one in weights)
    assert losses == pytest.approx(plain, rel=1e-3)


def test_the_same_seed_is_the_same_run_and_another_is_another() -> None:
    _, first = train(3, model="mlp-tiny")
    _, again = train(3, model="mlp-tiny")
    _, other = train(3, model="mlp-tiny", seed=1)
    assert first == again
    assert first != other


# ── batch ─────────────────────────────────────────────────────────────────────────────────────────


def gradients(steps: int = 1, **toggles: object) -> list[torch.Tensor]:
    """Those of the last step, with weights that do not move."""
    training = make(**toggles)
    for group in training.work.optimizer.param_groups:
        group.update(lr=0.0, weight_decay=0.0)
    for _ in range(steps):
        training.step()
    return [parameter.grad for parameter in training.work.model.parameters()]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    assert any(bool(gradient.any()) for gradient in one)
    for left, right in zip(one, other, strict=True):
        torch.testing.assert_close(left, right, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("model", FAMILIES)
@pytest.mark.parametrize("steps", [1, 2])
def test_accumulated_micro_batches_have_the_gradients_of_one_large_batch(
    model: str, steps: int
) -> None:
    assert_same(
        gradients(steps, model=model, batch=8), gradients(steps, model=model, batch=2, accumulate=4)
    )


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_do_not_add_up_over_steps(set_to_none: bool) -> None:
    """The pool has 4,096 samples: every batch of that size is the same data."""
    toggles = {"model": "mlp-tiny", "batch": 4096, "set_to_none": set_to_none}
    assert_same(gradients(1, **toggles), gradients(3, **toggles))


def test_zero_grad_keeps_the_gradients_memory_unless_told_to_drop_it() -> None:
    for set_to_none in (True, False):
        training = make(model="mlp-tiny", set_to_none=set_to_none)
        training.step()
        weight = next(training.work.model.parameters())
        kept = weight.grad
        training.step()
        assert (weight.grad is kept) is not set_to_none


@pytest.mark.parametrize("model", FAMILIES)
def test_ranks_together_have_the_gradients_of_one_process_with_their_global_batch(
    model: str,
) -> None:
    """Two ranks' shares of each micro-batch have the whole's gradients as their mean.

    The shares are computed one after the other in one process.
    """
    whole = gradients(2, model=model, batch=4, accumulate=2)
    shares = []
    for rank in range(2):
        training = Training(
            LabConfig(model=model, batch=2, accumulate=2), World(rank, 2, rank, "", CPU)
        )
        for group in training.work.optimizer.param_groups:
            group.update(lr=0.0, weight_decay=0.0)
        for _ in range(2):
            training.step()
        shares.append([parameter.grad for parameter in training.work.model.parameters()])
    assert_same(whole, [(one + other) / 2 for one, other in zip(*shares, strict=True)])


def test_a_stop_is_noticed_between_two_micro_batches() -> None:
    training = make(model="mlp-tiny", batch=1, accumulate=4096)
    asked = iter([False, False, True])
    with pytest.raises(TrainingStopped):
        training.step(lambda: next(asked))


# ── memory ────────────────────────────────────────────────────────────────────────────────────────


def kept_for_backward(training: Training) -> int:
    """Bytes that autograd saves in one forward pass, parameters left out."""
    weights = {
        parameter.untyped_storage().data_ptr() for parameter in training.work.model.parameters()
    }
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = training.work.loss()
    assert loss.requires_grad
    return sum(saved.values())


@pytest.mark.parametrize("model", FAMILIES)
def test_checkpointing_has_the_same_gradients_and_keeps_less(model: str) -> None:
    assert_same(
        gradients(2, model=model, batch=4), gradients(2, model=model, batch=4, checkpoint=True)
    )
    plain, kept = (kept_for_backward(make(model=model, checkpoint=on)) for on in (False, True))
    assert kept < 0.8 * plain


@pytest.mark.parametrize(
    ("optimizer", "kind", "numbers"), [("adamw", torch.optim.AdamW, 2), ("sgd", torch.optim.SGD, 1)]
)
def test_the_optimizer_and_what_it_keeps(optimizer: str, kind: type, numbers: int) -> None:
    for extra in ({}, {"foreach": True}, {"fused": True}, {"foreach": False, "fused": False}):
        training = make(model="mlp-tiny", optimizer=optimizer, **extra)
        training.step()
        assert type(training.work.optimizer) is kind
        for name in ("foreach", "fused"):
            assert training.work.optimizer.param_groups[0][name] == extra.get(name)
        state = training.work.optimizer.state.values()
        kept = sum(
            value.numel()
            for row in state
            for value in row.values()
            if torch.is_tensor(value) and value.dim()
        )
        assert kept == numbers * training.parameters


@pytest.mark.parametrize(("validate", "recorded"), [("no-grad", False), ("grad", True)])
def test_validation_is_on_other_samples_and_without_grad_keeps_nothing(
    validate: str, recorded: bool
) -> None:
    training = make(model="mlp-tiny", validate=validate)
    before = [parameter.detach().clone() for parameter in training.work.model.parameters()]
    loss = training.validate()
    assert loss.requires_grad is recorded
    assert float(training.validate().detach()) == float(loss.detach())
    assert all(
        torch.equal(one, other)
        for one, other in zip(before, training.work.model.parameters(), strict=True)
    )


def test_what_is_held_out_leaves_the_pool_as_it_was_and_is_not_in_it() -> None:
    plain, other = (models.build("mlp-tiny", CPU, 3) for _ in range(2))
    held, _ = other.held_out()
    assert torch.equal(plain.pool[0], other.pool[0])
    assert not any(bool((other.pool[0] == row).all(1).any()) for row in held[:8])


# ── models and time ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "millions"),
    [((768, 12, 12), 124), ((1024, 24, 16), 354), ((1280, 36, 20), 773), ((2048, 24, 16), 1313)],
)
def test_the_gpts_have_the_parameters_they_are_named_for(
    shape: tuple[int, int, int], millions: int
) -> None:
    model = Gpt(50304, 1024, *shape, torch.device("meta"))
    assert sum(parameter.numel() for parameter in model.parameters()) / 1e6 == pytest.approx(
        millions, rel=0.01
    )


@pytest.mark.parametrize(
    "name", [name for name in MODELS if name.endswith(("tiny", "small")) and name != "gpt-small"]
)
def test_a_fresh_model_guesses(name: str) -> None:
    """A fresh model's first loss is about that of knowing nothing.

    That is 1 for targets of variance 1, else the classes' logarithm.
    """
    nothing = {"mlp": 1.0, "conv": 2.303, "gpt": 6.238}[name.split("-")[0]]
    assert float(make(model=name).step()) == pytest.approx(nothing, rel=0.4)


def test_the_learning_rate_rises_over_the_first_steps_and_stays() -> None:
    training = make(model="mlp-tiny", batch=4)
    full, steps = MODELS["mlp-tiny"].learning_rate, MODELS["mlp-tiny"].warm_up
    rates = []
    for _ in range(steps + 3):
        training.step()
        rates.append(training.work.optimizer.param_groups[0]["lr"])
    assert rates == pytest.approx(
        [full * min(1.0, (step + 1) / steps) for step in range(steps + 3)]
    )


def test_the_warm_up_leaves_a_rate_alone_that_somebody_else_has_set() -> None:
    training = make(model="mlp-tiny", batch=4)
    training.work.optimizer.param_groups[0]["lr"] = 0.0
    training.step()
    assert training.work.optimizer.param_groups[0]["lr"] == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt-tiny", "mlp-tiny"])
def test_half_precision_follows_the_loss_of_full_precision(model: str) -> None:
    """At equal samples, after the warm-up. Larger models are compared on a GPU."""
    full, half = (train(45, model=model, amp=amp)[1] for amp in ("off", "bf16"))
    assert half[-20:] == pytest.approx(full[-20:], rel=0.01)


def test_the_clock_leaves_out_what_lies_between_steps() -> None:
    clock = Clock(CPU)
    began = time.perf_counter()
    clock.mark()
    time.sleep(0.05)
    clock.gap()
    clock.mark()
    marks = clock.take()
    assert len(clock.seconds(marks)) == 2
    assert sum(clock.seconds(marks)) <= time.perf_counter() - began - 0.05
    clock.mark()
    assert len(clock.seconds(clock.take())) == 1
