"""A user's own model: whatever it is instead, the answer says what, why and what to do."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.fakes.cases import each

torch = pytest.importorskip("torch")

from gpuscope.errors import UserError  # noqa: E402
from gpuscope.lab import factory  # noqa: E402
from gpuscope.lab.config import LabConfig  # noqa: E402
from gpuscope.lab.factory import BadFactory  # noqa: E402
from gpuscope.lab.parallel import World  # noqa: E402
from gpuscope.lab.training import Training  # noqa: E402

CPU = torch.device("cpu")
MODULE = """
import torch
from torch import nn

number = 3
asked = []

class Nested:
    @staticmethod
    def make(batch, device):
        return parts(batch, device)

def parts(batch, device, scale=1.0):
    model = nn.Linear(4, 1).to(device)
    inputs = torch.ones(batch, 4, device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: scale * model(inputs).square().mean()

def make(*, batch, device, checkpoint=False):
    asked.append((batch, str(device), checkpoint))
    return parts(batch, device)

def pair(batch, device): return 1, 2
def no_model(batch, device): return 1, *parts(batch, device)[1:]
def no_optimizer(batch, device):
    model, _, forward = parts(batch, device)
    return model, model.parameters, forward
def two_optimizers(batch, device):
    model, optimizer, forward = parts(batch, device)
    return model, [optimizer, optimizer], forward
def no_forward(batch, device): return *parts(batch, device)[:2], 5
def raises(batch, device): return 1 / 0
def leaves(batch, device): raise SystemExit(3)
def no_batch(device): return None
def as_number(batch, device):
    model, optimizer, forward = parts(batch, device)
    return model, optimizer, lambda: forward().item()
def as_vector(batch, device):
    model, optimizer, _ = parts(batch, device)
    return model, optimizer, lambda: model(torch.ones(batch, 4))
def detached(batch, device):
    model, optimizer, forward = parts(batch, device)
    return model, optimizer, lambda: forward().detach()
def one_by_one(batch, device):
    model, optimizer, forward = parts(batch, device)
    return model, optimizer, lambda: forward()[None, None]
"""  # noqa: E501


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module in it and nothing of it on the path."""
    (tmp_path / "own_model.py").write_text(MODULE)
    (tmp_path / "needs.py").write_text("import a_thing_nobody_has\n")
    (tmp_path / "wrong.py").write_text("def make(:\n")
    (tmp_path / "random.py").write_text("raise RuntimeError('not the one that is meant')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part not in ("", str(tmp_path))])
    for name in ("own_model", "needs", "wrong"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    importlib.invalidate_caches()
    return tmp_path


def make(name: str, **toggles: object) -> Training:
    return Training(LabConfig(model=f"own_model:{name}", **toggles), World(0, 1, 0, "", CPU))  # type: ignore[arg-type]


@pytest.mark.slow
def test_it_is_called_as_agreed_and_the_rest_is_ours() -> None:
    training = make("make", batch=3, accumulate=2, amp="bf16")
    before = training.work.model.weight.detach().clone()
    losses = [float(training.step()) for _ in range(10)]
    assert losses[-1] < losses[0]
    assert training.taken == 10
    assert not torch.equal(before, training.work.model.weight)
    asked = sys.modules["own_model"].asked
    assert asked == [(3, "cpu", False)]
    make("make", checkpoint=True)
    assert asked[-1] == (factory.BATCH, "cpu", True)


def test_accumulated_gradients_are_the_mean_of_the_micro_batches() -> None:
    gradients = []
    for parts in (1, 4):
        torch.manual_seed(0)
        training = make("Nested.make", accumulate=parts)
        training.step()
        gradients.append(training.work.model.weight.grad)
    torch.testing.assert_close(*gradients)


def test_a_loss_of_one_element_is_a_scalar() -> None:
    assert make("one_by_one").step().shape == ()


def test_whether_it_has_the_keyword_checkpoint() -> None:
    assert factory.takes_checkpoint(factory.find("own_model:make"))
    assert not factory.takes_checkpoint(factory.find("own_model:parts"))


def test_the_current_folder_comes_last_for_everybody_else(folder: Path) -> None:
    factory.find("own_model:make")
    assert sys.path[-1] == str(folder)
    assert sys.path[0] != str(folder)


@each(
    ("name", "named"),
    [
        (
            "nobody:make",
            ["no module nobody", "neither in", "cd to the folder with nobody.py"],
        ),
        ("nobody.deep:make", ["no module nobody.deep", "nobody.py"]),
        ("needs:make", ["importing its module", "a_thing_nobody_has", "needs.py:1"]),
        ("wrong:make", ["importing its module", "SyntaxError", "wrong.py:1"]),
        ("own_model:nothing", ["has no nothing", "parts, make, pair"]),
        ("own_model:number", ["cannot be called", "type int"]),
        ("own_model:pair", ["not valid", "tuple of 2"]),
        ("own_model:no_model", ["must be a torch.nn.Module, not a int"]),
        ("own_model:no_optimizer", ["must be an optimizer, not a method"]),
        (
            "own_model:two_optimizers",
            ["must be an optimizer, not a list", "one over all parameters"],
        ),
        ("own_model:no_forward", ["not callable: a int"]),
        (
            "own_model:raises",
            ["raised an exception", "ZeroDivisionError", "own_model.py:", "python -c"],
        ),
        ("own_model:leaves", ["raised an exception", "SystemExit: 3"]),
        ("own_model:no_batch", ["raised an exception", "TypeError", "'batch'"]),
        ("own_model:as_number", ["forward() is not valid", "returned a float"]),
        ("own_model:as_vector", ["shape (8, 1)", "loss.mean()"]),
        ("own_model:detached", ["has no gradient"]),
    ],
)
def test_whatever_else_it_is_is_told(name: str, named: list[str]) -> None:
    with pytest.raises(BadFactory) as error:
        Training(LabConfig(model=name), World(0, 1, 0, "", CPU)).step()
    what, why, following = error.value.args
    text = f"{what}\n{why}\n{following}"
    for part in named:
        assert part in text
    assert "Traceback" not in text


def test_what_a_factory_of_gpuscope_says_itself_is_repeated_as_it_is() -> None:
    def fails(batch: int, device: object) -> None:
        raise UserError("It cannot be used.", "long " * 1000, "use another one")

    with pytest.raises(BadFactory) as error:
        factory.make("own_model:fails", fails, 3, CPU, False)
    what, why, following = error.value.args
    assert (what, following) == ("It cannot be used.", "use another one")
    assert why.startswith("long long")
    assert len(why) <= factory.TEXT_CHARS


def test_the_command_that_repeats_a_failure_has_its_batch() -> None:
    def fails(batch: int, device: object) -> None:
        raise ValueError(batch)

    with pytest.raises(BadFactory, match=r"own_model\.fails\(batch=3, device="):
        factory.make("own_model:fails", fails, 3, CPU, False)
