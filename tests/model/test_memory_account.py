"""The rows of the waterfall add up to nvidia-smi's number.

What cannot be known says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.allocator_account import expandable_segments
from gpuscope.model.fullest_account import account_at_the_fullest, rss_of
from gpuscope.model.memory_account import TOLERATED_BYTES, Account, account, largest_freeable
from gpuscope.store.view import HostView, no_history
from gpuscope.text.units import bytes_text
from gpuscope.wire import columns
from gpuscope.wire import frames as f
from tests.fakes import inside, views
from tests.fakes.views import GIB

Change = Callable[[f.Frame], None]


def told(frames: list[f.Frame], *changes: Change) -> tuple[HostView, Account]:
    """The host and the rows of its first device after every frame went through ``changes``."""
    for frame in frames:
        for change in changes:
            change(frame)
    host = views.host_of(frames)
    device = host.devices[0]
    return host, account(host, device, device.allocators[0] if device.allocators else None)


def sizes(found: Account) -> dict[str, float]:
    return {part.name: part.known for part in found.parts}


def outer(found: Account) -> float:
    return sum(part.known for part in found.parts if not part.inside)


def unknown(table: str, reason: str, *columns: str) -> Change:
    """These columns become unknown in every row of a table."""
    names = list(f.COLUMNS[table])

    def change(frame: f.Frame) -> None:
        if isinstance(frame, f.Sample):
            for row in getattr(frame, table):
                for column in columns:
                    row[1 + names.index(column)] = None
                    frame.why.append([row[0], column, f.NOT_SUPPORTED, reason])

    return change


def defined(**facts: Any) -> Change:
    """These facts of every trainer's definition."""

    def change(frame: f.Frame) -> None:
        if isinstance(frame, f.Def) and frame.trainer is not None:
            for name, value in facts.items():
                setattr(frame.trainer, name, value)

    return change


def test_every_row_of_a_crowded_card_and_their_sum():
    _, found = told(inside.crowded(5.0))
    got = {name: round(size / GIB, 2) for name, size in sizes(found).items()}
    live = 44.0 + 6 * ((4.5 / 9) % 1)
    assert got["parameters"] == got["gradients"] == 6.7
    assert got["optimizer state"] == 13.4
    assert got["cuBLAS workspaces"] == 0.06
    assert got["rounding"] == pytest.approx(live * 0.004, abs=0.01)
    assert got["activations + temp"] == pytest.approx(live - 26.8 - 0.0625, abs=0.02)
    assert got["awaiting free"] == 0.5
    assert got["private pools, idle"] == 2.0
    assert got["inactive split"] == 15.5, "the idle half GiB of the pools is not in it"
    assert got["outside torch"] == 4.0
    assert got["other processes"] == 31.3
    assert (got["jupyter-lab 51120 (lin)"], got["serve.py 51200 (max)"], got["eval.py 51300"]) == (
        20.9,
        6.2,
        3.1,
    )
    assert got["2 more"] == 1.1
    assert found.total == int(121.4 * GIB)
    assert outer(found) == pytest.approx(found.total, abs=1)
    assert [(part.name, part.token) for part in found.beside] == [("driver reserve", "driver")]
    for name in {part.inside for part in found.parts} - {""}:
        assert sum(p.known for p in found.parts if p.inside == name) == pytest.approx(
            sizes(found)[name], abs=1
        )


def test_rows_stand_by_kind_whatever_their_size():
    _, found = told(inside.crowded(5.0))
    names = [part.name for part in found.parts]
    assert names[:6] == [
        "allocated",
        "parameters",
        "optimizer state",
        "gradients",
        "activations + temp",
        "cuBLAS workspaces",
    ]
    kinds = [
        name
        for name in names
        if name in ("allocated", "cached", "outside torch", "other processes")
    ]
    assert kinds == ["allocated", "cached", "outside torch", "other processes"]
    assert names.index("cached") < names.index("releasable") < names.index("inactive split")


def test_what_can_be_freed_now_and_what_only_in_the_next_run():
    _, found = told(inside.crowded(5.0))
    largest, now = largest_freeable(found.parts), largest_freeable(found.parts, now=True)
    assert largest is not None
    assert (largest.name, largest.free_by) == (
        "other processes",
        "ask whoever runs jupyter-lab 51120 (lin)",
    )
    alone = [part for part in found.parts if "processes" not in f"{part.name}{part.inside}"]
    at_once = largest_freeable(alone, now=True)
    assert at_once is not None
    assert (at_once.name, at_once.free_by) == ("releasable", "torch.cuda.empty_cache()")
    assert now is largest


def test_without_process_bytes_one_row_holds_what_cannot_be_told_apart():
    _, found = told(inside.crowded(5.0), unknown("u", "WSL does not count processes", "used_bytes"))
    got = sizes(found)
    assert "outside torch" not in got
    assert "other processes" not in got
    assert got["others and outside torch"] == pytest.approx(121.4 * GIB - 86 * GIB, abs=2)
    assert outer(found) == pytest.approx(found.total, abs=1)
    assert any("WSL does not count processes" in note for note in found.notes)


def test_in_a_container_that_hides_the_own_process_nothing_is_called_other_processes():
    frames = [
        frame for frame in inside.crowded(5.0) if not (isinstance(frame, f.Def) and frame.id == 216)
    ]

    def hide(frame: f.Frame) -> None:
        if isinstance(frame, f.Def) and frame.host is not None:
            frame.host.container = "docker"

    _, found = told(frames, hide)
    assert "others and outside torch" in sizes(found)
    assert outer(found) == pytest.approx(found.total, abs=1)
    assert any("container (docker)" in note for note in found.notes)


def test_one_untold_process_is_not_counted_as_nothing():
    def untold(frame: f.Frame) -> None:
        if isinstance(frame, f.Sample):
            row = next(row for row in frame.u if row[0] == 260)
            row[1] = None
            frame.why.append([260, "used_bytes", f.NO_PERMISSION, "the driver does not say"])

    _, found = told(inside.crowded(5.0), untold)
    got = sizes(found)
    assert got["other processes"] == pytest.approx(31.4 * GIB, abs=2), (
        "all that no other row explains"
    )
    assert got["1 unknown"] == pytest.approx(21.0 * GIB, abs=4)
    assert outer(found) == pytest.approx(found.total, abs=1)
    assert any("1 of 5 other processes" in note for note in found.notes)


def test_the_drivers_own_pool_is_not_split_and_not_guessed():
    missing = (
        "requested_bytes",
        "inactive_split_bytes",
        "private_pool_bytes",
        "private_pool_idle_bytes",
    )
    _, found = told(
        inside.crowded(5.0),
        unknown("a", "the cudaMallocAsync allocator has no such figure", *missing),
        defined(backend="cudaMallocAsync"),
    )
    got = sizes(found)
    assert not {"rounding", "releasable", "inactive split", "awaiting free"} & set(got)
    assert got["cached"] == 86 * GIB - got["allocated"]
    assert outer(found) == pytest.approx(found.total, abs=1)
    assert any(note.startswith("cudaMallocAsync") for note in found.notes)


def test_a_torch_without_a_counter_says_which():
    _, found = told(
        inside.crowded(5.0), unknown("a", "this torch has no requested_bytes", "requested_bytes")
    )
    assert "cached is not split: this torch has no requested_bytes" in found.notes


def test_expandable_segments_are_labelled_and_need_no_cure():
    _, found = told(
        inside.crowded(5.0),
        defined(allocator_settings="expandable_segments:True,max_split_size_mb:64"),
    )
    inactive = next(part for part in found.parts if part.name == "inactive split")
    releasable = next(part for part in found.parts if part.name == "releasable")
    assert not inactive.free_by
    assert releasable.about
    assert any(note.startswith("expandable segments") for note in found.notes)


@pytest.mark.parametrize(
    ("settings_text", "on"),
    [
        ("expandable_segments:True", True),
        ("backend:native, expandable_segments: True", True),
        ("", False),
        ("expandable_segments:False", False),
        ("expandable_segments:True,expandable_segments:False", False),
        ("roundup_power2_divisions:[256:1,>:4],expandable_segments:True", True),
        ("garbage", False),
        (None, None),
    ],
)
def test_the_setting_is_read_as_torch_reads_it(settings_text: str | None, on: bool | None):
    host, _ = told(inside.crowded(2.0), defined(allocator_settings=settings_text))
    assert expandable_segments(host.trainers[0]) is on


def test_private_pools_that_nobody_walked_are_said_to_be_in_the_other_rows():
    columns = ("private_pool_idle_bytes", "private_pool_inactive_split_bytes")
    _, found = told(inside.crowded(5.0), unknown("a", "not measured in this process yet", *columns))
    assert "private pools, idle" not in sizes(found)
    assert any("private pools (CUDA graphs) hold 9.00 GiB" in note for note in found.notes)


def test_categories_nobody_counted_are_one_row_with_the_reason():
    columns = ("parameter_bytes", "gradient_bytes", "optimizer_state_bytes")
    _, found = told(inside.crowded(5.0), unknown("a", "no optimizer step seen", *columns))
    assert "live tensors" in sizes(found)
    assert "live tensors are not divided by category: no optimizer step seen" in found.notes
    assert "parameters" not in sizes(found)


def test_models_that_no_optimizer_trains_are_a_row_of_their_own_with_their_names():
    def beside(frame: f.Frame) -> None:
        if isinstance(frame, f.Sample):
            for row in frame.a:
                row += [None] * (1 + len(f.ALLOCATOR_COLUMNS) - len(row))
                row[1 + columns.ALLOCATOR_COLUMNS.index("other_model_bytes")] = 2 * GIB
                row[1 + columns.ALLOCATOR_COLUMNS.index("other_models")] = (
                    f"ref_model (Llama) {GIB} B, the_teacher_with_a_long_name "
                    f"(ResNetForImageClassification) {GIB} B"
                )

    _, plain = told(inside.crowded(5.0))
    _, found = told(inside.crowded(5.0), beside)
    assert sizes(found)["other models"] == 2 * GIB
    assert sizes(found)["activations + temp"] == sizes(plain)["activations + temp"] - 2 * GIB
    named = (
        "ref_model (Llama) 1.00 GiB, the_teacher_with_a_long_name "
        "(ResNetForImageClassification) 1.00 GiB"
    )
    assert f"other models, which no optimizer trains: {named}" in found.notes
    assert "other models" not in sizes(plain)


def test_one_unknown_category_stays_unknown_and_the_rest_is_not_called_activations():
    _, found = told(inside.crowded(5.0), unknown("a", "being counted", "gradient_bytes"))
    gradients = next(part for part in found.parts if part.name == "gradients")
    assert isinstance(gradients.size, f.Unknown)
    assert "activations + temp" not in sizes(found)
    assert "uncategorized" in sizes(found)


def test_readings_far_apart_are_said_to_be():
    def late(frame: f.Frame) -> None:
        if isinstance(frame, f.Sample):
            frame.ago = [[13, 20], [216, 30], [416, 420]]

    _, found = told(inside.crowded(5.0), late)
    assert any("400 ms apart" in note for note in found.notes)

    def close(frame: f.Frame) -> None:
        if isinstance(frame, f.Sample):
            frame.ago = [[13, 20], [216, 30], [416, 90]]

    _, found = told(inside.crowded(5.0), close)
    assert not any("apart:" in note for note in found.notes)


def test_two_processes_of_one_name_are_two_rows():
    def same(frame: f.Frame) -> None:
        if isinstance(frame, f.Def) and frame.proc is not None and frame.proc.pid > 51000:
            frame.proc = f.ProcDef(7, frame.id, views.WALL, "lin", "worker", "worker", 1, False)

    _, found = told(inside.crowded(5.0), same)
    names = [part.name for part in found.parts]
    assert len(names) == len(set(names))


COUNT = st.integers(0, 150 * GIB)


@given(COUNT, COUNT, COUNT, COUNT, COUNT, COUNT, st.lists(COUNT, max_size=6), COUNT)
def test_whatever_is_read_the_rows_end_at_the_total(
    used, reserved, allocated, active, requested, split, others, own
):
    at = views.END
    frames: list[f.Frame] = [
        views.hello(),
        views.host_def(),
        views.gpu(0),
        *views.trainer(48200, 0, 1, "ada", True, "j"),
    ]
    sample = f.Sample(
        1,
        int(at * 1e9),
        g=[views.row("g", 10, used_bytes=used)],
        u=[views.row("u", 200, used_bytes=own)],
    )
    sample.a = [
        views.row(
            "a",
            400,
            reserved_bytes=reserved,
            allocated_bytes=allocated,
            active_bytes=active,
            requested_bytes=requested,
            inactive_split_bytes=split,
            parameter_bytes=1,
            gradient_bytes=1,
            optimizer_state_bytes=2,
        )
    ]
    for number, size in enumerate(others):
        frames.append(
            f.Def(
                150 + number, proc=f.ProcDef(900 + number, 1, at, "lin", f"p{number}", f"p{number}")
            )
        )
        frames.append(f.Def(250 + number, use=f.UseDef(150 + number, 10)))
        sample.u.append(views.row("u", 250 + number, used_bytes=size))
    _, found = told([*frames, sample])
    assert min(part.known for part in found.parts) >= 0
    for name in {part.inside for part in found.parts} - {""}:
        assert sum(p.known for p in found.parts if p.inside == name) == pytest.approx(
            sizes(found)[name], abs=4
        )
    if reserved <= used:
        assert used - TOLERATED_BYTES - 4 <= outer(found) <= used + 4
    else:
        assert outer(found) == pytest.approx(reserved, abs=4), "torch's own rows are never cut"


def test_on_a_cpu_tensors_beyond_the_resident_memory_are_explained():
    """Tensors that were never written, or that are paged out, are no resident memory."""
    frames = views.cpu_only(5.0)
    host = views.host_of(frames)
    rss = rss_of(host, host.trainers[0])
    assert (
        account_at_the_fullest(host, None, host.trainers[0].allocators[0], no_history).account.notes
        == []
    )
    at = columns.ALLOCATOR_COLUMNS.index("parameter_bytes") + 1
    for frame in frames:
        for row in frame.a if isinstance(frame, f.Sample) else ():
            row[at] = rss + 3 * GIB
    host = views.host_of(frames)
    found = account_at_the_fullest(host, None, host.trainers[0].allocators[0], no_history).account
    assert found.total == sum(part.known for part in found.parts)
    assert isinstance(found.parts[-1].size, f.Unknown), "the rest cannot be told, and is not 0"
    beyond = found.total - rss
    assert beyond >= 3 * GIB
    (note,) = found.notes
    assert note.startswith(f"the tensors are {bytes_text(beyond)} more than the RSS")


def test_on_a_cpu_what_no_probe_has_counted_is_unknown_and_not_nothing():
    frames = views.cpu_only(5.0)
    host = views.host_of(frames)
    counted = account_at_the_fullest(host, None, host.trainers[0].allocators[0], no_history)
    rss = rss_of(host, host.trainers[0])
    assert counted.account.total == rss == sum(part.known for part in counted.account.parts)
    for frame in frames:
        if isinstance(frame, f.Sample):
            frame.a.clear()
    host = views.host_of(frames)
    found = account_at_the_fullest(host, None, host.trainers[0].allocators[0], no_history)
    assert found.account.total == rss
    assert all(isinstance(part.size, f.Unknown) for part in found.account.parts)
    for frame in frames:
        if isinstance(frame, f.Sample):
            frame.p.clear()
    host = views.host_of(frames)
    found = account_at_the_fullest(host, None, host.trainers[0].allocators[0], no_history)
    assert isinstance(found.account.total, f.Unknown)
