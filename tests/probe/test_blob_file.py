"""An act does not hurt the trainer by disk, memory or descriptors.

The arithmetic of a price is tested too.
"""

from __future__ import annotations

import math
import os
import random
import statistics

import pytest

from gpuscope.probe import blob_file, history, rendezvous
from gpuscope.probe.long_requests import Refusal
from gpuscope.probe.steps import median_interval


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setattr(blob_file, "DISKS", (str(tmp_path),))
    return tmp_path


def test_a_file_has_no_name_and_gives_back_what_was_written(place):
    file = blob_file.unlinked()
    assert list(place.iterdir()) == []
    parts = [os.urandom(70_000) for _ in range(5)]
    for part in parts:
        assert file.write(part) == len(part)
    assert file.size == file.length() == 350_000
    reader = file.rewind()
    assert b"".join(iter(lambda: reader.read(65536), b"")) == b"".join(parts)
    file.close()
    file.close()
    with pytest.raises(OSError, match="closed our temporary file"):
        file.read(1)


def test_a_descriptor_that_the_trainer_has_taken_is_left_alone(place, tmp_path):
    file = blob_file.unlinked()
    file.write(b"ours")
    number = file._descriptor
    os.close(number)  # os.closerange() of a trainer that makes itself a daemon
    theirs = os.open(tmp_path / "checkpoint", os.O_RDWR | os.O_CREAT)
    assert theirs == number
    for use in (lambda: file.write(b"x"), lambda: file.read(4), file.rewind):
        with pytest.raises(OSError, match="closed our temporary file"):
            use()
    file.close()
    assert os.fstat(theirs).st_size == 0
    os.close(theirs)


def test_too_large_and_no_room_are_refused(place, monkeypatch):
    monkeypatch.setattr(blob_file, "LOOK_BYTES", 1000)
    descriptor = os.open(place / "a", os.O_RDWR | os.O_CREAT)
    os.unlink(place / "a")
    file = blob_file.OwnFile(descriptor, str(place), limit=10_000)
    file.write(b"x" * 9_000)
    with pytest.raises(Refusal, match="larger than the 10000 bytes"):
        file.write(b"x" * 2_000)
    monkeypatch.setattr(blob_file, "free_bytes", lambda path: blob_file.SPARE_BYTES - 1)
    with pytest.raises(Refusal, match=r"no space left in .* with 9000 bytes written"):
        file.write(b"x" * 500)
    file.close()
    with pytest.raises(
        Refusal, match=r"no space for a temporary file: 255 MiB free in .*, 255 MiB free in /tmp"
    ):
        blob_file.directory()


def test_where_no_disk_is_the_probes_own_directory_serves(monkeypatch):
    monkeypatch.setattr(blob_file, "DISKS", ("/nowhere",))
    assert blob_file.directory() == rendezvous.directory()


def test_memory_is_asked_for_before_it_is_taken(monkeypatch):
    left = blob_file.host_memory()
    assert left is not None
    blob_file.refuse_without_memory(0, "nothing")
    with pytest.raises(
        Refusal, match=r"a history may take \d+ MiB of the trainer's host memory, and only \d+ MiB"
    ):
        blob_file.refuse_without_memory(left + (64 << 30), "a history")
    monkeypatch.setattr(blob_file, "host_memory", lambda: None)
    blob_file.refuse_without_memory(1 << 60, "where nobody tells, it is not refused")


@pytest.mark.parametrize(("n", "rank"), [(20, 5), (40, 13), (100, 39)])
def test_the_interval_of_a_median_is_the_narrowest_of_its_kind(n, rank):
    # Ranks come from the binomial distribution, computed the other way round: from the middle
    # outwards.
    confidence = math.sqrt(0.95)

    def holds(r):
        return sum(math.comb(n, k) for k in range(r, n - r + 1)) / 2**n

    assert holds(rank) >= confidence > holds(rank + 1)
    assert median_interval(list(range(1, n + 1)), confidence) == (rank, n + 1 - rank)


def test_the_price_holds_in_95_of_100_trials():
    rng = random.Random(11)
    held, widths = 0, []
    for _ in range(400):
        # Steps of 10 ms with outliers; history makes the median 8 % longer.
        without = [
            0.010 * rng.lognormvariate(0, 0.05) + (rng.random() < 0.05) * 0.02 for _ in range(40)
        ]
        with_it = [
            0.0108 * rng.lognormvariate(0, 0.05) + (rng.random() < 0.05) * 0.02 for _ in range(40)
        ]
        middle, low, high = history.cost(without, with_it)
        assert low <= middle <= high
        held += low <= 8.0 <= high
        widths.append(high - low)
    assert held >= 0.95 * 400
    assert statistics.median(widths) < 12, "wide, and still of use"
