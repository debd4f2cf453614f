"""What a trainer's black box holds stands before what was seen of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuscope.probe import blackbox, records
from gpuscope.probe.sampler import TRAINER_ID
from gpuscope.store.box_history import BoxHistory
from gpuscope.store.view import History, TrainerView
from gpuscope.wire import frames as f
from tests.fakes import views

SECONDS = 120


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUSCOPE_BLACKBOX_DIR", str(tmp_path / "boxes"))
    monkeypatch.setattr(records, "FREE_BYTES", 0)
    return tmp_path / "boxes"


def leave_box(place: Path, trainer: TrainerView, end: float) -> None:
    """The box of this trainer: a step a second, of as many milliseconds as seconds before."""
    d = trainer.definition
    cols = {"t": ["step", "step_seconds"], "a": ["allocated_bytes"]}
    box = blackbox.BlackBox(lambda hz: f.Hello(role="probe", cols=cols, pid=d.pid, t=1000.0, m=5))
    definitions = {
        TRAINER_ID: f.Def(TRAINER_ID, trainer=f.TrainerDef(d.pid, d.start, script=d.script)),
        2: f.Def(2, alloc=f.AllocDef(TRAINER_ID, 0, uuid="GPU-1")),
    }
    for n in range(SECONDS):
        back = SECONDS - n
        rows = {"t": [[TRAINER_ID, n, back / 1e3]], "a": [[2, n]]}
        box.sample(f.Sample(n + 1, int((end - back) * 1e9), **rows), {}, definitions, {})
    Path(box.path).rename(place / f"{d.pid}-{d.start}.box")


def one() -> tuple[TrainerView, float]:
    host = views.store_of(views.cpu_only(4.0)).view().host
    assert host is not None
    assert host.sampled_seconds is not None
    return host.trainers[0], host.sampled_seconds


def test_the_box_goes_before_what_was_seen_and_never_beside_it(place):
    trainer, now = one()
    leave_box(place, trainer, now)
    boxes = BoxHistory()
    assert boxes.unread([trainer]) == [trainer]
    boxes.read([trainer], place)
    assert boxes.unread([trainer]) == []
    seen = History((now - 5.0, now), (0.5, 0.6))
    both = boxes.before(trainer.id, "step_seconds", seen)
    assert both.seconds[-2:] == seen.seconds
    assert list(both.seconds) == sorted(set(both.seconds))
    assert both.values[:2] == (0.120, 0.119)
    assert both.seconds[-3] < seen.seconds[0]
    minute = boxes.before(trainer.id, "step_seconds", seen, now - 60.0)
    assert now - 60.0 <= minute.seconds[0] < now - 58.0
    assert boxes.before(trainer.id, "step_seconds", seen, now - 5.5) is seen, "nothing is missing"
    assert boxes.before(trainer.id, "loss", seen).seconds == seen.seconds, "not in the box"
    assert boxes.before(trainer.id + 9999, "step_seconds", seen) is seen


def test_a_trainer_without_a_box_has_no_past_and_is_looked_at_once(place):
    trainer, now = one()
    boxes = BoxHistory()
    assert boxes.read([trainer], place) == {}
    assert boxes.unread([trainer]) == []
    seen = History((now,), (0.5,))
    assert boxes.before(trainer.id, "step_seconds", seen, now - 60.0) is seen


def test_a_file_that_is_no_box_is_read_without_harm(place):
    trainer, now = one()
    place.mkdir()
    d = trainer.definition
    (place / f"{d.pid}-{d.start}.box").write_bytes(b"no box" * 5000)
    boxes = BoxHistory()
    boxes.read([trainer], place)
    seen = History((now,), (0.5,))
    assert boxes.before(trainer.id, "step_seconds", seen, now - 60.0) is seen
