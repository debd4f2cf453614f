"""What changed when steps became slower is told; recorded healthy trainings raise no alarm."""

from __future__ import annotations

import random
import re
import time

import pytest

from gpuscope.model.slowdown import of_trainer, of_trainers
from gpuscope.store.decode import decode
from gpuscope.store.store import Store
from gpuscope.store.view import History, HostView
from gpuscope.wire.codec import WireError, encode
from gpuscope.wire.frames import Def, Frame, Sample, UseDef
from gpuscope.wire.recording import RecordingReader
from tests.fakes.wire import SECOND, definitions, hello, row
from tests.recordings import SHIPPED

KEY = "k"
RANK_0, GPU, USE = 8, 1, 5
NEIGHBOUR = 11
RECORDINGS = sorted(SHIPPED.glob("*.gsr"))


def told(frames: list[Frame]) -> tuple[Store, HostView]:
    store = Store()
    store.add_source(KEY, "node-1")
    for frame in frames:
        store.apply(KEY, decode(encode(frame).rstrip()), 1.0)
    host = store.view().host
    assert host is not None
    return store, host


def course(slow: bool) -> list[Frame]:
    """Ten minutes: in the sixth the clock falls, another process comes, and steps take longer."""
    dice, frames = random.Random(4), [hello(), *definitions()]
    for n in range(300):
        late = slow and n >= 170
        if late and n == 172:
            frames.append(Def(NEIGHBOUR, use=UseDef(4, GPU)))
        compute = (0.14 if late else 0.08) * (1 + 0.02 * dice.gauss(0, 1))
        trainer = row(
            RANK_0, "t", step=10 * n, step_seconds=compute + 0.02, compute_seconds=compute,
            input_seconds=0.01, optimizer_seconds=0.01,
        )  # fmt: skip
        device = row(GPU, "g", sm_clock_mhz=1200 if late else 1980, power_limit_watts=700)
        uses = [[NEIGHBOUR, 1 << 30, None]] if n >= 172 and late else []
        m = (100 + 2 * n) * SECOND
        frames.append(Sample(n, m, g=[device], t=[trainer], u=uses, h=[row(0, "h", load_1m=1.0)]))
    return frames


def test_it_says_since_when_and_what_changed_then():
    store, host = told(course(slow=True))
    trainer = next(one for one in host.trainers if one.definition.rank == 0)

    def history(entity: int, column: str, seconds: float | None) -> History:
        return store.history(KEY, entity, column, seconds)

    found = of_trainer(trainer, host, history)
    assert found is not None
    assert found.change.ratio == pytest.approx(1.6, abs=0.05)
    assert found.change.seconds == pytest.approx(100 + 2 * 170, abs=10)
    when = time.strftime("%H:%M", time.localtime(1_000_000.0 + found.change.seconds - 100))
    assert f"times as long since {when}" in found.text
    assert found.then[0].startswith("compute and other code 80")
    assert re.search(r"clock of GPU 0 1980 MHz → 1200 MHz", found.text)
    assert "pid 40 came to GPU 0" in found.then
    assert not any("power limit" in one or "load" in one for one in found.then)


def test_a_screen_that_asks_often_gets_the_last_judgement():
    store, host = told(course(slow=True))
    asked: list[str] = []

    def history(entity: int, column: str, seconds: float | None) -> History:
        asked.append(column)
        return store.history(KEY, entity, column, seconds)

    first = of_trainers(host.trainers, host, history)
    assert first is not None
    assert first.brief.startswith("1.60× slower since ")
    count = len(asked)
    assert of_trainers(host.trainers, host, history) is first
    assert len(asked) == count
    other, later = told(course(slow=False))
    assert of_trainers(later.trainers, later, lambda *a: other.history(KEY, *a)) is None


def test_a_steady_training_is_not_slower():
    store, host = told(course(slow=False))
    for trainer in host.trainers:
        assert of_trainer(trainer, host, lambda *a: store.history(KEY, *a)) is None


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_trainings_that_were_healthy_or_stood_still_raise_no_alarm(path):
    store = Store()
    store.add_source(KEY, "x")
    for line in RecordingReader(path).lines():
        try:
            store.apply(KEY, decode(line.line), line.rx)
        except WireError:
            continue
    host = store.view().host
    assert host is not None
    for trainer in host.trainers:
        assert of_trainer(trainer, host, lambda *a: store.history(KEY, *a)) is None
