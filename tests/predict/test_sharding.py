"""One rank of several has its share.

The tests see what is divided, what is whole for a while, and that every block is still given back
once.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.predict import from_lab_config
from gpuscope.predict.fully_sharded import GATHER_STREAM, Policy
from gpuscope.predict.report import doubt_text
from gpuscope.predict.request import CannotPredict, Doubt, Request
from gpuscope.predict.sharding import sharded
from gpuscope.predict.trace import Owner, PhaseMark, Trace

MIB = 1 << 20
LAYERS = 4


def training() -> Trace:
    """Return the trace of four layers of 16 MiB and an embedding of 8.

    Adam's two moments are made in the first step, and there are two steps.
    """
    trace = Trace()

    def allocate(size: int, owner: Owner) -> int:
        if owner not in trace.owner_table:
            trace.owner_table.append(owner)
        trace.sizes.append(size)
        trace.owners.append(trace.owner_table.index(owner))
        trace.events.append(len(trace.sizes) - 1)
        return len(trace.sizes) - 1

    def mark(name: str) -> None:
        trace.marks.append(PhaseMark(len(trace.events), name))

    layers = [(f"blocks.{number}.linear", 16 * MIB) for number in range(LAYERS)] + [
        ("tokens", 8 * MIB)
    ]
    mark("build")
    for name, size in layers:
        allocate(size, Owner("parameter", name))
    gradients: list[int] = []
    for step in (1, 2):
        mark(f"step {step}")
        mark("forward")
        trace.events += [~block for block in gradients]
        activations = [allocate(32 * MIB, Owner("activation", name)) for name, _ in layers]
        mark("backward")
        gradients = [allocate(size, Owner("gradient", name)) for name, size in reversed(layers)]
        trace.events += [~block for block in activations]
        mark("optimizer")
        if step == 1:
            for name, size in layers * 2:
                allocate(size, Owner("optimizer", name))
        temporary = [allocate(size, Owner("temporary", name)) for name, size in layers]
        trace.events += [~block for block in temporary]
    mark("end")
    return trace


def peaks(trace: Trace) -> tuple[int, dict[str, int]]:
    """The peak, and what is held at the end by category; checks that the trace is well formed."""
    live: set[int] = set()
    now = most = 0
    assert sorted(mark.at for mark in trace.marks) == [mark.at for mark in trace.marks]
    for event in trace.events:
        if event >= 0:
            assert event not in live
            live.add(event)
            now += trace.sizes[event]
        else:
            live.remove(~event)
            now -= trace.sizes[~event]
        most = max(most, now)
    held: dict[str, int] = defaultdict(int)
    for block in live:
        held[trace.owner(block).category] += trace.sizes[block]
    return most, dict(held)


MODEL = 72 * MIB


def test_nothing_is_changed_without_sharding() -> None:
    plain = training()
    assert sharded(plain, "none", 8) == (plain, [])


def test_ddp_was_traced_with_its_buckets() -> None:
    plain = training()
    trace, doubts = sharded(plain, "ddp", 8)
    assert trace == plain
    assert [doubt.code for doubt in doubts] == ["sharding"]


@pytest.mark.parametrize(("ranks", "most"), [(2, 40), (4, 24), (8, 16)])
def test_zero1_gives_whole_parameters_to_each_rank(ranks: int, most: int) -> None:
    # four of 16 MiB and one of 8
    _, held = peaks(sharded(training(), "zero1", ranks)[0])
    expected = {"parameter": MODEL, "gradient": MODEL, "optimizer": 2 * most * MIB}
    assert held == pytest.approx(expected, abs=16)  # each block is rounded up


@pytest.mark.parametrize(
    ("kind", "parameters", "gradients", "states"),
    [("zero2", 1, 1 / 8, 2 / 8), ("fsdp", 1 / 8, 1 / 8, 2 / 8)],
)
def test_what_the_ranks_share_is_divided(
    kind: str, parameters: float, gradients: float, states: float
) -> None:
    most, held = peaks(sharded(training(), kind, 8)[0])
    assert held == {
        "parameter": parameters * MODEL,
        "gradient": gradients * MODEL,
        "optimizer": states * MODEL,
    }
    assert most < peaks(training())[0] + MODEL


def gathered(trace: Trace, phase: str) -> list[int]:
    """Return the sizes in MiB of what is gathered in the first phase of that name."""
    begin = next(mark.at for mark in trace.marks if mark.name == phase)
    end = next(mark.at for mark in trace.marks if mark.at > begin)
    return [
        trace.sizes[block] // MIB
        for block in trace.events[begin:end]
        if block >= 0 and trace.streams.get(block) == GATHER_STREAM
    ]


def test_fsdp_gathers_each_block_in_both_passes() -> None:
    trace, _ = sharded(training(), "fsdp", 8)
    assert gathered(trace, "forward") == [8, 16, 16, 16, 16]
    assert gathered(trace, "backward") == [16, 16, 16, 16]  # the root is still whole
    trace, _ = sharded(training(), "fsdp", 8, Policy(reshard="always"))
    assert gathered(trace, "backward") == [8, 16, 16, 16, 16]
    assert peaks(trace)[0] < peaks(sharded(training(), "fsdp", 1)[0])[0]


def test_fsdp_without_resharding_gathers_in_the_forward_pass_alone() -> None:
    trace, _ = sharded(training(), "fsdp", 8, Policy(reshard="never"))
    assert gathered(trace, "forward") == [8, 16, 16, 16, 16]
    assert gathered(trace, "backward") == []
    most = peaks(sharded(training(), "fsdp", 8)[0])[0]
    assert most < peaks(trace)[0] <= most + MODEL


def test_a_model_that_is_sharded_as_a_whole_is_gathered_at_once() -> None:
    trace, _ = sharded(training(), "fsdp", 8, Policy(wrap="root"))
    assert gathered(trace, "forward") == [72]
    assert gathered(trace, "backward") == []


def test_parameters_in_16_bits_are_cast_before_they_are_gathered() -> None:
    # the trace is that of a model in bf16; each rank keeps its shares in float32
    trace, _ = sharded(training(), "fsdp", 8, Policy(params="bf16", reduce="fp32"))
    assert gathered(trace, "forward") == [1, 8, 2, 16, 2, 16, 2, 16, 2, 16]
    held = {"parameter": MODEL / 4, "gradient": MODEL / 4, "optimizer": MODEL / 2}
    assert peaks(trace)[1] == held


def test_what_is_offloaded_is_on_the_gpu_only_while_it_is_gathered() -> None:
    trace, _ = sharded(training(), "fsdp", 8, Policy(offload=True))
    assert gathered(trace, "forward") == [1, 8, 2, 16, 2, 16, 2, 16, 2, 16]
    assert sum(peaks(trace)[1].values()) == 0


def test_blocks_are_gathered_ahead_where_the_program_asks_for_it() -> None:
    plain = peaks(sharded(training(), "fsdp", 8)[0])[0]
    ahead = peaks(sharded(training(), "fsdp", 8, Policy(ahead=2))[0])[0]
    assert plain < ahead <= plain + 2 * 16 * MIB


def test_a_program_with_deepspeeds_engine_is_told_to_give_its_file() -> None:
    failures = pytest.importorskip("gpuscope.predict.tracing.failures")
    error = ModuleNotFoundError("No module named 'deepspeed'")
    assert "--deepspeed ds_config.json" in failures.in_words(Request("m:f"), error).next


def test_the_first_device_of_data_parallel_holds_its_part_and_all_outputs() -> None:
    steps = pytest.importorskip("gpuscope.predict.tracing.steps")
    kinds = {"alone": {}, "two": {"ranks": 2}, "four": {"ranks": 4}}

    def held(**more: Any) -> int:
        sharding = "dp" if more else "none"
        trace = steps.trace(Request("gpt-tiny", 64, sharding=sharding, **more)).trace
        return sum(
            size
            for block, size in enumerate(trace.sizes)
            if trace.owner(block).category == "activation"
        )

    found = {name: held(**more) for name, more in kinds.items()}
    assert found["two"] / found["alone"] == pytest.approx(1 / 2, abs=0.1)
    assert found["four"] / found["alone"] == pytest.approx(1 / 4, abs=0.1)
    request = from_lab_config.request_of(LabConfig(parallel="dp"), "9.0")
    assert (request.sharding, request.ranks) == ("dp", 2)


def test_what_makes_no_sense_is_said() -> None:
    for kind, ranks in (("zero9", 2), ("ddp", 0)):
        with pytest.raises(CannotPredict):
            sharded(training(), kind, ranks)


def test_the_race_inside_nccl_is_told_with_what_to_plan_for() -> None:
    pytest.importorskip("torch")
    from gpuscope.predict.tracing import ddp

    doubt = Doubt("sharding", ddp.MAY_KEEP, "nccl watchdog", 9.0, upward=True, replayed=True)
    said = doubt_text(doubt)
    assert said.startswith("Two runs of this training may differ by chance")
    assert said.endswith("Plan for the higher amount. (up to 9 % more)")


def test_a_single_rank_is_not_called_ranks() -> None:
    _, doubts = sharded(training(), "ddp", 1)
    assert "One of 1 rank was" in doubts[0].text
