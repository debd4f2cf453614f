"""Verdict, largest batch and what-if over traces written by hand, whose sums are known."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpuscope.model.allocator_settings import DEFAULT, read
from gpuscope.predict import errors, largest, report, verdict, whatif
from gpuscope.predict.allocator import simulate
from gpuscope.predict.answer import Card, TracedRequest
from gpuscope.predict.batch_scaling import family
from gpuscope.predict.chunked import NotHere, in_chunks
from gpuscope.predict.document import document
from gpuscope.predict.prediction import LIVE_PARTS
from gpuscope.predict.request import CannotPredict, Doubt, Request, Traced
from gpuscope.predict.trace import Trace
from gpuscope.text.styled import plain
from gpuscope.text.units import bytes_text
from tests.predict.hand_made import (
    LAYERS,
    LOSS_PER_SAMPLE,
    MIB,
    PER_SAMPLE,
    WEIGHT,
    Writer,
    traced,
    training,
)

REQUEST = Request("hand", batch=8)
STATIC = 3 * LAYERS * WEIGHT  # weights and Adam's two states
PEAK = STATIC + 8 * (LAYERS * PER_SAMPLE + 3 * LOSS_PER_SAMPLE)


def card(gib: float) -> Card:
    return Card("h200", "h200", int(gib * (1 << 30)), "9.0")


def asked(
    gib: float | None = 16, request: Request = REQUEST, tmp=None, doubts=(), **options
) -> TracedRequest:
    def doubted(one: Request):
        found = traced(one)
        return replace(found, doubts=[*found.doubts, *doubts])

    return TracedRequest(request, doubted, card(gib) if gib else None, cache=tmp, **options)


@pytest.fixture(autouse=True)
def _no_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_the_peaks_are_the_sums_of_the_blocks_and_the_parts_add_up():
    answer = asked().finish()
    found = answer.prediction
    assert found.allocated.bytes == PEAK
    assert found.device.bytes == found.reserved.bytes + (631 + 615) * MIB
    assert found.reserved.bytes >= PEAK
    assert sum(found.categories.values()) == sum(answer.modules.values()) == PEAK
    live = [getattr(found, name) for name in LIVE_PARTS]
    assert sum(part.bytes for part in live) == PEAK
    assert found.parameters.bytes == LAYERS * WEIGHT
    assert found.allocated.bytes + found.fragmentation.bytes == found.reserved.bytes
    assert found.reserved.bytes + found.outside_torch.bytes == found.device.bytes
    # Small blocks have an error that is no part's; each part's is cut to whole bytes.
    missing = (
        found.allocated.error_bytes - errors.FIXED_BYTES - sum(part.error_bytes for part in live)
    )
    assert 0 <= missing <= len(live)
    assert found.parameters.error_bytes == int(found.parameters.bytes * errors.RATES["parameter"])
    assert found.activations.error_bytes == int(
        found.activations.bytes * errors.RATES["activation"]
    )
    assert (answer.peak_at.step, answer.peak_at.phase) == ("step 2", "backward")
    assert answer.operation == "_log_softmax_backward_data"
    for figure in (found.allocated, found.reserved, found.device):
        assert 0 < figure.error_percent < 10


def test_the_verdict_is_a_replay_against_the_limit():
    need = asked(None).finish().prediction.device
    error = need.error_bytes
    assert asked((need.bytes + 2 * error) / (1 << 30)).answer.verdict.outcome == "fits"
    assert asked(need.bytes / (1 << 30)).answer.verdict.outcome == "too_close"
    small = (PEAK + (631 + 615) * MIB - 2 * error) / (1 << 30)
    found = asked(small).answer.verdict
    assert found.outcome == "does_not_fit"
    assert found.spare_bytes < 0


def test_giving_cache_back_counts_as_fitting():
    # The peak of reserved without a limit needs not be had: 100 MiB of cache are given back for a
    # request of 150.
    write = Writer()
    for size in (100, 150):
        block = write.make(size * MIB, "temporary")
        write.drop(block)
    free = simulate(write.trace)
    assert free.peak_reserved_bytes == 250 * MIB
    tried = []

    def replay(limit: int) -> verdict.Replay:
        found = simulate(write.trace, DEFAULT, limit)
        tried.append(found.retries)
        return verdict.Replay(found.fits, found.retries)

    found = verdict.decide(
        replay, free.peak_allocated_bytes, free.peak_reserved_bytes, 200 * MIB, 10 * MIB
    )
    assert (found.outcome, found.retries, found.spare_bytes) == ("fits", 1, -50 * MIB)
    assert tried
    found = verdict.decide(
        replay, free.peak_allocated_bytes, free.peak_reserved_bytes, 155 * MIB, 10 * MIB
    )
    assert found.outcome == "too_close"
    found = verdict.decide(
        replay, free.peak_allocated_bytes, free.peak_reserved_bytes, 130 * MIB, 10 * MIB
    )
    assert found.outcome == "does_not_fit"


def test_what_others_hold_now_is_a_verdict_of_its_own():
    here = replace(card(8), in_use_bytes=4 << 30)
    answer = TracedRequest(REQUEST, traced, here).finish()
    assert answer.verdict.outcome == "fits"
    assert answer.verdict_now.outcome == "does_not_fit"
    assert document(answer)["now_verdict"] == "does_not_fit"
    assert asked(8).answer.verdict_now is None


def test_a_share_of_the_card_is_a_limit_too():
    assert (
        asked(8, settings=read("per_process_memory_fraction:0.4")).answer.verdict.outcome
        == "does_not_fit"
    )
    assert asked(8).answer.verdict.outcome == "fits"


def test_the_share_that_the_program_sets_counts_before_that_of_the_settings():
    def own(request: Request) -> Traced:
        return replace(traced(request), fraction=0.4)

    settings = read("per_process_memory_fraction:0.9")
    answer = TracedRequest(REQUEST, own, card(8), settings).answer
    assert answer.verdict.outcome == "does_not_fit"
    assert answer.settings.fraction == 0.4
    words = plain(report.headline(answer)[0])
    assert "the GPU has 8.00 GiB and torch is allowed 40 % of it, " in words


def test_cached_memory_is_freed_early_above_a_threshold_of_what_torch_is_allowed():
    """Without a share of the card the threshold does nothing."""
    write = Writer()
    write.drop(write.make(300 * MIB, "temporary"))
    write.make(400 * MIB, "activation")

    def reserved(conf: str, gib: float) -> tuple[int, str]:
        answer = TracedRequest(
            REQUEST, lambda request: Traced(write.trace, 8, 0, "2.11.0"), card(gib), read(conf)
        ).answer
        return answer.prediction.reserved.bytes // MIB, answer.verdict.outcome

    collects, half = "garbage_collection_threshold:0.1", "per_process_memory_fraction:0.5"
    assert reserved("", 4) == reserved(collects, 4) == reserved(half, 4) == (700, "fits")
    assert reserved(f"{collects},{half}", 4) == (400, "fits")
    assert reserved(f"{collects},{half}", 16) == (700, "fits")  # a tenth of half is more than 700


@pytest.mark.parametrize(
    ("operations", "context"),
    [
        (["cudnn_convolution"], 631),
        (["cublas"], 743),
        (["cublas", "_cudnn_rnn"], 760),
        (["mv", "cublas", "mm"], 743),
        (["cudnn_convolution", "cublas", "mv"], 694),
        (["cudnn_convolution", "cublas", "mv", "addmm"], 760),
    ],
)
def test_a_context_holds_the_libraries_that_are_used(operations, context):
    """cuBLAS and cuDNN load their kernels when they are first asked for one."""

    def tracer(request: Request) -> Traced:
        write = Writer()
        for operation in operations:
            write.drop(write.make(MIB, "workspace", "body", operation))
        return Traced(write.trace, 1, 1, "2.11.0")

    answer = TracedRequest(REQUEST, tracer, card(16)).finish()
    assert answer.outside.context_bytes == context * MIB


def test_a_replay_s_error_is_wider_than_each_of_its_parts_and_narrower_than_their_sum():
    room, share = 10 * MIB, errors.DEMAND
    for of_allocated in (0, MIB, 30 * MIB):
        of_room = errors.demand_error(int(room / share), 0, 0.0)
        both = errors.demand_error(int(room / share), of_allocated, 0.0)
        assert of_room == pytest.approx(room, rel=1e-6)
        assert max(of_allocated, of_room) <= both
        assert both < of_allocated + of_room or not of_allocated
    assert errors.demand_error(1 << 30, MIB, 1.0) > errors.demand_error(1 << 30, MIB, 0.0)


def test_doubts_widen_every_bar():
    plain = asked().answer.prediction
    doubted = asked(doubts=[Doubt("compiled", "x", percent=15)]).answer.prediction
    for name in ("allocated", "reserved", "device"):
        assert getattr(doubted, name).error_bytes >= getattr(plain, name).error_bytes + 0.14 * PEAK
    assert doubted.allocated.bytes == plain.allocated.bytes


# ── largest batch ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "limit", [0, 1, 2, 8, 9, 12345, largest.MOST - 1, largest.MOST, largest.MOST + 5]
)
@pytest.mark.parametrize("start", [1, 77, largest.MOST])
def test_search_finds_where_it_stops_fitting(limit, start):
    tries = 0

    def fits(batch: int) -> bool:
        nonlocal tries
        tries += 1
        assert 1 <= batch <= largest.MOST
        return batch <= limit

    assert largest.search(fits, start) == min(limit, largest.MOST)
    assert tries <= 42


@pytest.mark.parametrize(
    ("bad", "found", "steady"),
    [
        ([], 40, 40),
        ([37, 38], 40, 36),
        ([37, 38, 36], 40, 35),
        ([30], 40, 40),
        ([1], 2, 0),
        ([], 1, 1),
        ([], 0, 0),
    ],
)
def test_a_batch_that_fits_by_luck_is_not_the_largest(bad, found, steady):
    # Allocators are not monotone: 40 samples may fit where 37 do not, and nobody would want to
    # depend on it.
    assert largest.steady(lambda batch: batch not in bad, found) == steady


@pytest.mark.parametrize("limit", [0, 1, 40, 61, largest.MOST, largest.MOST + 5])
@pytest.mark.parametrize("start", [1, 39, 60, 20000])
def test_a_search_around_a_guess_finds_the_same_in_fewer_tries_when_it_is_near(limit, start):
    tries = 0

    def fits(batch: int) -> bool:
        nonlocal tries
        tries += 1
        return batch <= limit

    assert largest._around(fits, start) == min(limit, largest.MOST)
    if limit and abs(start - limit) <= 0.04 * limit:
        assert tries <= 5


def test_a_batch_that_was_never_traced_has_the_trace_it_would_have():
    law = family(training(REQUEST, 2), 2, training(REQUEST, 4), 4)
    for batch in (1, 3, 17, 4096):
        assert law.at(batch).sizes == training(REQUEST, batch).sizes
    assert (
        family(training(REQUEST, 2), 2, training(replace(REQUEST, optimizer="sgd"), 4), 4) is None
    )


@pytest.mark.parametrize("gib", [3, 5.5, 16, 140])
def test_the_largest_batch_is_the_last_that_a_replay_of_its_own_trace_fits(gib):
    asking = asked(gib)
    asking.find_largest()
    found = asking.finish().largest
    limit = asking.room.limit_bytes

    def fits(batch: int) -> bool:
        return simulate(training(REQUEST, batch), DEFAULT, limit).fits

    assert fits(found.batch)
    assert not fits(found.batch + 1)
    assert found.traced
    assert 0 < found.low <= found.batch <= found.high
    assert len(asking._traced) <= 5


ODD = [
    1,
    511,
    3 * MIB + 7,
    2050 * MIB - 1,
    2050 * MIB + 1,
    3333 * MIB + 333,
    7777 * MIB + 77,
    31_000_000_001,
]


@pytest.mark.parametrize("limit", [-5, 0, *ODD])
def test_the_largest_batch_and_the_verdicts_agree_at_the_edge(limit):
    """``limit``: bytes that the card leaves torch."""
    total = limit + (631 + 615) * MIB

    def asking(batch: int) -> TracedRequest:
        return TracedRequest(
            replace(REQUEST, batch=batch), traced, Card("h200", "h200", total, "9.0")
        )

    def word(batch: int) -> str:
        return asking(batch).answer.verdict.outcome

    first = asking(8)
    first.find_largest()
    found = first.finish().largest
    assert word(found.batch + 1) != "fits"
    assert word(found.high + 2) == "does_not_fit"  # its own error is that of more samples
    if found.batch:
        assert word(found.batch) != "does_not_fit"
    if found.low:
        assert word(found.low) == "fits"
    if found.high > found.low:
        assert word(found.high) == "too_close"


def test_a_doubt_that_goes_upward_leaves_what_may_fit_at_best():
    def ranged(*doubts: Doubt) -> largest.Largest:
        asking = asked(16, doubts=doubts)
        asking.find_largest()
        return asking.finish().largest

    plain, doubted = ranged(), ranged(Doubt("unmeasured", "x", "convolution", 50.0, upward=True))
    assert doubted.batch == plain.batch
    assert doubted.high == plain.high
    assert doubted.low < plain.low


def test_not_even_one_sample_fits():
    asking = asked(2)
    asking.find_largest()
    answer = asking.finish()
    assert (answer.largest.batch, answer.verdict.outcome) == (0, "does_not_fit")


def test_without_a_law_each_batch_is_traced_until_time_is_up():
    def odd(request: Request) -> Traced:
        """Odd batches make one block more."""
        found = traced(request)
        if found.batch % 2:
            found.trace.sizes.append(512)
            found.trace.owners.append(0)
            found.trace.events.append(len(found.trace.sizes) - 1)
        return found

    asking = TracedRequest(replace(REQUEST, batch=1), odd, card(16))
    asking.find_largest()
    found = asking.finish().largest
    asking = asked(16)
    asking.find_largest()
    assert found.batch == asking.finish().largest.batch

    hurried = TracedRequest(replace(REQUEST, batch=1), odd, card(16), seconds=0.0)
    hurried.find_largest()
    bounds = hurried.finish().largest
    assert bounds.low <= found.batch <= bounds.high


# ── what-if ───────────────────────────────────────────────────────────────────────────────────────


def test_each_fix_frees_what_its_own_trace_says_and_the_largest_comes_first():
    asking = asked()
    asking.find_fixes(ranks=4)
    answer = asking.finish()
    by_key = {one.fix.key: one for one in answer.what_if}
    assert by_key["batch-half"].freed_bytes == 4 * (LAYERS * PER_SAMPLE + 3 * LOSS_PER_SAMPLE)
    assert by_key["sgd"].freed_bytes == LAYERS * WEIGHT
    assert by_key["checkpoint"].freed_bytes == 8 * LAYERS * PER_SAMPLE * 7 // 8
    assert by_key["checkpoint-2"].freed_bytes == by_key["checkpoint"].freed_bytes // 2
    assert by_key["fused-optimizer"].freed_bytes == 0  # the peak is at the loss
    assert by_key["fsdp"].freed_bytes == LAYERS * WEIGHT * 3 // 4
    assert by_key["expandable-segments"].freed_bytes == 0
    assert (
        by_key["expandable-segments"].freed
        == by_key["expandable-segments"].freed_reserved_bytes
        >= 0
    )
    freed = [one.freed for one in answer.what_if]
    assert freed == sorted(freed, reverse=True)
    assert all(one.fix.cost and one.fix.change and one.verdict for one in answer.what_if)
    told = " ".join(map(plain, report.lines(answer, 100)))
    found = answer.prediction
    tensors, whole = bytes_text(found.allocated.bytes), bytes_text(found.device.bytes)
    said = told.partition("what would help")[0]
    assert f"frees: of the {tensors} that tensors take at the peak" in said
    assert f"instead of {whole}" in " ".join(said.split()), "the two columns are of two sums"
    helping, _, vain = told.partition("no help: ")
    assert "fused optimizer (needs " in vain
    assert "fused optimizer" not in helping
    assert {one.key for one in answer.left_out} == {"fp16", "sequence-half", "resolution-half"}


@pytest.mark.parametrize(("count", "said"), [(124_100_000, "124.1 M"), (8_072_200_000, "8.07 B")])
def test_the_size_of_a_model_is_told_as_people_call_it(count, said):
    answer = replace(asked().finish(), parameters=count)
    assert f", {said} parameters, " in plain([(report.subject(answer), "")])


def test_what_was_asked_for_stands_beside_the_verdict():
    """Whoever asks for a fix or for the largest batch reads it first, not below the tables."""
    asking = asked()
    asking.find_fixes(ranks=4)
    asking.find_largest()
    answer = asking.finish()
    assert answer.verdict is not None
    fits = [replace(one, verdict=replace(answer.verdict, outcome="fits")) for one in answer.what_if]
    short = [replace(one, verdict=replace(answer.verdict, outcome="too_close")) for one in fits]

    def told(outcome, tried):
        answer.verdict, answer.what_if = replace(answer.verdict, outcome=outcome), tried
        return [plain(line) for line in report.lines(answer, 100)]

    _, said, largest, *rest = told("does_not_fit", [*short[:2], *fits[2:4]])
    ways = f"{fits[2].fix.title}; {fits[3].fix.title}"
    assert said == f"It fits with any of: {ways}"
    assert largest.startswith("Largest batch: ")
    assert not any("argest batch" in line for line in rest)
    assert f"It fits with: {fits[0].fix.title}" in told("too_close", [fits[0]])
    assert told("does_not_fit", short)[1] == "None of the fixes below is enough by itself."
    assert not any("fits with" in line for line in told("fits", fits)[:3])


def test_an_answer_that_fits_by_less_than_its_error_says_why_it_still_fits():
    answer = asked().finish()
    assert answer.verdict is not None
    for spare, is_said in ((1, True), (16 << 30, False)):
        answer.verdict = replace(answer.verdict, outcome="fits", spare_bytes=spare)
        said = " ".join(map(plain, report.headline(answer)))
        assert ("Should it need more" in said) is is_said


def test_a_loss_in_chunks_is_a_trace_with_small_logits():
    trace = training(REQUEST)
    found = simulate(in_chunks(trace, 8, simulate(trace).peak_allocated_at.event))
    logits = 8 * LOSS_PER_SAMPLE
    forward = STATIC + 8 * LAYERS * PER_SAMPLE
    at_loss = forward + 3 * logits // 8 + WEIGHT  # a weight's gradient beside each chunk
    backward = forward + 8 * PER_SAMPLE + WEIGHT
    optimizer = STATIC + 2 * LAYERS * WEIGHT
    assert found.peak_allocated_bytes == max(at_loss, backward, optimizer)
    write = Writer()
    write.drop(write.make(5 * MIB, "temporary", "", "addmm"))
    with pytest.raises(NotHere):
        in_chunks(write.trace, 8, 0)


@pytest.mark.parametrize(
    ("change", "out", "why"),
    [
        ({"amp": "bf16"}, "bf16", "already"),
        ({"checkpoint": 1}, "checkpoint", "already"),
        ({"fused": True}, "fused-optimizer", "already"),
        ({"optimizer": "sgd"}, "sgd", "already"),
        ({"sharding": "fsdp", "ranks": 4}, "fsdp", "already"),
        ({"architecture": "7.5"}, "bf16", "Ampere"),
    ],
)
def test_a_fix_that_does_not_apply_is_left_out_with_its_reason(change, out, why):
    chosen, left = whatif.fixes(replace(REQUEST, **change), 8, DEFAULT)
    assert out not in {one.key for one in chosen}
    assert why in next(one.reason for one in left if one.key == out)


def test_a_batch_of_one_and_settings_that_are_on_leave_their_fixes_out():
    chosen, left = whatif.fixes(REQUEST, 1, read("expandable_segments:True"))
    assert {"batch-half", "accumulate", "expandable-segments"} <= {one.key for one in left}
    assert not {"batch-half", "expandable-segments"} & {one.key for one in chosen}
    sized, _ = whatif.fixes(
        replace(REQUEST, model="hf:x", sequence=512, resolution=224), 8, DEFAULT
    )
    assert {"sequence-half", "resolution-half"} <= {one.key for one in sized}


def test_a_fix_that_cannot_be_traced_or_has_no_time_left_is_said():
    def stubborn(request: Request) -> Traced:
        if request.checkpoint:
            raise CannotPredict("It has no blocks.", "nothing to checkpoint", "…", "unsupported")
        return traced(request)

    asking = TracedRequest(REQUEST, stubborn, None)
    asking.find_fixes()
    left = {one.key: one.reason for one in asking.finish().left_out}
    assert "no blocks" in left["checkpoint"]
    hurried = TracedRequest(REQUEST, traced, None, seconds=0.0)
    hurried.find_fixes()
    assert hurried.finish().what_if == []
    assert all("time" in one.reason for one in hurried.answer.left_out if one.key == "batch-half")


def test_what_needs_no_new_trace_comes_first_and_changes_no_order():
    asked: list[Request] = []
    heard: list[tuple[str, int]] = []

    def counted(request: Request) -> Traced:
        asked.append(request)
        return traced(request)

    asking = TracedRequest(REQUEST, counted, card(16))
    asking.find_fixes(4, lambda fix: heard.append((fix.key, len(asked))))
    chosen, left = whatif.fixes(REQUEST, 8, DEFAULT, 4)
    at_once = {"fsdp", "expandable-segments", "chunked-loss"}
    assert {key for key, _ in heard[:3]} == at_once
    assert [key for key, _ in heard[3:]] == [fix.key for fix in chosen if fix.key not in at_once]
    assert len(asked) == len(set(asked)) == 1 + sum(fix.request is not None for fix in chosen)
    answer = asking.finish()
    equal = [one.fix.key for one in answer.what_if if one.freed == 0]
    assert len(equal) > 1
    assert equal == [fix.key for fix in chosen if fix.key in equal]
    assert answer.left_out == left


def test_an_empty_trace_is_an_answer_too():
    asking = TracedRequest(REQUEST, lambda request: Traced(Trace(), 1, 0, "2.11.0"), card(16))
    assert asking.finish().prediction.allocated.bytes == 0
    assert document(asking.answer)["verdict"] == "fits"


def test_the_tables_of_a_small_model_are_in_mib() -> None:
    answer = asked().answer
    shown = "\n".join(map(plain, report.lines(answer, 100)))
    assert "peak           GiB" in shown
    small = replace(answer.prediction.allocated, bytes=24 * MIB)
    prediction = replace(answer.prediction, allocated=small)
    shown = "\n".join(map(plain, report.lines(replace(answer, prediction=prediction), 100)))
    assert re.search(r"peak           MiB +±\nallocated +24\.0 ", shown)
    assert re.search(r"parameters +\d\d\d ", shown), "three digits"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, []),
        ({"compile": True}, ["compile default"]),
        ({"compile": True, "cuda_graphs": True}, ["compile reduce-overhead"]),
        ({"compile": True, "max_autotune": True}, ["compile max-autotune-no-cudagraphs"]),
        ({"compile": True, "cuda_graphs": True, "max_autotune": True}, ["compile max-autotune"]),
        (
            {"channels_last": True, "cudnn_benchmark": True, "tf32": True},
            ["channels last", "cuDNN benchmark", "TF32"],
        ),
    ],
)
def test_the_answer_names_the_settings_that_it_is_for(settings, words):
    assert report.request_words(Request("hand", **settings)) == words


def test_modules_that_differ_in_numbers_are_joined_unless_they_have_no_other_name():
    sizes = {"blocks.0.mlp": 3, "blocks.1.mlp": 4, "0": 5, "2": 6, "1.0": 1}
    assert report.alike(sizes) == [("blocks.*.mlp", 7), ("2", 6), ("0", 5), ("1.0", 1)]
