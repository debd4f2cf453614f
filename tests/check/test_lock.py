"""The committed baseline: written the same each time, and refused if it is damaged or newer."""

from __future__ import annotations

import pytest

from gpuscope.check import lock, run
from gpuscope.errors import UserError

ODD = 'mödule "x"\\'
TIMED = lock.Timed("2.13.0", 40, (0.1, 0.11))
ONE = lock.Baseline(
    "train:make, batch 8",
    "0.1.0",
    "2.13.0",
    3 << 30,
    4 << 30,
    {"b": 2 << 20, ODD: 5},
    {"H100": TIMED},
)


def test_what_is_written_is_read_again_and_sorted(tmp_path):
    file = tmp_path / lock.NAME
    assert lock.write(file, {"zwei wörter": ONE, "a": ONE})
    assert lock.read(file) == {"a": ONE, "zwei wörter": ONE}
    text = file.read_text()
    assert text.index("[training.a]") < text.index('[training."zwei wörter"]')
    assert "allocated_bytes = 3221225472  # 3.00 GiB" in text
    assert not lock.write(file, {"a": ONE, "zwei wörter": ONE})
    assert lock.read(tmp_path / "none") == {}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("format = 1", "format = 2", "has format 2"),
        ("format = 1\n", "", "does not say its format"),
        ("allocated_bytes = 3221225472", 'allocated_bytes = "3"', "training.a: allocated_bytes"),
        ("gpuscope = ", "gpuscpe = ", "no such key: gpuscpe"),
        ('"b" = 2097152', '"b" = "2"', "whole numbers"),
        ("[training.a]", "<<<<<<< HEAD", "cannot be read"),
    ],
)
def test_a_bad_lock_says_what_to_do(tmp_path, old, new, said):
    file = tmp_path / lock.NAME
    lock.write(file, {"a": ONE})
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(UserError, match=said) as caught:
        lock.read(file)
    assert "gpuscope check --update" in caught.value.next


def test_a_damaged_lock_is_only_replaced_as_a_whole(tmp_path):
    file = tmp_path / lock.NAME
    file.write_text("<<<<<<< HEAD\n")
    assert run.baselines(file, run.CheckRequest(update=True)) == {}
    for asked in (run.CheckRequest(), run.CheckRequest(names=["a"], update=True)):
        with pytest.raises(UserError, match="cannot be read"):
            run.baselines(file, asked)


def test_times_of_other_machines_stay():
    new = lock.Baseline("m", "0.1.0", "2.13.0", 1, 2, {}, {"cpu": TIMED})
    assert set(lock.merged({"a": ONE}, {"a": new})["a"].times) == {"H100", "cpu"}
