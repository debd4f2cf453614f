"""How much larger a micro-batch could be, by what a trainer has measured."""

from __future__ import annotations

from gpuscope.predict.trainer_what_if import larger_batch

GIB = 1 << 30


def test_a_larger_micro_batch_fits_as_often_as_its_own_bytes_fit_into_the_headroom():
    found = larger_batch(40 * GIB, 5 * GIB, 5 * GIB, 10 * GIB, 50 * GIB)
    assert found is not None
    assert (found.each_low, found.each_high) == (20 * GIB, 25 * GIB), "gradients may be part of it"
    assert (found.low, found.high) == (3.0, 3.5)


def test_nothing_is_said_of_a_larger_micro_batch_where_the_bytes_do_not_allow_it():
    assert larger_batch(40 * GIB, None, 0, 0, 50 * GIB) is None
    assert larger_batch(40 * GIB, 5 * GIB, 0, 0, None) is None
    assert larger_batch(40 * GIB, 5 * GIB, 0, 0, -1.0) is None, "the peak had no room left"
    assert larger_batch(15 * GIB, 5 * GIB, 5 * GIB, 10 * GIB, 50 * GIB) is None
