"""The price of an hour: a number, or a table by a part of a GPU's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.errors import UsageError
from gpuscope.lab.tune.price import an_hour_of, price_of

TABLE = 'h200 = 3.5\nA100 = 1.5\n"a100 80gb" = 1.9\n'


def written(folder: Path, text: str) -> str:
    path = folder / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("gpu", "price"),
    [("NVIDIA H200", 3.5), ("NVIDIA A100-SXM4-40GB", 1.5), ("NVIDIA A100 80GB PCIe", 1.9)],
)
def test_the_longest_row_that_is_a_part_of_the_gpus_name_counts(tmp_path, gpu, price):
    assert an_hour_of(price_of(written(tmp_path, TABLE)), gpu) == price
    assert an_hour_of(price_of("2.5"), gpu) == 2.5


def test_a_gpu_or_machine_that_the_table_lacks_is_named_with_the_line_to_add(tmp_path):
    prices = price_of(written(tmp_path, TABLE))
    for gpu, name in (("NVIDIA L4", "nvidia l4"), (None, "cpu")):
        with pytest.raises(UsageError, match=name) as refused:
            an_hour_of(prices, gpu)
        assert f'"{name}" = ' in refused.value.next
    assert an_hour_of(price_of(written(tmp_path, "cpu = 0.4")), None) == 0.4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("h200 = 'dear'", "h200 is no price"),
        ("h200 = true", "h200 is no price"),
        ("h200 = -1", "from 0 to"),
        ("h200 = nan", "from 0 to"),
        ("h200", "cannot be read"),
    ],
)
def test_a_bad_table_is_refused_with_the_row(tmp_path, text, said):
    with pytest.raises(UsageError, match=said):
        price_of(written(tmp_path, text))
    with pytest.raises(UsageError, match="neither a number nor a file"):
        price_of(str(tmp_path / "none.toml"))
