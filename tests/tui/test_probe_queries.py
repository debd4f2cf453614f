"""A trainer's probe is asked from a screen.

It is asked once or repeatedly, with errors in words, and never in a replay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpuscope.store.pending_requests import SourceError
from gpuscope.store.view import Gone
from gpuscope.tui.background.probe_queries import MAX_KEPT, NOT_RECORDED, Asker, ProbeAnswer
from gpuscope.wire import frames as f
from tests.fakes import views
from tests.tui.pilot import in_loop


class Probe:
    """A source whose answers the test gives: a value, or an error to raise.

    It remembers what it was asked.
    """

    key, label, badge = views.SOURCE, "node-17", ""

    def __init__(self, answer: Callable[[], Mapping[str, Any]]) -> None:
        self.answer, self.asked = answer, []  # type: ignore[var-annotated]

    async def request(
        self, name: str, args: Mapping[str, f.Scalar], deadline: float = 10.0, **more: Any
    ) -> f.Result:
        self.asked.append((name, dict(args), more))
        await asyncio.sleep(0)
        return f.Result(1, dict(self.answer()))


def made(answer: Callable[[], Mapping[str, Any]]) -> tuple[Asker, Probe, Any, list[int]]:
    store, source, changes = views.store_of(views.training(2.0)), Probe(answer), []
    host = views.host_in(store)
    asker = Asker(lambda: (store, source), lambda: changes.append(1))  # type: ignore[arg-type, return-value]
    return asker, source, host.trainers[0], changes


async def settled(asker: Asker, trainer: Any, **more: Any) -> ProbeAnswer:
    """What is known once nothing is under way any more."""
    while asker.latest(trainer, "statistics", {"device": 0}, **more).asked:
        await asyncio.sleep(0)
    return asker.seen(trainer, "statistics", {"device": 0})


@in_loop
async def test_the_first_call_asks_the_trainer_by_its_wire_id_and_the_answer_is_there_later():
    asker, source, trainer, changes = made(lambda: {"n": 1})
    first = asker.latest(trainer, "statistics", {"device": 0})
    assert first.value is None
    assert first.asked
    assert not first.problem
    answer = await settled(asker, trainer)
    assert answer.value == {"n": 1}
    assert answer.age_seconds is not None
    assert answer.age_seconds >= 0
    assert source.asked == [("statistics", {"device": 0, "trainer": 313}, {})]
    assert changes == [1]


@in_loop
async def test_while_an_answer_is_young_nothing_more_is_asked():
    asker, source, trainer, _ = made(lambda: {"n": 1})
    await settled(asker, trainer)
    for _ in range(5):
        assert not asker.latest(trainer, "statistics", {"device": 0}, every_seconds=60.0).asked
    assert len(source.asked) == 1


@in_loop
async def test_an_old_answer_stays_until_the_next_and_then_is_the_one_before():
    numbers = iter(range(1, 9))
    asker, _, trainer, _ = made(lambda: {"n": next(numbers)})
    await settled(asker, trainer)
    again = asker.latest(trainer, "statistics", {"device": 0}, every_seconds=0.0)
    assert again.asked
    assert again.value == {"n": 1}
    while asker.seen(trainer, "statistics", {"device": 0}).asked:
        await asyncio.sleep(0)
    answer = asker.seen(trainer, "statistics", {"device": 0})
    assert (answer.value, answer.before) == ({"n": 2}, {"n": 1})
    assert answer.between_seconds is not None
    assert answer.between_seconds > 0


@in_loop
async def test_an_error_is_told_in_words_beside_what_was_known():
    answers: list[Any] = [{"n": 1}, SourceError("unsupported", "torch has no allocator on a CPU")]

    def answer() -> Mapping[str, Any]:
        now = answers.pop(0)
        if isinstance(now, Exception):
            raise now
        return now  # type: ignore[no-any-return]

    asker, source, trainer, _ = made(answer)
    await settled(asker, trainer)
    asker.latest(trainer, "statistics", {"device": 0}, every_seconds=0.0)
    while asker.seen(trainer, "statistics", {"device": 0}).asked:
        await asyncio.sleep(0)
    after = asker.latest(trainer, "statistics", {"device": 0}, every_seconds=0.0)
    assert after.value == {"n": 1}
    assert (after.problem, after.code) == ("torch has no allocator on a CPU", "unsupported")
    assert not after.asked, "what is not supported is not asked again at once"
    assert len(source.asked) == 2


@in_loop
async def test_a_source_that_breaks_its_promise_is_a_problem_and_no_more():
    def answer() -> Mapping[str, Any]:
        raise ZeroDivisionError("odd")

    asker, _, trainer, _ = made(answer)
    assert "odd" in (await settled(asker, trainer)).problem


@in_loop
async def test_a_trainer_that_ended_is_not_asked():
    asker, source, trainer, _ = made(dict)
    ended = replace(trainer, gone=Gone(1.0, 1.0, "killed"))
    answer = asker.latest(ended, "statistics")
    assert "has ended" in answer.problem
    assert not source.asked
    with pytest.raises(SourceError, match="has ended"):
        await asker.ask(ended, "modules")


@in_loop
async def test_in_a_replay_nothing_is_asked():
    asker, source, trainer, _ = made(dict)
    source.badge = "REPLAY"
    assert asker.latest(trainer, "statistics").problem == NOT_RECORDED
    assert not source.asked


@in_loop
async def test_before_there_is_a_source_nothing_is_known_and_asking_says_so():
    _, _, trainer, _ = made(dict)
    asker = Asker(lambda: None, lambda: None)
    assert asker.latest(trainer, "statistics") == ProbeAnswer()
    with pytest.raises(SourceError, match="not connected yet"):
        await asker.ask(trainer, "statistics")


@in_loop
async def test_asking_once_hands_on_where_a_blob_goes(tmp_path):
    asker, source, trainer, _ = made(lambda: {"bytes": 3})
    result = await asker.ask(
        trainer, "snapshot", deadline=60.0, blob_to=tmp_path / "s.pickle", max_bytes=10
    )
    assert result.value == {"bytes": 3}
    assert source.asked[0][2] == {"blob_to": tmp_path / "s.pickle", "max_bytes": 10}


@in_loop
async def test_what_is_kept_is_bounded_and_closing_lets_go():
    asker, _, trainer, _ = made(lambda: {"n": 1})
    for number in range(MAX_KEPT + 10):
        asker.latest(trainer, "statistics", {"device": number})
    assert len(asker._questions) == MAX_KEPT
    tasks = [q.task for q in asker._questions.values() if q.task is not None]
    asker.close()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() or task.done() for task in tasks)
