"""Which part of a step stands out on which rank."""

from __future__ import annotations

from gpuscope.model.odd_parts import odd_parts
from tests.fakes import jobs, views


def test_a_rank_whose_wait_is_far_above_that_of_the_others_stands_out() -> None:
    host = views.host_of(views.training())
    ranks = [t for t in host.trainers if t.definition.world_size != 1]
    odd = next(t.key for t in ranks if t.definition.rank == 5)
    assert odd_parts(ranks) == {odd: frozenset({"input"})}


def test_ranks_that_are_alike_have_no_odd_part() -> None:
    host = views.host_of(jobs.ranks(4))
    assert odd_parts(host.trainers) == {}
    assert odd_parts(host.trainers[:1]) == {}
