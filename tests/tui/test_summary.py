"""torch's memory summary as rows and as text, from whatever a probe answers."""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.tui.memory.summary import as_text, figure, rate, summary
from tests.fakes import inside
from tests.fakes.views import GIB


def test_rows_are_those_of_torch_in_its_order():
    stats = summary(inside.statistics(), None, None)
    names = [stat.name for stat in stats if not stat.pool]
    assert names[:9] == [
        "allocated",
        "active",
        "requested",
        "reserved",
        "inactive split",
        "allocations",
        "active blocks",
        "segments",
        "inactive blocks",
    ]
    assert "cudaMalloc retries" in names
    assert "pinned, active" in names
    allocated = [stat for stat in stats if stat.name == "allocated"]
    assert [stat.pool for stat in allocated] == ["", "large pool", "small pool"]
    assert allocated[0].current == 48 * GIB
    assert allocated[0].peak == 54 * GIB
    assert len({stat.key for stat in stats}) == len(stats)


def test_the_names_are_those_of_this_torch():
    """What torch's own summary prints is here, too."""
    memory = pytest.importorskip("torch.cuda.memory")
    import inspect

    source = inspect.getsource(memory.memory_summary)
    from gpuscope.tui.memory.summary import ROWS, WHOLE

    for key, _ in (*ROWS, *WHOLE):
        assert f'"{key}"' in source
    assert source.count("_format_size),") + source.count("_format_count),") == len(ROWS) + len(
        WHOLE
    )


def test_rates_come_from_two_answers():
    first, second = inside.statistics(1), inside.statistics(2)
    stats = {stat.key: stat for stat in summary(second, first, 2.0)}
    assert stats["allocated_bytes.all"].allocated_per_second == 1.5 * GIB
    assert stats["allocation.all"].allocated_per_second == 600
    assert stats["allocation.all"].freed_per_second == 600
    assert summary(second, None, None)[0].allocated_per_second is None


def test_a_counter_that_was_reset_between_two_answers_has_no_rate():
    first, second = inside.statistics(5), inside.statistics(1)
    stats = {stat.key: stat for stat in summary(second, first, 2.0)}
    assert stats["allocated_bytes.all"].allocated_per_second is None


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"statistics": None},
        {"statistics": {"allocated_bytes.all.current": "many"}},
        {"statistics": {"allocated_bytes.all.current": True}},
        {"statistics": [1, 2]},
    ],
)
def test_an_answer_without_figures_is_an_empty_table(value: dict[str, Any]):
    assert summary(value, None, None) == []


def test_a_torch_that_lacks_figures_has_fewer_rows():
    value = {"statistics": {"allocated_bytes.all.current": 5, "num_ooms": 1}}
    assert [(stat.name, stat.current, stat.peak) for stat in summary(value, None, 0.0)] == [
        ("allocated", 5, None),
        ("OOMs", 1, None),
    ]


def test_figures_fit_their_columns():
    assert [figure(value, False) for value in (None, 0, 1234, 9_999_999, 12_000_000, 3e10)] == [
        "–",
        "0",
        "1,234",
        "9,999,999",
        "12.0 M",
        "30.0 G",
    ]
    assert (rate(None, True), rate(1.5 * GIB, True), rate(2.5, False), rate(600, False)) == (
        "–",
        "1.50 GiB/s",
        "2.5/s",
        "600/s",
    )


def test_the_text_is_a_table_with_its_title_and_cost():
    stats = summary(inside.statistics(2), inside.statistics(1), 2.0)
    text = as_text(stats, "torch.cuda.memory_summary, cuda:3 · GPU 3", inside.statistics())
    lines = text.splitlines()
    assert lines[0].startswith("torch.cuda.memory_summary")
    assert lines[2].split() == [
        "metric",
        "current",
        "peak",
        "allocated",
        "freed",
        "allocated/s",
        "freed/s",
    ]
    assert "1.50 GiB/s" in lines[3]
    assert lines[-1] == "allocator: native · one statistics call: 11.3 µs"
    assert len({len(line) for line in lines[2:30]}) <= 2, "columns stand under each other"
