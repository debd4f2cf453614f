"""What was read long ago is not told as if it were so now."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuscope.model.fullest_account import account_at_the_fullest
from gpuscope.model.memory_account import Account, account
from gpuscope.model.memory_layers import of_the_card
from gpuscope.model.memory_room import room_of
from gpuscope.model.reading_age import OLD, old_seconds
from gpuscope.report.memory import of_account
from gpuscope.store.view import HistoryOf, HostView
from gpuscope.text import styled
from gpuscope.text.units import DASH, GIB
from gpuscope.tui.doctor.checked_figures import AREAS, sources_of
from gpuscope.tui.hosts.summary import summarise
from gpuscope.tui.memory.side_by_side import side_by_side
from gpuscope.tui.memory.subjects import subjects
from gpuscope.tui.shared.job_rows import job_lines
from gpuscope.tui.trainer.job_text import standing_out
from gpuscope.tui.trainer.rank_rows import rank_rows
from gpuscope.wire import frames as f
from gpuscope.wire.frames import Unknown
from tests.fakes import views
from tests.tui.test_memory_not_read import OWN, USED, silent


def seen(last: float, **more: bool) -> tuple[HostView, HistoryOf]:
    """A training of 20 s whose rank 0 has not read its allocator since the second ``last``."""
    return views.seen(silent((last, 60), **more))


def of_gpu_0(host: HostView) -> Account:
    return account(host, host.devices[0], host.devices[0].allocators[0])


@pytest.mark.parametrize(("last", "old"), [(2, True), (13, True), (15, False), (60, False)])
def test_a_reading_stands_for_a_few_seconds(last: float, old: bool):
    host, _ = seen(last)
    assert (old_seconds(host, host.devices[0].allocators[0]) is not None) is old
    assert old_seconds(host, host.devices[1].allocators[0]) is None


def test_where_samples_are_seldom_a_reading_stands_for_two_of_them():
    host, _ = seen(10)
    allocator = host.devices[0].allocators[0]
    assert old_seconds(host, allocator) == pytest.approx(10)
    assert old_seconds(replace(host, rate_hz=0.1), allocator) is None


def test_what_rests_on_an_old_reading_is_unknown_and_says_what_it_was():
    host, history = seen(5)
    found = of_gpu_0(host)
    sizes = {part.name: part.size for part in found.parts}
    for name, then in (("allocated", " s ago: "), ("cached", " s ago: "), ("outside torch", "")):
        size = sizes[name]
        assert isinstance(size, Unknown)
        assert size.code == OLD
        assert then in size.text
    assert sizes["the whole process"] == pytest.approx(OWN * GIB, rel=1e-3)
    assert found.total == pytest.approx(USED * GIB)
    known = sum(part.known for part in found.parts if not part.inside)
    assert known <= found.total  # type: ignore[operator]
    assert [note for note in found.notes if "was last read 15 s ago" in note]
    assert not any("apart" in note or "optimizer" in note for note in found.notes)
    fullest = account_at_the_fullest(host, host.devices[0], host.devices[0].allocators[0], history)
    assert fullest.account.parts == found.parts
    assert not fullest.now


def test_where_the_driver_names_no_process_one_row_has_all_of_it():
    host, _ = seen(5, use=False)
    sizes = {part.name: part.known for part in of_gpu_0(host).parts}
    assert sizes["this and other processes"] == pytest.approx(USED * GIB)


def test_the_report_says_it_as_the_screen_does():
    host, _ = seen(5)
    rows = of_account("GPU 0", of_gpu_0(host), "used", []).bars
    assert rows[0].value.startswith("– (15 s ago: ")
    assert rows[0].share is None


def test_lists_do_not_tell_what_torch_held_at_an_old_reading():
    for last, marked in ((5, True), (60, False)):
        host, history = seen(last)
        everything = subjects(host, "")
        lines = side_by_side(host, everything, everything[0], history, 100)
        first, second = (styled.plain(line) for line in lines[1:3])
        assert (" – " in first) is marked
        assert " – " not in second


def test_the_line_of_a_job_tells_no_memory_that_no_probe_has_read_for_long():
    """It may be 18 times as much by now: a training takes its memory within seconds."""
    for silent_from, marked in ((5, True), (60, False)):
        frames = views.training()
        samples = [frame for frame in frames if isinstance(frame, f.Sample)]
        for sample in samples[2 * silent_from :]:
            sample.a = []
        host, history = views.seen(frames)
        line = job_lines(host, history=history)[0]
        text, token = line.cells["memory"]
        assert (text == DASH, token == "faint") == (marked, marked)


def test_headroom_that_rests_on_an_old_reading_is_marked_wherever_it_stands():
    for silent_from, marked in ((5, True), (60, False)):
        frames = views.training()
        for sample in [frame for frame in frames if isinstance(frame, f.Sample)][2 * silent_from :]:
            sample.a = []
        host, history = views.seen(frames)
        job = host.jobs[0]
        text, token = job_lines(host, history=history)[0].cells["left"]
        assert (text.startswith("≈"), token == "faint") == (marked, marked)
        for fold in (False, True):
            for row in rank_rows(host, job, None, history, fold):
                left = row.cells["left"]
                plain = left if isinstance(left, str) else styled.plain(left)
                assert plain.startswith("≈") is marked, (fold, plain)
        device, trainer = host.devices[0], host.devices[0].allocators[0]
        age = old_seconds(host, trainer)
        left = room_of(host.devices, job.trainers[0], trainer, history).headroom_bytes
        assert ("headroom – (15 s ago: " in of_the_card(device, left, age)) is marked
        (area,) = (one for one in AREAS if one.name == "memory")
        figures = " ".join(one.text for one in area.figures(host, sources_of(host, history)))
        told = styled.plain([p for line in standing_out(host, job, history) for p in line])
        for said in (f"least headroom {DASH} (15 s ago: ", f"least headroom: {DASH} (15 s ago: "):
            assert (said in f"{figures} {told}") is marked, (said, figures, told)


def test_a_host_is_not_called_tight_by_a_reading_of_long_ago():
    for silent_from, tight in ((5, False), (60, True)):
        frames = views.training()
        samples = [frame for frame in frames if isinstance(frame, f.Sample)]
        for sample in samples:
            for row in sample.g:
                row[1 + f.DEVICE_COLUMNS.index("free_bytes")] = 0
            for row in sample.a:  # no cache to give back
                row[1 + f.ALLOCATOR_COLUMNS.index("reserved_bytes")] = row[
                    1 + f.ALLOCATOR_COLUMNS.index("allocated_bytes")
                ]
        for sample in samples[2 * silent_from :]:
            sample.a = []
        host, history = views.seen(frames)
        words = " ".join(one.named for one in summarise(host, (), history).words)
        assert ("headroom on GPU 0" in words) is tight, words
