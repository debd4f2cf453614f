"""The model of a training is found in the functions around optimizer.step().

Those functions are left as they were.

pytest rewrites a function with ``assert`` in it so that it asks for its ``locals()``, and such a
function is not looked into: the trainings here are functions without one.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from gpuscope.probe.model_finder import Finder  # noqa: E402
from tests.fakes import pythons  # noqa: E402

CACHED = sys.version_info < (3, 13)
finder = Finder()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x))


def look(optimizer):
    """What the probe does after each step, until there is nothing left to look at."""
    for _ in range(70):
        found = finder.after_step(optimizer)
        if found is not None:
            return found
        if not finder.searching:
            return None
    return None


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    assert sys.gettrace() is None, "a tracer is respected: nothing is looked for then"
    monkeypatch.setattr(sys.modules[__name__], "finder", Finder())


def sgd(module):
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)


def step_inside(optimizer):
    return look(optimizer)


def test_a_local_of_a_caller():
    def train():
        net = Net()
        return net, step_inside(sgd(net))

    net, found = train()
    assert found is net


def test_the_outermost_of_those_that_hold_the_parameters():
    def train():
        inner = Net()
        # its own layer is trained elsewhere
        wrapped = torch.nn.Sequential(inner, torch.nn.Linear(4, 4))
        other = Net()
        part = inner.first
        return wrapped, step_inside(sgd(inner)), other, part

    wrapped, found, *_ = train()
    assert found is wrapped


def test_an_attribute_of_a_trainer_and_of_what_it_keeps_in_a_dictionary():
    class Trainer:
        def __init__(self, keep):
            self.models = keep(Net())
            self.optimizer = sgd(next(self.each()))

        def each(self):
            return iter(self.models.values() if isinstance(self.models, dict) else [self.models])

        def fit(self):
            return step_inside(self.optimizer)

    for keep in (lambda net: net, lambda net: {"net": net}):
        trainer = Trainer(keep)
        finder.__init__()
        assert trainer.fit() is next(trainer.each())


def test_each_optimizer_has_its_own_model():
    def train():
        one, two = Net(), Net()
        first, second = sgd(one), sgd(two)
        return (one, two), (look(first), look(second))

    nets, found = train()
    assert nets == found
    assert tuple(ref() for ref in finder.roots) == nets


class Shadow:
    def __init__(self, module):
        self.shadow_params = [parameter.detach().clone() for parameter in module.parameters()]


def test_models_that_are_not_trained_are_named_by_what_holds_them():
    class Trainer:
        def __init__(self):
            self.model, self.ref_model, self.loss = Net(), Net(), torch.nn.MSELoss()
            self.others = {"vae": Net()}

        def train(self):
            layer, teachers, ema = self.model.first, [Net()], Shadow(self.model)
            part = self.ref_model.second
            return look(sgd(self.model)) is self.model, layer, teachers, ema, part

    trainer = Trainer()
    found, *_ = trainer.train()
    assert found
    assert sorted(one.name for one in finder.others) == ["ema", "ref_model", "teachers[0]", "vae"]


def test_a_model_that_is_nowhere_at_hand_is_not_made_up():
    def made_and_hidden():
        net = Net()
        return sgd(net)

    def train():
        another = Net()
        return look(made_and_hidden()), another

    assert train()[0] is None
    assert finder.roots == []


def test_no_tensor_lives_longer_for_having_been_looked_at():
    """Up to 3.12 f_locals is kept with the frame, and with it whatever the function had at hand."""

    seen = []

    def train():
        net = Net()
        optimizer = sgd(net)
        batch = torch.ones(2, 4)
        gone = weakref.ref(batch)

        def inner(optimizer):
            mine = torch.ones(3)
            mine_gone = weakref.ref(mine)
            seen.append(look(optimizer) is not None)
            del mine
            seen.append(mine_gone() is None)

        inner(optimizer)
        del batch
        seen.append(gone() is None)
        ref = weakref.ref(net)
        del net, optimizer
        gc.collect()  # a module is in cycles of its own
        seen.append(ref() is None)

    train()
    assert seen == [True] * 4, "found, and three that were free to go"
    assert finder.roots[0]() is None


def test_the_dictionary_of_a_function_that_asked_for_its_locals_is_left_alone():
    def train(rate, width):
        config = locals()
        net = Net()
        return config, look(sgd(net))

    assert train(0.1, 8) == ({"rate": 0.1, "width": 8}, None)


def test_an_eval_is_not_an_eval_of_the_model():
    def train():
        net = Net()
        net.eval()
        torch.stack([torch.ones(1)])
        net.train()
        return look(sgd(net)) is net

    def odd():
        net = Net()
        exec("kept = 5")
        found = look(sgd(net))
        # the dictionary of locals remembers it, up to 3.12
        return found, eval("kept") if CACHED else 5

    assert train()
    assert odd() == (None, 5)


def test_a_module_level_loop_keeps_its_globals(tmp_path):
    source = "net = make()\nkept = 5\nfound = look(sgd(net))\n"
    space = {"make": Net, "look": look, "sgd": sgd}
    exec(compile(source, "script.py", "exec"), space)
    assert space["kept"] == 5
    assert space["found"] is space["net"]


def test_a_tracer_means_hands_off():
    def train():
        net = Net()
        sys.settrace(lambda *_: None)
        try:
            return look(sgd(net))
        finally:
            sys.settrace(None)

    assert train() is None


def test_no_code_of_the_users_objects_is_run():
    class Touchy:
        def __getattribute__(self, name):
            raise AssertionError(name)

        @property
        def __class__(self):
            raise AssertionError

        def run(self, optimizer):
            return look(optimizer)

    def train():
        touchy = object.__new__(Touchy)
        net = Net()
        return Touchy.run(touchy, sgd(net)) is net

    assert train()


OTHER_PYTHONS = """
import sys, types, weakref

class Module:
    def __init__(self):
        self._parameters = {}
    def modules(self):
        return [self]

torch = types.ModuleType("torch")
torch.nn = types.SimpleNamespace(Module=Module)
sys.modules["torch"] = torch
from gpuscope.probe.model_finder import Finder

class Thing:
    pass

finder = Finder()

def look(optimizer):
    for _ in range(20):
        found = finder.after_step(optimizer)
        if found is not None:
            return found

def made():
    model, parameter, optimizer = Module(), Thing(), Thing()
    model._parameters["w"] = parameter
    optimizer.param_groups = [{"params": [parameter]}]
    return model, optimizer

def train():
    model, optimizer = made()
    batch = Thing()
    gone = weakref.ref(batch)
    found = look(optimizer)
    del batch
    return found is model, gone() is None

def of_its_arguments(args, parse):
    model, optimizer = made()
    config, more = vars(args), [vars(parse()), dict(**vars(args))]
    return look(optimizer) is model

def of_its_own():
    model, optimizer = made()
    kept = vars()
    kept["mine"] = 5
    return look(optimizer) is model, kept.get("mine")

def under_another_name():
    model, optimizer = made()
    mine = locals
    kept = mine()
    kept["mine"] = 5
    return look(optimizer) is model, kept.get("mine")

print(train(), of_its_arguments(Thing(), Thing), of_its_own(), under_another_name())
"""


@pytest.mark.slow
@pytest.mark.parametrize("minor", range(8, 16))
def test_locals_are_read_and_released_by_every_python(minor):
    """They keep them differently; torch is played here, for most have none."""
    python = pythons.find_or_skip(minor)
    root = Path(__file__).parent.parent.parent
    out = subprocess.run(
        [python, "-c", OTHER_PYTHONS],
        env={"PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    kept = f"({minor >= 13}, 5)"  # left alone where it is the dictionary, found where it is a copy
    assert out.stdout == f"(True, True) True {kept} {kept}\n", out.stderr
