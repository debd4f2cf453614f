"""Recorded histories come out as they were when they are replayed as they were.

Under other settings they answer what-if.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.cli.main import main
from gpuscope.model.allocator_settings import DEFAULT, read
from gpuscope.predict.replay import CannotReplay, replay, replay_device
from gpuscope.predict.replay_events import recorded
from gpuscope.snapshot.history import HeldSegment, History
from gpuscope.snapshot.reader import open_snapshot

from .histories import Recorder
from .test_allocator_properties import traces
from .traces import MIB, trace_of

DEMOS = Path(__file__).parents[2] / "demos" / "snapshots"
EXPANDABLE = read("expandable_segments:True")
SPLIT = read("max_split_size_mb:32")
# grows by 4 MiB each time: every segment is too small for the next request
GROWING = [step for size in range(40, 61, 4) for step in (size * MIB, f"free {(size - 40) // 4}")]


@pytest.mark.parametrize("name", ["training", "leak-before", "leak-after", "fragmented"])
def test_real_snapshots_replay_to_the_byte_with_every_block_at_its_address(name: str) -> None:
    with open_snapshot(DEMOS / f"{name}.pickle.gz") as reading:
        (device,) = reading.summary.devices
        found = replay_device(reading, device, lambda own: own)
    assert found.before.peak_reserved_bytes == found.recorded_peak_reserved_bytes
    assert found.before.reserved_bytes == device.totals.reserved_bytes
    assert found.before.allocated_bytes == device.totals.allocated_bytes
    assert found.same_addresses == 1.0
    assert found.error_percent == 0.0
    # the others begin with the workspaces of an earlier scene
    assert found.exact == (name == "training")
    fragmentation = device.fragmentation
    assert found.before.fragmentation.largest_free_bytes == fragmentation.largest_free_bytes
    assert found.before.fragmentation.split_bytes == device.totals.inactive_split_bytes


@given(traces(), st.sampled_from([DEFAULT, SPLIT]), st.integers(0, 60), st.integers(30, 300))
def test_a_history_that_lost_its_beginning_is_still_replayed_as_it_was(
    trace: object, settings: object, last: int, capacity: int
) -> None:
    made = Recorder(trace, settings, capacity * MIB).all()  # type: ignore[arg-type]
    history = made.history(min(last, len(made.entries)))
    found = replay(history, settings, settings, free_at=made.free_at(last))  # type: ignore[arg-type]
    assert found.before.reserved_bytes == made.engine.reserved
    assert found.before.peak_reserved_bytes == found.recorded_peak_reserved_bytes
    assert not [note for note in found.notes if note.code in ("lost", "differs")]
    if last >= len(made.entries):
        assert found.exact or not made.entries
        assert found.recorded_peak_reserved_bytes == made.engine.peak_reserved
        assert found.same_addresses in (None, 1.0)
        assert found.before.peak_allocated_bytes == made.engine.peak_allocated
        assert found.before.allocated_bytes == made.engine.allocated


@given(traces(), st.integers(30, 200))
def test_a_recorded_error_happens_again_and_at_the_recorded_capacity_only(
    trace: object, capacity: int
) -> None:
    made = Recorder(trace, DEFAULT, capacity * MIB).all()  # type: ignore[arg-type]
    found = replay(made.history(), DEFAULT, DEFAULT, free_at=made.free_at())
    if not made.run.ooms:
        assert found.outcomes == []
        return
    assert (found.capacity_bytes, found.capacity_source) == (capacity * MIB, "oom")
    assert found.reproduced
    assert found.verdict == "does_not_fit"
    assert not found.outcomes[0].served
    roomy = replay(made.history(), DEFAULT, DEFAULT, 1 << 40, made.free_at())
    assert roomy.verdict == "fits"
    assert all(outcome.served for outcome in roomy.outcomes)


def failing() -> Recorder:
    """Return a history in which 60 MiB do not fit at 100 MiB.

    40 are live in a segment of their own, a live block of 512 cuts one of 50.
    """
    steps = (40 * MIB, 50 * MIB, "free 1", 2 * MIB, 47 * MIB, "free 3", 58 * MIB)
    return Recorder(trace_of(*steps), DEFAULT, 100 * MIB).all()


def test_what_fails_in_pieces_fits_into_segments_that_grow() -> None:
    made = failing()
    assert [one.requested_bytes for one in made.run.ooms] == [58 * MIB]
    found = replay(made.history(), DEFAULT, EXPANDABLE, free_at=made.free_at())
    assert found.verdict == "fits"
    assert found.capacity_bytes == 100 * MIB
    assert found.after.peak_reserved_bytes == 100 * MIB
    assert found.needed_bytes == (90 + 58) * MIB


def test_without_an_error_there_is_no_verdict_unless_a_capacity_is_named() -> None:
    made = Recorder(trace_of(*GROWING)).all()
    free = replay(made.history(), DEFAULT, EXPANDABLE)
    assert (free.verdict, free.capacity_bytes) == (None, None)
    assert free.recorded_peak_reserved_bytes == sum(range(40, 61, 4)) * MIB
    assert free.after.peak_reserved_bytes == 60 * MIB
    assert replay(made.history(), DEFAULT, EXPANDABLE, 60 * MIB).verdict == "fits"
    assert replay(made.history(), DEFAULT, EXPANDABLE, 59 * MIB).verdict == "does_not_fit"


def test_segments_given_back_at_the_limit_do_not_go_back_where_there_is_room() -> None:
    made = Recorder(trace_of(*GROWING), DEFAULT, 100 * MIB).all()
    assert made.engine.retries > 0
    found = recorded(made.history(), DEFAULT)
    assert [release.by_hand for release in found.releases] == [False] * made.engine.retries
    assert replay(made.history(), DEFAULT, DEFAULT, 1 << 40).after.retries == 0
    told = replay(made.history(), DEFAULT, DEFAULT)
    assert told.capacity_source == "retry"
    assert [note.code for note in told.notes] == ["capacity"]


def test_emptying_the_cache_by_hand_is_replayed_under_other_settings_too() -> None:
    made = Recorder(trace_of(90 * MIB, "free 0", 30 * MIB, "free 1"))
    made.all()
    made.engine.empty_cache()
    assert [entry[0] for entry in made.entries].count("segment_free") == 1
    found = recorded(made.history(), DEFAULT)
    assert [release.by_hand for release in found.releases] == [True]
    assert replay(made.history(), DEFAULT, EXPANDABLE).after.reserved_bytes == 0


def test_what_was_there_before_is_said_and_counts_as_error() -> None:
    made = failing()
    whole, cut = len(made.entries), 6
    found = replay(
        made.history(whole - cut), DEFAULT, EXPANDABLE, free_at=made.free_at(whole - cut)
    )
    assert not found.exact
    assert found.before_bytes == 90 * MIB
    assert found.error_percent == pytest.approx(100 * 50 / 90)  # 50 MiB lay free then
    assert found.verdict == "too_close"
    (note,) = [note for note in found.notes if note.code == "before"]
    assert note.text.startswith("not exact: 90.0 MiB were reserved before the trace's first entry")


def test_an_error_that_the_blocks_do_not_explain_gives_no_verdict() -> None:
    made = Recorder(trace_of(40 * MIB, "free 0")).all()
    found = replay(made.history(), DEFAULT, EXPANDABLE, failed=(30 * MIB, 4 * MIB))
    assert found.reproduced is False
    assert found.verdict is None
    assert "not_reproduced" in [note.code for note in found.notes]


def test_without_the_segments_at_its_end_there_is_no_verdict() -> None:
    made = failing()
    history = made.history(len(made.entries) - 6)
    history.segments, history.known = [], False
    found = replay(history, DEFAULT, EXPANDABLE, 1 << 40, made.free_at())
    assert found.verdict is None
    assert not found.exact
    assert "no_segments" in [note.code for note in found.notes]


def test_pending_frees_are_replayed_when_they_were_requested_and_completed() -> None:
    made = Recorder(trace_of(30 * MIB, 30 * MIB)).all()
    first, second = (entry[1] for entry in made.entries if entry[0] == "alloc")
    history = made.history()
    for action, address in ((1, first), (1, second), (2, second), (2, first)):
        history.code.append(action)
        history.addr.append(address)
        history.size.append(30 * MIB)
        history.stream.append(0)
    history.segments = made.segments()
    for one in history.segments:
        one.blocks = []
    found = replay(history, DEFAULT, DEFAULT)
    assert (found.before.allocated_bytes, found.before.fragmentation.releasable_bytes) == (
        0,
        60 * MIB,
    )
    assert found.same_addresses == 1.0


def test_blocks_of_private_pools_keep_to_their_pool() -> None:
    made = Recorder(trace_of(30 * MIB, 40 * MIB, "free 0")).all()
    history = made.history()
    history.segments = [
        HeldSegment(
            one.address,
            one.size,
            0,
            True,
            False,
            "0, 3" if one.size == 30 * MIB else "",
            one.blocks,
        )
        for one in made.segments()
    ]
    found = recorded(history, DEFAULT)
    assert found.pools == {0: "0, 3"}
    asked = replay(history, DEFAULT, DEFAULT, 70 * MIB, failed=(30 * MIB, 0))
    # the free 30 MiB serve nobody else, and do not go back to the driver
    assert asked.verdict == "does_not_fit"
    assert asked.before.fragmentation.free_bytes == 0
    assert "private" in [note.code for note in asked.notes]


def test_history_that_makes_no_sense_is_counted_and_harms_nobody() -> None:
    history = History(known=True)
    for action, address, size in (
        (0, 512, 512),
        (0, 512, 700),
        (1, 99, 5),
        (2, 99, 5),
        (4, 7, 7),
        (3, 7, 2),
        (2, 3, 0),
    ):
        history.code.append(action)
        history.addr.append(address)
        history.size.append(size)
        history.stream.append(0)
    found = replay(history, DEFAULT, EXPANDABLE)
    assert found.before.allocated_bytes >= 0
    assert [note.code for note in found.notes if note.code == "lost"] == ["lost"]


def test_a_replay_ends_in_time() -> None:
    made = Recorder(
        trace_of(*[step for number in range(6000) for step in (100 + number, f"free {number}")])
    ).all()
    with pytest.raises(CannotReplay, match="takes longer than 0 s"):
        replay(made.history(), DEFAULT, EXPANDABLE, seconds=0)
    assert replay(made.history(), DEFAULT, EXPANDABLE).after.peak_reserved_bytes == 2 * MIB


def test_the_drivers_own_allocator_is_refused() -> None:
    with pytest.raises(CannotReplay, match="cudaMallocAsync"):
        replay(History(), DEFAULT, read("backend:cudaMallocAsync"))


# ── the verb ──────────────────────────────────────────────────────────────────────────────────────


def test_the_verb_says_that_it_would_have_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = failing().write(tmp_path / "oom.pickle.gz")
    code = main(["snapshot", str(path), "--what-if", "expandable_segments:True"])
    shown = capsys.readouterr().out
    assert "with expandable_segments this would have fit with 0 B of 100 MiB left" in shown
    assert "error ± <0.1 %; replayed as recorded" in shown
    assert code == 0
    code = main(["snapshot", str(path), "--what-if", "", "--json"])
    document = json.loads(capsys.readouterr().out)
    (told,) = document["what_if"]
    assert (told["verdict"], code, document["exit_code"]) == ("does_not_fit", 2, 2)
    assert told["requests_that_failed"][0]["served"] is False
    assert told["first_failure"]["free_bytes"] == 10 * MIB
    assert told["exact"] is True


def test_the_verb_gives_no_verdict_without_a_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(DEMOS / "training.pickle.gz")
    assert main(["snapshot", path, "--what-if", "expandable_segments:True", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["what_if"][0]["verdict"] is None
    assert any(row["path"] == "what_if[0].verdict" and row["reason"] for row in document["unknown"])
    assert (
        main(["snapshot", path, "--what-if", "expandable_segments:True", "--capacity", "176MiB"])
        == 0
    )
    assert "this fits with 2.00 MiB of 176 MiB left" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--what-if", "expandable:True"], "no known version of torch"),
        (
            ["--what-if", "max_split_size_mb:3", "--capacity", "1GiB"],
            "torch's minimum is 20",
        ),
        (["--what-if", "", "--capacity", "much"], "must be a size"),
        (["--capacity", "1GiB"], "--capacity goes with --what-if"),
        (["--what-if", "", "--at", "peak"], "replays one file, without --at"),
        (["-o", "other.pickle"], "-o is for a trainer, not for a file"),
        (["--history", "5"], "--history is for a trainer, not for a file"),
        ([str(DEMOS / "leak-before.pickle.gz"), "--what-if", ""], "replays one file"),
    ],
)
def test_bad_words_are_refused_before_anything_is_read(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["snapshot", str(DEMOS / "training.pickle.gz"), *words])
    except SystemExit as stopped:
        code = int(str(stopped.code))
    assert code == 64
    assert said in capsys.readouterr().err


def test_of_a_trainer_a_file_is_needed_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["snapshot", str(os.getpid()), "--what-if", "expandable_segments:True"]) == 64
    assert (
        "gpuscope snapshot PID -o FILE, then gpuscope snapshot FILE --what-if"
        in capsys.readouterr().err
    )


def test_a_snapshot_without_history_cannot_be_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = failing()
    made.entries.clear()
    path = made.write(tmp_path / "plain.pickle.gz")
    assert main(["snapshot", str(path), "--what-if", "expandable_segments:True"]) == 3
    assert "the history of allocations was off" in capsys.readouterr().out
