"""Loss and progress are read from the state objects of frameworks.

They are played here with the shape that theirs have.
"""

from __future__ import annotations

import gc
import sys
import time
import weakref
from types import SimpleNamespace as Has

import pytest

from gpuscope.lab.config import LabConfig
from gpuscope.lab.run_statistics import Tally
from gpuscope.probe.framework_readers import READERS
from gpuscope.probe.framework_state import FrameworkState
from gpuscope.probe.progress import ProgressReader
from gpuscope.wire.frames import Unknown
from gpuscope.wire.loss_text import read_not_finite

NAN = float("nan")


def framework(module: str, name: str, **attributes: object) -> object:
    """Return an instance of class ``name`` of ``module``.

    Its ``train(step)`` calls ``step`` from a function there.
    """
    space: dict[str, object] = {"__name__": module}
    exec(f"class {name}:\n    def train(self, step):\n        return step()\n", space)
    made = space[name]()  # type: ignore[operator]
    made.__dict__.update(attributes)
    return made


def seen_from(
    trainer: object, progress: ProgressReader | None = None, step_seconds: float | None = 0.5
) -> dict:
    progress = progress or ProgressReader()
    trainer.train(lambda: progress.state.look(time.perf_counter() + 1e6, True))
    return progress.read(step_seconds)


def hf(entries: list, **more: object) -> object:
    state = Has(global_step=20, max_steps=100, logging_steps=5, log_history=entries)
    return framework("transformers.trainer", "Trainer", state=state, **more)


def test_hugging_faces_state_tells_loss_progress_and_time_to_go():
    found = seen_from(
        hf([{"loss": 2.5, "step": 10}, {"loss": 2.25, "step": 20}, {"eval_loss": 9.0}])
    )
    assert found == {
        "loss": 2.25,
        "progress_done": 20,
        "progress_total": 100,
        "eta_seconds": 40.0,
        "progress_of": "run",
    }


@pytest.mark.parametrize(("loss", "shown"), [(1.25, 1.25), (None, "the Lab shows loss nan")])
def test_the_labs_own_run_tells_its_loss_and_progress(loss: float | None, shown: object) -> None:
    tally = Tally(LabConfig(steps=100))
    tally.steps = 20
    run = framework("gpuscope.lab.run", "Run", tally=tally)
    assert seen_from(run)["loss"] == Unknown("not_supported", "the Lab has no loss yet")
    tally._set("loss_last", loss)
    found = seen_from(run)
    assert (found["loss"].text if isinstance(found["loss"], Unknown) else found["loss"]) == shown
    assert (found["progress_done"], found["progress_total"], found["eta_seconds"]) == (
        20,
        100,
        40.0,
    )


def test_a_subclass_in_somebody_elses_package_is_read_like_its_base():
    base = type(hf([{"loss": 1.5}]))
    trainer = type("SFTTrainer", (base,), {"__module__": "trl.trainer.sft_trainer"})()
    trainer.state = hf([{"loss": 1.5}]).state
    assert seen_from(trainer)["loss"] == 1.5


@pytest.mark.parametrize(
    "entry", [{"loss": NAN}, {"loss": 0.0, "grad_norm": NAN}, {"loss": float("inf")}]
)
def test_a_loss_that_is_lost_is_said_in_the_words_that_wait_reads(entry):
    loss = seen_from(hf([entry]))["loss"]
    assert isinstance(loss, Unknown)
    assert read_not_finite(loss.text)


def test_the_framework_that_trains_is_named_by_its_package():
    own = framework("train", "Loop")
    for made, name in ((hf([]), "transformers"), (lightning(), "lightning"), (own, None)):
        progress = ProgressReader()
        assert progress.state.framework is None
        seen_from(made, progress)
        assert progress.state.framework == name


def test_before_its_first_log_the_loss_is_unknown_with_the_reason():
    loss = seen_from(hf([]))["loss"]
    assert loss.text == "TrainerState has no loss yet: it logs one every 5 steps"
    assert not read_not_finite(loss.text)


def lightning(pbar: dict | None = None, results: dict | None = None, **more: object) -> object:
    steps = Has(optim_progress=Has(optimizer=Has(step=Has(total=Has(completed=30)))))
    loop = Has(
        max_steps=-1,
        automatic_optimization=steps,
        batch_progress=Has(total=Has(completed=61)),
        _results=results,
    )
    return framework(
        "lightning.pytorch.trainer.trainer",
        "Trainer",
        fit_loop=Has(max_epochs=4, max_batches=51, epoch_loop=loop),
        _logger_connector=Has(_progress_bar_metrics=pbar or {}),
        accumulate_grad_batches=2,
        **more,
    )


def test_lightnings_progress_is_the_runs_and_its_properties_are_not_evaluated():
    trainer = lightning({"v_num": 1, "val_loss": 9.0, "train_loss": 0.75})
    kind = type(trainer)
    kind.global_step = kind.callback_metrics = property(
        lambda self: pytest.fail("a property was evaluated")
    )
    found = seen_from(trainer)
    assert (found["loss"], found["progress_done"], found["progress_total"]) == (0.75, 30, 104)


def test_the_value_of_a_tensor_on_a_device_is_not_read():
    torch = pytest.importorskip("torch")
    there = Has(_forward_cache=torch.empty((), device="meta"))
    here = Has(_forward_cache=torch.tensor(0.5))
    on_device = seen_from(lightning(results={"training_step.loss": there}))["loss"]
    assert "tensor on a device" in on_device.text
    assert seen_from(lightning(results={"training_step.loss": here}))["loss"] == 0.5
    # The bar has the number already: that one does not wait for the device.
    assert seen_from(lightning({"loss": 0.25}, {"training_step.loss": there}))["loss"] == 0.25


def test_several_losses_are_not_one_but_a_lost_one_is_said():
    both = seen_from(lightning({"d_loss": 1.0, "g_loss": 2.0}))["loss"]
    assert both.text == "Lightning's Trainer has d_loss and g_loss: no single loss"
    assert read_not_finite(seen_from(lightning({"d_loss": 1.0, "g_loss": NAN}))["loss"].text)


def history(*rows: dict) -> list:
    return type("History", (list,), {})(rows)


@pytest.mark.parametrize(
    ("name", "state", "bar", "told"),
    [
        (
            "fastai.Learner",
            Has(recorder=Has(losses=[2.0, 1.5]), train_iter=25, pct_train=0.125),
            None,
            (1.5, 25, 200),
        ),
        (
            "keras.CallbackList",
            Has(
                callbacks=[type("History", (), {})(), type("ProgbarLogger", (), {})()],
                params={"epochs": 3, "steps": 10},
                _model=Has(_loss_tracker=Has(total=Has(_value=6.0), count=Has(_value=8.0))),
            ),
            None,
            (0.75, 14, 30),
        ),
        (
            "stable_baselines3.BaseAlgorithm",
            Has(
                _logger=Has(name_to_value={"train/loss": 5.0, "train/value_loss": 7.0}),
                num_timesteps=256,
                _total_timesteps=5120,
            ),
            None,
            (5.0, 256, 5120),
        ),
        (
            "skorch.NeuralNet",
            Has(
                history_=history(
                    {"train_loss": 0.9, "batches": []},
                    {"batches": [{"train_loss": 0.5}, {"valid_loss": 0.4}]},
                ),
                max_epochs=5,
            ),
            None,
            (0.5, 1, 5),
        ),
        (
            "composer.Trainer",
            Has(
                state=Has(
                    total_loss_dict={"loss/train/total": 0.5},
                    _dataloader_len=Has(_value=20),
                    timestamp=Has(_batch=Has(_value=33)),
                    _max_duration=Has(_value=3, _unit=Has(_name_="EPOCH")),
                )
            ),
            None,
            (0.5, 33, 60),
        ),
        (
            "ignite.Engine",
            Has(state=Has(output=0.5, iteration=7, max_epochs=2, epoch_length=10, max_iters=None)),
            None,
            (0.5, 7, 20),
        ),
        (
            "ignite.Engine",
            Has(state=Has(output=[{"loss": 0.5, "pred": 1}], iteration=7, max_iters=9)),
            None,
            (0.5, 7, 9),
        ),
        (
            "ultralytics.BaseTrainer",
            Has(loss_names=("box_loss", "cls_loss"), tloss=None, epoch=1, epochs=3),
            Has(
                desc="        2/3         0G       1.25        2.5         12         64",
                n=4,
                total=8,
            ),
            (3.75, 12, 24),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_other_frameworks_keep(name, state, bar, told):
    if name.startswith("keras"):
        state.callbacks[0].epoch, state.callbacks[1].seen = [0], 4
    found = READERS[name](state, bar)
    assert (found.loss, found.done, found.total) == told
    empty = READERS[name](Has(), None)
    assert isinstance(empty.loss, Unknown)
    assert empty.total is None


def test_a_loss_that_a_logger_forgets_when_it_writes_is_kept():
    """SB3 empties its values at every dump, until the next update of the policy."""
    values = {"train/loss": 5.0}
    trainer = framework(
        "stable_baselines3.ppo.ppo",
        "BaseAlgorithm",
        _logger=Has(name_to_value=values),
        num_timesteps=256,
        _total_timesteps=512,
    )
    progress = ProgressReader()
    assert seen_from(trainer, progress)["loss"] == 5.0
    values.clear()
    assert progress.read()["loss"] == 5.0


def test_variables_of_nanogpts_script_and_of_timms_loop():
    code = "iter_num, max_iters, lossf = 6, 60, 0.5\nstep()"
    progress = ProgressReader()
    space = {"__name__": "__main__", "step": lambda: progress.state.look(time.perf_counter(), True)}
    exec(compile(code, "/home/somebody/train.py", "exec"), space)
    found = progress.read(0.5)
    assert (found["loss"], found["progress_done"], found["progress_total"]) == (0.5, 6, 60)
    code = """
class AverageMeter:
    val = None
def train_one_epoch(epoch, updates_per_epoch):
    losses_m, update_idx = AverageMeter(), 4
    losses_m.val = 0.25
    step()
def main():
    num_epochs = 3
    train_one_epoch(1, 20)
main()
"""
    space = {
        "__name__": "__main__",
        "step": lambda: progress.state.look(time.perf_counter() + 10, True),
    }
    exec(compile(code, "/home/somebody/train.py", "exec"), space)
    found = progress.read(0.5)
    assert (found["loss"], found["progress_done"], found["progress_total"]) == (0.25, 25, 60)


def test_the_trainer_is_not_kept_alive_and_what_is_gone_is_unknown():
    trainer, progress = hf([{"loss": 1.0}]), ProgressReader()
    assert seen_from(trainer, progress)["loss"] == 1.0
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None
    assert isinstance(progress.read()["loss"], Unknown)


def test_it_looks_once_a_second_and_not_under_a_debugger():
    state, trainer = FrameworkState(), hf([{"loss": 1.0}])
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        trainer.train(lambda: state.look(1.0, True))
    finally:
        sys.settrace(before)
    assert state.read() is None
    trainer.train(lambda: state.look(1.5, True))
    assert state.read() is None
    trainer.train(lambda: state.look(2.5, True))
    assert state.read().loss == 1.0


def test_a_state_of_another_shape_is_unknown_and_does_not_raise():
    for state in (
        None,
        3,
        Has(log_history=3, max_steps="many", global_step=-1),
        Has(log_history=[None, "x"]),
    ):
        found = seen_from(framework("transformers.trainer", "Trainer", state=state))
        assert isinstance(found["loss"], Unknown)
        assert isinstance(found["progress_total"], Unknown)
