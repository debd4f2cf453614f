"""Loss and time to go from real tqdm bars."""

from __future__ import annotations

import io
import time
from types import SimpleNamespace

import pytest

from gpuscope.probe import progress
from gpuscope.probe.progress import COLUMNS, ProgressReader
from gpuscope.wire.frames import Unknown
from gpuscope.wire.loss_text import NotFinite, read_not_finite

tqdm = pytest.importorskip("tqdm")


def bar(total=None, **more):
    return tqdm.tqdm(total=total, file=io.StringIO(), mininterval=0, **more)


def test_without_a_bar_everything_is_unknown_with_a_reason():
    found = ProgressReader().read()
    assert set(found) == set(COLUMNS)
    assert all(isinstance(value, Unknown) and value.text for value in found.values())


def test_the_outermost_bar_tells_progress_and_time_to_go():
    with bar(100) as outer, bar(7) as inner:
        for _ in range(25):
            time.sleep(0.002)
            outer.update()
        inner.update()
        found = ProgressReader().read()
    assert (found["progress_done"], found["progress_total"]) == (25, 100)
    assert 0.05 < found["eta_seconds"] < 5


def test_the_time_to_go_follows_the_pace_of_minutes_and_not_of_the_last_steps(monkeypatch):
    clock = SimpleNamespace(time=time.time, now=100.0)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(progress, "time", clock)
    own = iter([1.0, 0.2] * 100)
    monkeypatch.setattr(progress.bars, "_tqdm_rate", lambda *_: next(own))
    with bar(10_000) as shown:
        read, found = ProgressReader(), []
        for _ in range(60):
            clock.now += 2.0
            shown.n = shown.n + 1
            found.append(read.read()["eta_seconds"])
    expected = [(10_000 - n) * 2.0 for n in range(1, 61)]
    assert found[5:] == pytest.approx(expected[5:], rel=0.01), "a step takes 2 s"


@pytest.mark.parametrize(
    ("text", "loss"),
    [
        ("loss=0.125", 0.125),
        ("lr=1e-4, train_loss=2.5e-3", 2.5e-3),
        ("train/loss: 3", 3.0),
        ("Loss 0.5", 0.5),
        ("step 3, loss=-1.5, acc=0.9", -1.5),
    ],
)
def test_loss_in_the_postfix_or_the_description(text, loss):
    with bar(10) as shown:
        shown.set_postfix_str(text)
        assert ProgressReader().read()["loss"] == loss
    with bar(10) as shown:
        shown.set_description(text)
        assert ProgressReader().read()["loss"] == loss


def test_set_postfix_as_trainers_use_it():
    with bar(10) as shown:
        shown.set_postfix(acc=0.5, loss=0.1234)
        assert ProgressReader().read()["loss"] == 0.123


def test_a_loss_that_is_not_a_number_is_unknown_and_said():
    with bar(10) as shown:
        shown.set_postfix_str("loss=nan")
        found = ProgressReader().read()["loss"]
    assert isinstance(found, Unknown)
    assert "nan" in found.text


def test_a_loss_that_stays_nan_for_some_steps_is_told_with_the_steps_in_which_it_began():
    def told() -> NotFinite | None:
        reading = reader.read(steps=steps)["loss"]
        return read_not_finite(reading.text) if isinstance(reading, Unknown) else None

    reader = ProgressReader()
    with bar(10) as shown:
        for steps, text, expected in (
            (800, "loss=2.5", None),
            (812, "loss=nan", NotFinite("nan", "", False)),
            (821, "loss=nan", NotFinite("nan", "", False)),
            (822, "loss=nan", NotFinite("nan", "step 801–812", True)),
            (1823, "loss=2.5", None),
            (1824, "loss=nan", NotFinite("nan", "", False)),
            (1834, "loss=nan", NotFinite("nan", "step 1,824", True)),
        ):
            shown.set_postfix_str(text)
            assert told() == expected, steps
        reader = ProgressReader()
        steps = 900
        told()
        steps = 910
        assert told() == NotFinite("nan", "step 900 or earlier", True), "it came later"


def test_words_that_only_contain_loss_are_not_it():
    with bar(10) as shown:
        shown.set_postfix_str("glossary=3, lossless=4")
        assert isinstance(ProgressReader().read()["loss"], Unknown)


def test_a_bar_without_a_total_or_that_has_not_advanced_has_no_time_to_go():
    with bar() as endless:
        endless.update(3)
        found = ProgressReader().read()
        assert found["progress_done"] == 3
        assert isinstance(found["progress_total"], Unknown)
        assert isinstance(found["eta_seconds"], Unknown)
    with bar(10):
        assert isinstance(ProgressReader().read()["eta_seconds"], Unknown)


def test_a_strange_bar_does_not_raise():
    class Strange(tqdm.tqdm):
        @property
        def desc(self):
            raise RuntimeError("no")

        @desc.setter
        def desc(self, value):
            pass

    strange = Strange.__new__(Strange)
    strange.n, strange.total, strange.pos = 3, float("nan"), 0
    try:
        found = ProgressReader().read()
    finally:
        tqdm.tqdm._instances.discard(strange)
        strange.disable = True
    assert isinstance(found["loss"], Unknown)


def shown_by(*bars) -> dict:
    found = ProgressReader().read()
    for one in reversed(bars):
        one.close()
    return found


def advanced(total, by, **more):
    one = bar(total, **more)
    for _ in range(by):
        time.sleep(0.001)
        one.update()
    return one


def test_a_bar_that_stands_at_its_start_is_not_the_training():
    """Composer keeps a dummy bar of one at the first position."""
    found = shown_by(bar(1, desc="dummy"), advanced(50, 5))
    assert (found["progress_done"], found["progress_total"], found["progress_of"]) == (5, 50, "run")


def test_of_nested_bars_the_runs_is_taken_and_an_epochs_is_marked():
    found = shown_by(advanced(3, 1, desc="Epochs"), advanced(50, 5))
    assert (found["progress_done"], found["progress_total"], found["progress_of"]) == (1, 3, "run")
    found = shown_by(bar(3, desc="Epochs"), advanced(50, 5))
    assert (found["progress_done"], found["progress_total"], found["progress_of"]) == (
        5,
        50,
        "epoch",
    )
    assert shown_by(advanced(50, 5, desc="Epoch 2/9"))["progress_of"] == "epoch"


def test_a_bar_over_a_loader_is_an_epochs():
    data = pytest.importorskip("torch.utils.data")
    loader = data.DataLoader(list(range(9)))
    for iterable in (loader, enumerate(loader)):
        shown = tqdm.tqdm(iterable, total=9, file=io.StringIO(), mininterval=0)
        next(walk := iter(shown))
        next(walk)
        assert shown_by(shown)["progress_of"] == "epoch"


def test_the_loss_of_a_validation_is_not_the_trainings():
    validation = advanced(20, 5, desc="valid")
    validation.set_postfix_str("loss=9.0")
    found = shown_by(validation)
    assert isinstance(found["loss"], Unknown)
    training = advanced(20, 5)
    training.set_postfix_str("val_loss=9.0, loss=0.5")
    assert shown_by(training)["loss"] == 0.5


def test_the_bar_of_rich_tells_progress_and_loss():
    console = pytest.importorskip("rich.console").Console(file=io.StringIO(), force_terminal=True)
    from rich.progress import Progress as Shown

    with Shown(console=console) as shown:
        task = shown.add_task("training", total=100, loss=2.0)
        time.sleep(0.01)
        shown.update(task, advance=25, loss=0.5)
        found = ProgressReader().read()
    assert (found["progress_done"], found["progress_total"], found["loss"]) == (25, 100, 0.5)
    assert 0 < found["eta_seconds"] < 30
