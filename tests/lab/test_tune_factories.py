"""``gpuscope tune`` of a user's own model: what the first run says of it spares trials."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry
from gpuscope.lab.training import has_convolutions
from gpuscope.lab.tune.findings import Trial
from tests.fakes.program import program
from tests.lab.test_tune_search import Card

BASE = LabConfig(model="mine:factory", device="cuda", batch=8, accumulate=4)


class Factory(Card):
    """A simulated factory, whose runs also say what they know of the model and its batches."""

    convolutions = False
    same_batch = True

    def run(self, trial: Trial) -> Entry:
        entry = super().run(trial)
        entry.document.update(convolutions=self.convolutions, same_batch=self.same_batch)
        return entry

    def tried(self, **switches: object) -> bool:
        return any(
            all(getattr(trial.config, name) == value for name, value in switches.items())
            for trial in self.trials
        )


class Convolutional(Factory):
    convolutions = True


class Drawing(Factory):
    same_batch = False


def test_the_layout_of_convolutions_is_tried_only_where_there_are_some():
    for card in (Factory(), Convolutional()):
        card.tune(BASE)
        assert card.tried(channels_last=True) is card.convolutions
        assert card.tried(cudnn_benchmark=True) is card.convolutions


@pytest.mark.parametrize(
    ("model", "has"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 4)), False),
        (nn.Sequential(nn.Linear(4, 4), nn.Conv1d(4, 4, 3)), True),
        (nn.Sequential(nn.ConvTranspose2d(4, 4, 3)), True),
        (nn.ParameterList([nn.Parameter(torch.zeros(4, 4, 3, 3))]), True),
        (nn.ParameterList([nn.Parameter(torch.zeros(8, 4, 4))]), False),  # as experts have
    ],
)
def test_a_model_has_convolutions_by_its_layers_and_weights(model: nn.Module, has: bool):
    assert has_convolutions(model) is has


def host_bound(config: LabConfig) -> float:
    """Steps take as long as their launches, unless CUDA graphs replay them."""
    launches = 1.0 if config.compile != "reduce-overhead" else 0.4
    slower = {"off": 1.0, "bf16": 1.2, "fp16": 1.3}[config.amp] if launches == 1.0 else 1.0
    return 100.0 * (config.batch or 8) / (launches * slower)


def test_where_the_host_is_the_slower_one_and_time_is_short_graphs_come_before_precision():
    card = Factory(host_bound)
    found = card.tune(BASE, time_left=lambda: 110.0 - card.seconds)
    modes = [(trial.config.batch, trial.config.compile) for trial in card.trials]
    larger = modes.index((32, "off"))
    assert modes[larger + 1] == (32, "reduce-overhead"), modes
    # while it waits for the host TF32 brings no more than bf16 has
    assert not any(trial.config.tf32 and trial.config.batch == 8 for trial in card.trials)
    assert found.best.compile == "reduce-overhead"
    assert found.speed is not None
    assert found.speed.certain
    assert card.seconds <= 110.0


def casts_cost(config: LabConfig) -> float:
    """In bf16 its products take a third and its casts are launches; float32 waits for products."""
    products = 0.3 if config.amp == "bf16" else 0.25 if config.tf32 else 1.0
    launches = 0.2 if config.compile == "reduce-overhead" else 1.0
    casts = 0.2 if config.amp == "bf16" and config.compile == "off" else 0.0
    return 100.0 * (config.batch or 8) / max(products, launches + casts)


@pytest.mark.parametrize(("budget", "precision"), [(115.0, "bf16"), (200.0, "tf32")])
def test_what_precision_brings_to_a_model_that_waits_for_its_host_is_seen_with_cuda_graphs(
    budget: float, precision: str
):
    card = Factory(casts_cost)
    found = card.tune(BASE, time_left=lambda: budget - card.seconds)
    compiled = [trial.config for trial in card.trials if trial.config.compile != "off"]
    assert compiled[0].amp == "bf16"  # compiling float32 alone would bring nothing
    assert found.best.compile == "reduce-overhead"
    assert (found.best.amp == "bf16", found.best.tf32) == (precision == "bf16", precision == "tf32")
    assert found.speed is not None
    assert found.speed.certain
    assert card.seconds <= budget


def test_what_learns_worse_does_not_return_where_losses_cannot_be_compared():
    def loss(config: LabConfig) -> float:
        return 1.1 if config.amp == "bf16" else 1.0

    for card in (Factory(loss=loss), Drawing(loss=loss)):
        found = card.tune(BASE)
        assert found.best.amp != "bf16"
        # where other samples are drawn anyway, a loss at each micro-batch tells
        assert card.tried(amp="bf16", batch=32) is not card.same_batch, type(card)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "has"), [("mlp-tiny", False), ("conv-small", True)])
def test_a_run_says_whether_its_model_has_convolutions(model: str, has: bool):
    words = ("lab", "--device", "cpu", "--json", "--model", model, "--steps", "3", "--share-gpus")
    done = program(*words)
    assert json.loads(done.stdout)["convolutions"] is has, done.stderr
