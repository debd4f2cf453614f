"""The grid that ``gpuscope tune`` is measured beside, and the turns in which its result runs."""

from __future__ import annotations

from bench.tune.plan import Plan, grid
from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import entry_of
from gpuscope.lab.run_facts import RunFacts
from gpuscope.lab.tune.findings import Trial

CUDA = RunFacts(
    "cuda", gpus=1, gpu_name="a card", capability=(9, 0), torch_version="2.13.0", cores=16,
    has_compiler=True,
)  # fmt: skip
BASE = LabConfig(model="conv-small", device="cuda", batch=8, accumulate=4)


def test_a_grid_has_every_combination_at_the_same_effective_batch():
    found, refused = grid(BASE, 8, lambda config: CUDA)
    # Precision 3, compile 3, fused 2, channels_last 2, micro-batches 4, 8, 16 and 32.
    assert len(found) + refused == len(set(found)) + refused == 3 * 3 * 2 * 2 * 4
    assert {(config.batch or 0) * config.accumulate for config in found} == {32}
    assert BASE in found


def test_turns_begin_with_another_configuration_in_each_round():
    other = BASE.changed("amp", "bf16")
    plan = Plan([BASE, other, BASE], 2, "a test")
    steps = plan.run()
    asked: list[Trial] = [next(steps)]
    for _ in range(3):
        asked.append(steps.send(entry_of({"config": asked[-1].config.to_mapping()})))
    assert [(trial.config, trial.repeat) for trial in asked] == [
        (BASE, 0), (other, 0), (other, 1), (BASE, 1),
    ]  # fmt: skip


def test_two_cards_share_the_rounds_of_a_plan_and_each_round_is_of_one_card():
    other = BASE.changed("amp", "bf16")
    plan = Plan([BASE, other], 3, "a test", whole_rounds=True)
    cards = [plan.run(), plan.run()]
    waiting = [next(card) for card in cards]
    by_card: list[list[int]] = [[], []]
    for turn in (0, 1, 1, 1, 1, 0):
        trial = waiting[turn]
        by_card[turn].append(trial.repeat)
        entry = entry_of({"config": trial.config.to_mapping()}, repeat=trial.repeat)
        try:
            waiting[turn] = cards[turn].send(entry)
        except StopIteration:
            pass
    assert by_card == [[0, 0], [1, 1, 2, 2]]
    for config in (BASE, other):
        assert [entry.repeat for entry in plan.entries[config]] == [0, 1, 2]
