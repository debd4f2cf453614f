"""The probe keeps some readings of the last ten minutes, from samples that are made anyway."""

from __future__ import annotations

from itertools import pairwise

from gpuscope.probe.recent import ALLOCATOR, KEPT, SAME_STEP, TRAINER, Recent
from gpuscope.wire.columns import COLUMNS
from gpuscope.wire.frames import AllocDef, Def, Sample, TrainerDef

NS = 10**9
DEFINITIONS = {
    1: Def(1, trainer=TrainerDef(4711)),
    2: Def(2, alloc=AllocDef(1, 0)),
    3: Def(3, alloc=AllocDef(1, -1)),
}


def sample(seconds: float, step: float) -> Sample:
    trainer = [None] * len(COLUMNS["t"])
    trainer[COLUMNS["t"].index("step")] = step
    trainer[COLUMNS["t"].index("loss")] = 0.123456789
    allocator = [None] * len(COLUMNS["a"])
    allocator[COLUMNS["a"].index("allocated_bytes")] = 5 << 30
    return Sample(1, int(seconds * NS), t=[[1, *trainer]], a=[[2, *allocator], [7, *allocator]])


def test_it_keeps_one_in_two_seconds_and_the_last_ten_minutes():
    kept = Recent()
    for n in range(3000):
        kept.note(sample(100 + n / 2, n), DEFINITIONS)
    answer = kept.answer()
    trainer = answer["trainer"]
    assert set(trainer) == {"m", *TRAINER}
    assert {len(values) for values in trainer.values()} == {KEPT}
    apart = {later - before for before, later in pairwise(trainer["m"])}
    assert apart == {2 * NS}
    assert trainer["step"][-1] == 2996
    assert trainer["loss"][-1] == 0.12346
    assert min(answer["process"]["rss_bytes"]) > 1 << 20, "this process holds some memory"
    assert trainer["input_seconds"] == [None] * KEPT
    ((ordinal, memory),) = answer["allocators"]
    assert (ordinal, set(memory)) == (0, {"m", *ALLOCATOR})
    assert memory["allocated_bytes"][-1] == 5 << 30, "bytes stay exact"


def test_of_a_trainer_that_hangs_it_keeps_what_came_before():
    kept = Recent()
    for n in range(5000):
        kept.note(sample(100 + 2 * n, min(n, 200)), DEFINITIONS)
    steps = kept.answer()["trainer"]["step"]
    assert steps[0] == 0
    assert steps.count(200) == SAME_STEP + 1


def test_a_sample_without_its_trainer_is_no_row():
    kept = Recent()
    kept.note(Sample(1, 100 * NS), DEFINITIONS)
    assert kept.answer() == {
        "trainer": {"m": [], **{name: [] for name in TRAINER}},
        "process": {"m": [], "rss_bytes": []},
        "allocators": [],
    }
