"""The effects that cures are predicted to have are calculated rightly.

Nothing is predicted that the numbers do not allow.
"""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from gpuscope.doctor import effects, messages, table
from gpuscope.doctor import report as reports
from gpuscope.doctor.effects import Amounts
from gpuscope.doctor.finding import Evidence, Finding, Report
from gpuscope.doctor.postmortem_oom import OomFacts, judge
from gpuscope.text.styled import plain

GIB = 1 << 30
FULL = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {}. GPU 0 has a total capacity "
    "of 32.00 GiB of which 4.00 GiB is free. {}Including non-PyTorch memory, this process has {} "
    "memory in use. Of the allocated memory {} is allocated by PyTorch, and {} is reserved by "
    "PyTorch but unallocated.\n"
)


def effect(pitfall, **amounts):
    finding = Finding(
        pitfall=pitfall,
        cause="c",
        title="t",
        severity="problem",
        confidence="likely",
        evidence=(Evidence("e"),),
    )
    return effects.of_memory(finding, Amounts(**amounts)).effect


def of_log(pitfall, wanted, process, allocated, unallocated, others=""):
    found, _ = messages.examine(
        io.BytesIO(FULL.format(wanted, others, process, allocated, unallocated).encode())
    )
    return next(one.effect for one in found if one.pitfall == pitfall)


def test_the_cache_of_a_message():
    told = of_log("expandable-segments", "6.00 GiB", "27.50 GiB", "16.00 GiB", "11.00 GiB")
    assert (told.freed_bytes, told.bound) == (11 * GIB, "at most")
    assert told.text == (
        "frees at most 11.0 GiB of reserved but unallocated memory; with 4.00 GiB free, 15.0 GiB "
        "for the 6.00 GiB requested"
    )


def test_a_cache_that_is_not_enough_says_so():
    told = effect("expandable-segments", requested=6 * GIB, free=GIB, cached=2 * GIB)
    assert told.text.endswith(
        "3.00 GiB for the 6.00 GiB requested: 3.00 GiB short, so it is not enough by itself"
    )


def test_what_others_hold_is_exact_where_the_message_names_them():
    named = of_log(
        "other-process-holds-gpu",
        "6.00 GiB",
        "6.00 GiB",
        "5.00 GiB",
        "0.50 GiB",
        "Process 77 has 20.00 GiB memory in use. ",
    )
    assert (named.freed_bytes, named.bound) == (20 * GIB, "exactly")
    summed = effect("other-process-holds-gpu", outside=20 * GIB)
    assert summed.bound == "at most"
    assert "own CUDA context" in summed.text


def test_the_batch_is_only_promised_what_follows():
    told = of_log("reduce-batch-size", "6.00 GiB", "27.50 GiB", "27.00 GiB", "0.10 GiB")
    assert told.freed_bytes is None
    assert "the largest request that fits is 4.00 GiB, 67 % of this one" in told.text
    assert "torch does not say what it was" in told.text
    told = of_log("reduce-batch-size", "6.00 GiB", "27.50 GiB", "22.00 GiB", "5.10 GiB")
    assert "the largest request that fits is at least 4.00 GiB" in told.text
    assert "at least half the batch would fit" in told.text, "a free piece may be of 5.1 GiB"
    known = effect(
        "reduce-batch-size",
        allocated=20 * GIB,
        parameters=2 * GIB,
        gradients=2 * GIB,
        optimizer=4 * GIB,
    )
    assert (known.freed_bytes, known.bound) == (6 * GIB, "at most")


@pytest.mark.parametrize(
    ("pitfall", "freed", "bound"),
    [
        ("optimizer-state", 8 * GIB, "at most"),
        ("offload-cpu", 8 * GIB, "exactly"),
        ("lora-or-quantisation", 12 * GIB, "at most"),
        ("gradient-checkpointing", 4 * GIB, "at most"),
        ("fsdp-or-zero", 12 * GIB, "at most"),  # (1 − 1/4) · 16
    ],
)
def test_by_the_exact_categories(pitfall, freed, bound):
    told = effect(
        pitfall,
        allocated=20 * GIB,
        parameters=4 * GIB,
        gradients=4 * GIB,
        optimizer=8 * GIB,
        ranks=4,
    )
    assert (told.freed_bytes, told.bound) == (freed, bound)
    exact = "8.00 GiB"
    assert told.text.startswith("frees at most " if bound == "at most" else f"frees {exact}")


def test_eight_bits():
    assert pytest.approx(1 - (256 + 4) / (256 * 4)) == effects.EIGHT_BIT
    assert (
        "5.97 GiB with 8-bit state, if it is float32 now"
        in effect("optimizer-state", optimizer=8 * GIB).text
    )


@pytest.mark.parametrize(
    "pitfall",
    [
        "expandable-segments",
        "max-split-size",
        "empty-cache",
        "other-process-holds-gpu",
        "compile-mode",
        "offload-cpu",
        "reduce-batch-size",
        "gradient-checkpointing",
        "optimizer-state",
        "fsdp-or-zero",
        "lora-or-quantisation",
    ],
)
def test_nothing_is_predicted_of_what_is_unknown(pitfall):
    assert effect(pitfall) is None
    assert effect(pitfall, requested=GIB, free=2 * GIB, allocated=GIB) is None


def test_a_single_rank_has_nobody_to_share_with():
    assert effect("fsdp-or-zero", parameters=GIB, ranks=1) is None
    assert "each of 2 ranks" in effect("fsdp-or-zero", parameters=GIB).text


def test_a_share_of_a_step_is_an_upper_bound():
    finding = judge(OomFacts(requested=GIB))[0]
    told = effects.of_share(finding, 0.4, "all of the copies").effect
    assert (told.saved_share, told.bound) == (0.4, "at most")
    assert "1.7 times as many steps" in told.text
    for share in (None, 0.0, 1.0, 0.004):
        assert effects.of_share(finding, share, "all of the copies").effect is None


def test_the_record_of_an_error():
    (found,) = [
        one
        for one in judge(
            OomFacts(
                requested=5 * GIB,
                free=GIB,
                total=80 * GIB,
                allocated=60 * GIB,
                reserved=78 * GIB,
                cached=18 * GIB,
                largest_free=2 * GIB,
                inactive_split=17 * GIB,
            )
        )
        if one.pitfall == "expandable-segments"
    ]
    assert found.effect.freed_bytes == 18 * GIB


def test_it_is_in_the_text_and_in_the_document():
    found, _ = messages.examine(
        io.BytesIO(FULL.format("6 GiB", "", "27 GiB", "16 GiB", "11 GiB").encode())
    )
    settled = reports.finish(Report(findings=found), table.load())
    first = json.loads(json.dumps(reports.document(settled, 2)))["findings"][0]
    assert first["effect"].keys() == {
        "text",
        "bound",
        "freed_bytes",
        "saved_share",
        "saved_share_low",
        "saved_share_high",
    }
    assert first["effect"]["freed_bytes"] == 11 * GIB
    text = [plain(line) for line in reports.lines(settled, 2, 80)]
    assert any(line.startswith("  Gain   frees at most 11.0 GiB of reserved") for line in text)
    assert all(len(line) <= 80 for line in text if "Gain" in line or line.startswith("         "))
    bare = replace(settled.findings[0], effect=None)
    assert reports.document(Report(findings=(bare,)), 2)["findings"][0]["effect"] is None
