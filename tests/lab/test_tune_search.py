"""The search of ``gpuscope tune``: on simulated trainings whose best configuration is known."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.ledger import Entry, entry_of
from gpuscope.lab.run_facts import RunFacts
from gpuscope.lab.tune.findings import (
    CLEARLY_SLOWER,
    UNPROVED_STEP,
    Found,
    PredictedMemory,
    SearchSettings,
    Trial,
)
from gpuscope.lab.tune.search import NOT_BETTER, CannotTune, Search
from gpuscope.lab.tune.space import Limits

CUDA = RunFacts(
    "cuda", gpus=1, gpu_name="a card", capability=(9, 0), torch_version="2.13.0", cores=16,
    has_compiler=True,
)  # fmt: skip
BASE = LabConfig(model="gpt-small", device="cuda", batch=8, accumulate=4)
WHOLE = BASE.changed("batch", 32).changed("accumulate", 1)
FREE = Limits({}, free_batch=True)
SAME = Limits({})
SPENT = ("tune_seconds", "trial_seconds")
Rate = Callable[[LabConfig], float]


def rate(config: LabConfig) -> float:
    """Return samples per second of a training whose switches depend on each other."""
    speed = 100.0
    speed *= {"off": 1.0, "bf16": 2.0, "fp16": 1.8}[config.amp]
    if config.tf32 and config.amp == "off":
        speed *= 1.6
    speed *= {"off": 1.0, "default": 1.3, "reduce-overhead": 1.35, "max-autotune": 1.36}[
        config.compile
    ]
    batch = config.batch or 8
    host = {"off": 30.0, "default": 15.0, "reduce-overhead": 2.0, "max-autotune": 2.0}[
        config.compile
    ]
    speed *= batch / (batch + host * (1.0 if config.amp == "off" else 2.0) / 8)
    if config.checkpoint:
        speed *= 0.75
    return speed * (1.02 if config.fused else 1.0)


class Card:
    """A simulated card that runs trials with some noise between processes."""

    def __init__(
        self,
        rate: Rate = rate,
        noise: float = 0.005,
        seed: int = 0,
        memory: int = 80 << 30,
        loss: Rate = lambda config: 1.0,
        drift: float = 0.0,
        watts: Callable[[LabConfig], float | None] = lambda config: None,
    ) -> None:
        self.watts = watts
        self.rate, self.noise, self.memory, self.loss, self.drift = rate, noise, memory, loss, drift
        self.random = random.Random(seed)
        self.trials: list[Trial] = []
        self.seconds = 0.0
        self._compiled: set[LabConfig] = set()

    def seconds_of(self, config: LabConfig) -> float:
        """Return how long the next trial takes; one that compiles takes less the second time."""
        if config.compile == "off" or config in self._compiled:
            return 8.0
        self._compiled.add(config)
        return {"default": 24.0, "reduce-overhead": 26.0, "max-autotune": 70.0}[config.compile]

    def need(self, config: LabConfig) -> int:
        half = 0.6 if config.amp != "off" else 1.0
        kept = 0.3 if config.checkpoint else 1.0
        return int((4 + (config.batch or 8) * half * kept) * (1 << 30))

    def run(self, trial: Trial) -> Entry:
        config = trial.config
        self.trials.append(trial)
        took = self.seconds_of(config)
        if trial.rival and self.rate(config) < CLEARLY_SLOWER * trial.rival:
            took -= 3.5  # half of its steps
        if trial.seconds is not None and took > trial.seconds:
            self.seconds += trial.seconds
            error = {"what": "The trial was stopped.", "why": "a test", "next": ""}
            return entry_of(
                {"config": config.to_mapping(), "error": error},
                repeat=trial.repeat,
                environment=dict.fromkeys(SPENT, trial.seconds),
            )
        self.seconds += took
        if self.need(config) > self.memory:
            error = {"what": "CUDA ran out of memory.", "why": "a test", "next": ""}
            return entry_of({"config": config.to_mapping(), "error": error}, repeat=trial.repeat)
        slow = 1.0 - self.drift * len(self.trials)
        speed = self.rate(config) * slow * math.exp(self.random.gauss(0, self.noise))
        samples = (config.batch or 8) * config.accumulate
        step = samples / speed
        curve = [[samples * n, 2.0 * self.loss(config) + 4.0 / n] for n in range(1, 40)]
        seconds = {"median": step, "low": 0.998 * step, "high": 1.002 * step, "count": 40}
        document = {
            "config": config.to_mapping(),
            "samples_per_second": speed,
            "samples_per_step": samples,
            "warmup_seconds": 1.0 if config.compile == "off" else max(1.0, took - 7.0),
            "step_seconds": {**seconds, "p95": step},
            "peak_reserved_bytes": self.need(config),
            "power_watts": self._power(config),
            "loss_curve": curve,
        }
        environment = dict.fromkeys(SPENT, took)
        return entry_of(document, repeat=trial.repeat, environment=environment)

    def _power(self, config: LabConfig) -> float | None:
        watts = self.watts(config)
        return watts and watts * math.exp(self.random.gauss(0, self.noise))

    def tune(self, base: LabConfig = BASE, **settings: Any) -> Found:
        settings.setdefault("limits", SAME)
        search = Search(base, lambda config: CUDA, SearchSettings(**settings))
        return drive(search.run(), self.run)


def drive(steps: Generator[Trial, Entry, Found], run: Callable[[Trial], Entry]) -> Found:
    try:
        trial = next(steps)
        while True:
            trial = steps.send(run(trial))
    except StopIteration as end:
        found: Found = end.value
        return found


def grid(card: Card, base: LabConfig = BASE) -> tuple[float, int]:
    """Return the best rate of an exhaustive grid over the same switches, and its size."""
    total = (base.batch or 8) * base.accumulate
    rows = itertools.product(
        ("off", "bf16", "fp16"), (False, True), ("off", "default", "reduce-overhead"),
        [size for size in range(1, total + 1) if total % size == 0 and size >= 4],
        (None, True), (False, True),
    )  # fmt: skip
    rates = []
    for amp, tf32, mode, batch, fused, checkpoint in rows:
        config = LabConfig.from_mapping(
            {
                **base.to_mapping(), "amp": amp, "tf32": tf32, "compile": mode, "batch": batch,
                "accumulate": total // batch, "fused": fused, "checkpoint": checkpoint,
            }
        )  # fmt: skip
        if card.need(config) <= card.memory:
            rates.append(card.rate(config))
    return max(rates), len(rates)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("memory", [80 << 30, 16 << 30])
def test_it_finds_nearly_the_best_of_a_grid_in_a_fraction_of_its_runs(seed: int, memory: int):
    card = Card(seed=seed, memory=memory)
    best, size = grid(card)
    found = card.tune()
    assert card.rate(found.best) >= 0.97 * best
    assert len(card.trials) <= size / 4
    assert found.speed is not None
    assert found.speed.certain
    true = card.rate(found.best) / card.rate(BASE)
    assert found.speed.ratio == pytest.approx(true, rel=0.03)


def test_nothing_is_faster_where_no_switch_does_anything():
    for seed in range(20):
        card = Card(lambda config: 100.0, noise=0.01, seed=seed)
        found = card.tune()
        assert found.best == BASE, seed


def test_where_nothing_is_proved_no_candidate_is_called_kept():
    """The heading tells to keep the baseline: no row below it may say that it was kept instead."""

    class Fickle(Card):
        """A card on which what was faster in the search is not so in the proof."""

        def run(self, trial: Trial) -> Entry:
            self.rate = (lambda config: 100.0) if trial.purpose.startswith("the proof") else rate
            return super().run(trial)

    found = Fickle().tune()
    assert found.best == BASE
    (again,) = (row for row in found.rows if row.reason.startswith(NOT_BETTER))
    assert again.speed.ratio == pytest.approx(1.0, abs=0.03), "not the gain of the search"
    assert (again.against, again.status) == (BASE, "no_difference")
    assert again.reason.endswith(": its ratio is of these 3 pairs of runs, in turns")
    assert "kept" not in {row.status for row in found.rows}
    seemed = [row for row in found.rows if row.reason == UNPROVED_STEP]
    assert [row.status for row in seemed] == ["no_difference"] * len(seemed)
    assert seemed


def test_a_machine_that_becomes_slower_does_not_hide_what_is_faster():
    found = Card(drift=0.004).tune()
    assert found.best.amp == "bf16"
    assert found.best.compile != "off"


def test_what_brings_nothing_is_taken_back():
    found = Card(lambda config: 200.0 if config.amp == "bf16" else 100.0).tune()
    assert found.best == BASE.changed("amp", "bf16")
    assert [switch.name for switch in found.switches] == ["amp"]
    brings = found.switches[0].brings
    assert brings == found.speed, "both compare the best with the baseline"
    assert [row.speed for row in found.rows if row.config == found.best] == [found.speed]
    assert brings is not None
    assert brings.ratio == pytest.approx(2.0, rel=0.05)


def test_a_switch_without_which_nothing_runs_is_a_row_that_says_so():
    found = Card(memory=24 << 30).tune(limits=FREE)
    (brings,) = [one for one in found.switches if one.name == "amp"]
    assert brings.reason == "does not fit without it"
    (without,) = [row for row in found.rows if row.changed == {"amp": "off"}]
    assert without.status == "does_not_fit"
    assert "memory" in without.reason


def test_a_configuration_that_learns_worse_is_not_offered():
    card = Card(
        loss=lambda config: 1.05 if config.amp == "fp16" else 1.02 if config.amp == "bf16" else 1.0
    )
    found = card.tune()
    assert found.best.amp == "off"
    rows = {row.config.amp: row for row in found.rows if row.config.compile == "off"}
    assert rows["bf16"].status == "loss"
    assert "higher" in rows["bf16"].reason


def test_the_batch_stays_unless_it_is_free():
    same, free = Card().tune(), Card().tune(limits=FREE)
    assert (same.best.batch or 0) * same.best.accumulate == 32
    assert (free.best.batch or 0) * free.best.accumulate > 32


def test_a_failure_is_a_row_and_the_search_goes_on():
    found = Card(memory=16 << 30).tune(limits=FREE)
    failed = [row for row in found.rows if row.status == "does_not_fit"]
    assert failed
    assert all("memory" in row.reason for row in failed)
    assert found.speed is not None
    assert found.speed.ratio > 1.5


def test_what_is_predicted_not_to_fit_is_not_run_and_what_is_close_is_run_last():
    def fits(config: LabConfig) -> PredictedMemory:
        if config.batch == 32:
            return PredictedMemory("does_not_fit", 1 << 40, "needs 1 TiB")
        return PredictedMemory("too_close" if config.amp == "bf16" else "fits", 1 << 30)

    card = Card()
    found = card.tune(fits=fits)
    amps = [trial.config.amp for trial in card.trials]
    assert all(trial.config.batch != 32 for trial in card.trials)
    assert found.best.amp == "bf16"
    compiled = next(i for i, trial in enumerate(card.trials) if trial.config.compile != "off")
    assert amps.index("bf16") > compiled
    assert next(row for row in found.rows if row.config.batch == 32).status == "does_not_fit"


def test_a_budget_ends_the_search_and_keeps_the_proof():
    card = Card()
    found = card.tune(time_left=lambda: 150.0 - card.seconds)
    assert "too short" in found.stopped
    assert found.speed is not None
    assert found.best.amp == "bf16"
    assert any(row.status == "not_tried" for row in found.rows)
    assert card.seconds <= 150.0


@pytest.mark.parametrize("budget", range(60, 1000, 90))
def test_a_budget_is_never_exceeded_and_the_proof_is_within_it(budget: int):
    card = Card()
    found = card.tune(time_left=lambda: budget - card.seconds)
    assert card.seconds <= budget
    assert found.best.amp == "bf16"
    assert found.speed is not None


def slow_in_the_proof(card: Card) -> Card:
    """Let the first two trials take as long as expected, and all later ones twice as long."""
    card.seconds_of = lambda config: 8.0 if len(card.trials) < 3 else 17.0  # type: ignore[method-assign]
    return card


def test_a_budget_that_is_too_small_for_the_proof_keeps_the_baseline_and_says_so():
    card = slow_in_the_proof(Card(lambda config: 130.0 if config.amp == "bf16" else 100.0))
    found = card.tune(WHOLE, time_left=lambda: 58.0 - card.seconds)
    assert found.best == WHOLE
    (row,) = [row for row in found.rows if row.config == WHOLE.changed("amp", "bf16")]
    assert row.status == "not_proved"
    assert "s more" in row.reason


def test_one_pair_proves_what_is_so_much_faster_that_processes_cannot_differ_by_it():
    card = slow_in_the_proof(Card(lambda config: 300.0 if config.amp == "bf16" else 100.0))
    found = card.tune(WHOLE, time_left=lambda: 58.0 - card.seconds)
    assert found.best == WHOLE.changed("amp", "bf16")
    assert found.speed is not None
    assert found.speed.basis == "1 pair of runs"
    assert found.speed.low is not None
    assert 2.9 < found.speed.low < found.speed.ratio


def test_where_there_is_time_for_few_trials_the_first_changes_what_usually_brings_most():
    card = Card()
    found = card.tune(time_left=lambda: 60.0 - card.seconds)
    assert card.trials[1].config == WHOLE.changed("amp", "bf16") == found.best
    assert found.speed is not None
    assert card.seconds <= 60.0
    whole = Card()
    whole.tune(time_left=lambda: 300.0 - whole.seconds)
    assert whole.trials[1].config == BASE.changed("amp", "bf16")


def test_after_a_jump_that_brings_little_the_precision_alone_is_doubted():
    """bf16 makes it slower, and the micro-batch three times as fast."""
    rate: Rate = lambda config: (  # noqa: E731  # it is one value
        100.0 * (3 if config.batch == 32 else 1) * (0.6 if config.amp == "bf16" else 1)
    )
    card = Card(rate)
    found = card.tune(time_left=lambda: 75.0 - card.seconds)
    assert card.trials[1].config == WHOLE.changed("amp", "bf16")
    assert found.best.batch == 32
    assert found.best.amp == "off"


def test_a_jump_that_learns_worse_or_is_slower_is_not_kept():
    card = Card(loss=lambda config: 1.05 if config.amp == "bf16" else 1.0)
    found = card.tune(time_left=lambda: 70.0 - card.seconds)
    assert found.best.amp != "bf16"
    assert card.seconds <= 70.0


def test_nothing_is_compiled_that_would_be_cut_or_leaves_no_time_for_the_proof():
    for budget in range(50, 130, 4):
        card = Card()
        found = card.tune(time_left=lambda: budget - card.seconds)  # noqa: B023  # it is used here
        cut = [row for row in found.rows if row.status == "failed"]
        assert not cut, budget
        assert not [row for row in found.rows if row.status == "not_proved"], budget
        assert card.seconds <= budget


def test_after_a_cut_compilation_none_begins_that_takes_as_long():
    card = Card()
    plain = card.seconds_of
    card.seconds_of = lambda config: 8.0 if config.compile == "off" else 200.0  # type: ignore[method-assign]
    found = card.tune(time_left=lambda: 180.0 - card.seconds)
    assert len([row for row in found.rows if row.status == "failed"]) == 1
    assert found.best.amp == "bf16"
    assert plain(BASE) == 8.0


def test_where_time_is_short_compiling_comes_before_what_brings_little():
    base = LabConfig(model="conv-small", device="cuda", batch=8, accumulate=4)
    short, long = Card(), Card()
    for card, budget in ((short, 130.0), (long, 900.0)):
        card.tune(base, time_left=lambda: budget - card.seconds)  # noqa: B023  # it is used here
    first = []
    for card in (short, long):
        compiled = next(i for i, one in enumerate(card.trials) if one.config.compile != "off")
        extras = [one.config.channels_last for one in card.trials[:compiled]]
        first.append(any(extras))
    assert first == [False, True]


def test_what_the_compiler_lays_out_is_tried_again_in_the_usual_layout():
    """Without the compiler channels_last is faster, and with it slower."""

    def rate(config: LabConfig) -> float:
        compiled = config.compile != "off"
        layout = (0.9 if compiled else 1.2) if config.channels_last else 1.0
        return 100.0 * layout * (2.0 if compiled else 1.0)

    base = LabConfig(model="conv-small", device="cuda", batch=8, accumulate=4)
    card = Card(rate)
    found = card.tune(base)
    assert found.best.compile != "off"
    assert not found.best.channels_last
    assert "channels_last=off" in [trial.purpose for trial in card.trials]


def test_a_wide_interval_gets_more_pairs():
    noisy, calm = Card(noise=0.08, seed=1), Card(noise=0.002, seed=1)
    pairs = []
    for card in (noisy, calm):
        card.tune(WHOLE)
        proof = [trial for trial in card.trials if trial.purpose.startswith("the proof")]
        pairs.append(len(proof) // 2)
    assert pairs[0] > pairs[1] == 3


def test_where_the_proof_of_the_best_takes_too_long_the_next_best_is_proved():
    def rate(config: LabConfig) -> float:
        return (
            100.0 * (1.3 if config.amp == "bf16" else 1) * (1.1 if config.compile != "off" else 1)
        )

    card = Card(rate)
    ends: list[float] = []

    def time_left() -> float:
        """Return the time left: 32 s once something was compiled, as if the machine had slept."""
        if not ends and any(trial.config.compile != "off" for trial in card.trials):
            ends.append(card.seconds + 32.0)
        return (ends[0] if ends else 300.0) - card.seconds

    found = card.tune(time_left=time_left)
    assert found.best.amp == "bf16"
    assert found.best.compile == "off"
    assert found.speed is not None
    assert found.speed.certain
    compiled = [row for row in found.rows if row.config.compile != "off"]
    assert "not_proved" in {row.status for row in compiled}
    assert card.seconds <= ends[0]


def test_fp16_is_tried_only_where_bf16_cannot_be_used():
    assert not [row for row in Card().tune().rows if row.config.amp == "fp16"]
    loss: Rate = lambda config: 1.05 if config.amp == "bf16" else 1.0  # noqa: E731  # it is one value
    assert Card(loss=loss).tune().best.amp == "fp16"


def test_a_higher_loss_is_offered_where_the_user_allows_it():
    loss: Rate = lambda config: 1.03 if config.amp == "bf16" else 1.0  # noqa: E731  # it is one value
    assert Card(loss=loss).tune(keep_loss=0.01).best.amp != "bf16"
    assert Card(loss=loss).tune(keep_loss=0.05).best.amp == "bf16"


def test_what_was_slower_at_a_small_micro_batch_is_tried_again_at_a_larger_one():
    def rate(config: LabConfig) -> float:
        """Return the speed of a training whose host is the slower one until its batch is 32."""
        large = (config.batch or 8) >= 32
        return (
            100.0 * (3.0 if large else 1.0) * (1.0 if config.amp == "off" else 2 if large else 0.7)
        )

    found = Card(rate).tune()
    assert (found.best.amp, found.best.batch) == ("bf16", 32)


def test_leave_one_out_trials_come_only_after_everything_else_was_tried():
    card = Card()
    card.tune(time_left=lambda: 900.0 - card.seconds)
    purposes = [trial.purpose for trial in card.trials]
    first = next(i for i, purpose in enumerate(purposes) if purpose.startswith("without"))
    assert not any("=" in purpose for purpose in purposes[first:])
    short = Card()
    found = short.tune(time_left=lambda: 110.0 - short.seconds)
    assert found.best.compile != "off"
    assert not [trial for trial in short.trials if trial.purpose.startswith("without")]
    reasons = {switch.name: switch.reason for switch in found.switches}
    assert "× [" in reasons["amp"]


def test_what_is_clearly_far_from_the_memory_is_not_predicted():
    asked: list[LabConfig] = []
    card = Card()
    card.tune(capacity=80 << 30, fits=asked.append)  # type: ignore[arg-type]  # it returns None
    assert asked
    assert min(card.need(config) for config in asked) > 10 << 30
    assert BASE.changed("amp", "bf16") not in asked


def test_only_the_switches_that_the_user_names_are_changed():
    found = Card().tune(limits=Limits({"compile": ["off", "default"]}))
    assert found.best == BASE.changed("compile", "default")


def test_a_baseline_that_does_not_fit_is_replaced_by_one_that_does():
    card = Card(memory=9 << 30)
    found = card.tune()
    assert found.baseline_failure
    assert found.best != BASE
    assert card.need(found.best) <= card.memory
    assert found.speed is None


def test_where_nothing_runs_the_error_says_why():
    with pytest.raises(CannotTune, match="does not run"):
        Card(memory=1 << 30).tune()


def test_the_same_entries_lead_to_the_same_search():
    card = Card(seed=3)
    entries: dict[tuple[LabConfig, int], Entry] = {}

    def remember(trial: Trial) -> Entry:
        entry = entries[trial.config, trial.repeat] = card.run(trial)
        return entry

    settings = SearchSettings(limits=SAME)
    first = drive(Search(BASE, lambda config: CUDA, settings).run(), remember)
    again = drive(
        Search(BASE, lambda config: CUDA, settings).run(),
        lambda trial: entries[trial.config, trial.repeat],
    )
    assert (first.best, first.speed) == (again.best, again.speed)


def test_the_budget_that_should_be_enough_is_enough():
    def search(budget: float) -> tuple[Found, float]:
        card = Card()
        return card.tune(time_left=lambda: budget - card.seconds), card.seconds

    short, spent = search(10.0)
    assert short.more_seconds is not None
    left_out = {row.config for row in short.rows if row.status == "not_tried"}
    long, _ = search(spent + short.more_seconds)
    assert left_out
    assert long.speed is not None
    assert not left_out & {row.config for row in long.rows if row.status == "not_tried"}


def test_a_candidate_is_being_tried_until_it_is_decided():
    """The screen of a search shows its rows while it runs, and when it was stopped."""
    card = Card(noise=0.2)
    search = Search(BASE, lambda config: CUDA, SearchSettings(limits=SAME))
    steps, during = search.run(), []

    def run(trial: Trial) -> Entry:
        during.append({row.config: row.status for row in search.rows}.get(trial.config))
        assert "refused" not in {row.status for row in search.rows}
        return card.run(trial)

    found = drive(steps, run)
    assert "trying" in during
    assert "trying" not in {row.status for row in found.rows}
