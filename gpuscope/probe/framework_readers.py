"""Read loss and progress from the state objects of training frameworks.

There is one function for each framework. It gets the framework's own object and must not change it,
call it or wait for a device (see ``plain_values``). If another version keeps a value elsewhere,
that value becomes unknown, never wrong.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Tuple, Union

from ..wire.frames import NOT_SUPPORTED, Unknown
from .plain_values import Value, attribute, attributes, count, finite, number, scalar, training_loss

MAX_LOOK_BACK = 512
"""How many entries of a framework's records are searched, beginning with the last one."""


class TrainingReport(NamedTuple):
    """What a framework reports about its training.

    ``done`` and ``total`` are in the framework's unit and refer to the whole run.
    """

    source: str
    loss: Value
    done: Optional[int] = None
    total: Optional[int] = None
    in_steps: bool = False  # ``done`` counts optimizer steps
    meter: Any = None  # the object that holds the loss


Reader = Callable[[Any, Any], TrainingReport]
"""A function of (the framework's object, its progress bar or None) that returns what it reports."""


def _transformers(trainer: Any, bar: Any) -> TrainingReport:
    """Read Hugging Face's Trainer.

    It is also the base class of TRL's and of sentence-transformers' trainers.
    """
    source = "TrainerState"
    state = attributes(attribute(trainer, "state"))
    history: Any = state.get("log_history")
    every = count(state.get("logging_steps"))
    loss: Value = Unknown(
        NOT_SUPPORTED, f"{source} has no loss yet: it logs one every {every or 'few'} steps"
    )
    entries: List[Any] = history[-MAX_LOOK_BACK:] if type(history) is list else []
    for entry in reversed(entries):
        found = number(entry.get("loss")) if type(entry) is dict else None
        if found is not None:
            loss = finite(found, source)
            gradients = number(entry.get("grad_norm"))
            if found == 0 and gradients is not None and math.isnan(gradients):
                # The trainer leaves nan losses out of its mean. If all are nan, the mean is 0.
                loss = Unknown(
                    NOT_SUPPORTED, f"{source} logs loss 0 and grad_norm nan, so it shows loss nan"
                )
            break
    total = count(state.get("max_steps"))
    return TrainingReport(source, loss, count(state.get("global_step")), total or None, True)


def _lightning(trainer: Any, bar: Any) -> TrainingReport:
    source = "Lightning's Trainer"
    fit = attributes(attribute(trainer, "fit_loop"))
    loop = attributes(fit.get("epoch_loop"))
    epochs, most = count(fit.get("max_epochs")), count(loop.get("max_steps"))
    batches = count(fit.get("max_batches"))
    steps = count(
        attribute(
            loop.get("automatic_optimization"),
            "optim_progress",
            "optimizer",
            "step",
            "total",
            "completed",
        )
    )
    by_hand = count(
        attribute(loop.get("manual_optimization"), "optim_step_progress", "total", "completed")
    )
    done: Optional[int]
    total: Optional[int]
    if most and by_hand and not steps:
        done, total, in_steps = by_hand, most, False
    elif steps:
        each = count(attributes(trainer).get("accumulate_grad_batches")) or 1
        done, in_steps = steps, True
        total = -(-batches // each) * epochs if epochs and batches else None
        total = min(total or most, most) if most else total
    else:
        done, in_steps = (
            count(attribute(loop.get("batch_progress"), "total", "completed")) or 0,
            False,
        )
        total = batches * epochs if epochs and batches else None
    return TrainingReport(source, _lightning_loss(trainer, loop, source), done, total, in_steps)


def _lightning_loss(trainer: Any, loop: Dict[str, Any], source: str) -> Value:
    """Read the loss from what was logged last.

    A step may log it for the progress bar, for the loggers, or for callbacks.
    """
    connector = attributes(attribute(trainer, "_logger_connector"))
    results = loop.get("_results")
    step = {}
    if isinstance(results, dict):
        for key, metric in list(dict.items(results))[:256]:
            cached = attribute(metric, "_forward_cache")
            if isinstance(key, str) and cached is not None:
                step[key.rpartition(".")[2]] = cached
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet: log it with self.log")
    for values in (
        step,
        *map(connector.get, ("_progress_bar_metrics", "_logged_metrics", "_callback_metrics")),
    ):
        if isinstance(values, dict) and values:
            found = training_loss(dict(dict.items(values)), source)
            if not isinstance(found, Unknown) or " shows loss " in found.text:
                return found
            if "no loss yet" not in found.text:
                loss = found
    return loss


def _fastai(learner: Any, bar: Any) -> TrainingReport:
    source = "fastai's Recorder"
    own = attributes(learner)
    losses = attribute(own.get("recorder"), "losses")  # smoothed, and in the host's memory
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    if isinstance(losses, list) and losses:
        loss = training_loss({"loss": list.__getitem__(losses, -1)}, source)
    done, share = count(own.get("train_iter")), number(own.get("pct_train"))
    return TrainingReport(source, loss, done, round(done / share) if done and share else None, True)


def _keras(callbacks: Any, bar: Any) -> TrainingReport:
    source = "Keras"
    own = attributes(callbacks)
    held = own.get("callbacks")
    by_name = {type(item).__name__: item for item in held} if type(held) is list else {}
    tracker = attribute(own.get("_model"), "_loss_tracker")
    weight, seen = (scalar(attribute(tracker, name, "_value")) for name in ("total", "count"))
    if isinstance(weight, (int, float)) and isinstance(seen, (int, float)) and seen:
        loss = finite(weight / seen, source)  # the mean of this epoch so far, as the bar shows it
    else:
        shown = attribute(by_name.get("ProgbarLogger"), "progbar", "_values")
        pair = shown.get("loss") if type(shown) is dict else None
        if type(pair) is list and len(pair) == 2 and number(pair[1]):
            loss = finite((number(pair[0]) or 0.0) / (number(pair[1]) or 1), source)
        elif isinstance(weight, str):
            loss = Unknown(NOT_SUPPORTED, f"the loss of {source} {weight}")
        else:
            loss = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    params = own.get("params")
    epochs, steps = (
        (count(params.get(name)) for name in ("epochs", "steps"))
        if type(params) is dict
        else (None, None)
    )
    finished = attribute(by_name.get("History"), "epoch")
    over = len(finished) if type(finished) is list else None
    in_epoch = count(attribute(by_name.get("ProgbarLogger"), "seen"))
    if over is not None and steps and epochs and in_epoch is not None:
        # the bar starts again only after the epoch's validation
        within = in_epoch if over < epochs and not (over and in_epoch == steps) else 0
        return TrainingReport(source, loss, over * steps + within, epochs * steps, True)
    return TrainingReport(source, loss, over, epochs)


def _stable_baselines(algorithm: Any, bar: Any) -> TrainingReport:
    source = "SB3's logger"
    own = attributes(algorithm)
    values = attribute(own.get("_logger"), "name_to_value")
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    if isinstance(values, dict):
        loss = training_loss(
            {
                name: value
                for name, value in list(dict.items(values))[:256]
                if isinstance(name, str) and name.startswith("train/")
            },
            source,
        )
    return TrainingReport(
        source, loss, count(own.get("num_timesteps")), count(own.get("_total_timesteps")) or None
    )


def _skorch(net: Any, bar: Any) -> TrainingReport:
    source = "skorch's history"
    own = attributes(net)
    history = own.get("history_")
    rows = list(history) if isinstance(history, list) else []
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    for row in reversed(rows[-2:]):
        batches = row.get("batches") if isinstance(row, dict) else None
        entries: List[Any] = [*reversed(batches[-MAX_LOOK_BACK:])] if type(batches) is list else []
        losses = next(
            (
                entry
                for entry in [*entries, row]
                if isinstance(entry, dict) and "train_loss" in entry
            ),
            None,
        )
        if losses is not None:
            loss = training_loss({"loss": losses["train_loss"]}, source)
            break
    return TrainingReport(source, loss, max(0, len(rows) - 1), count(own.get("max_epochs")) or None)


def _composer(trainer: Any, bar: Any) -> TrainingReport:
    source = "Composer's State"
    state = attributes(attribute(trainer, "state"))
    losses = state.get("total_loss_dict")
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    if isinstance(losses, dict) and losses:
        loss = training_loss(dict(losses), source)
    now, limit = attributes(state.get("timestamp")), attributes(state.get("_max_duration"))
    unit, most = attribute(limit.get("_unit"), "_name_"), count(limit.get("_value"))
    each = count(attribute(state.get("_dataloader_len"), "_value"))
    if unit == "EPOCH" and each and most:
        return TrainingReport(
            source, loss, count(attribute(now.get("_batch"), "_value")), each * most, True
        )
    done = count(attribute(now.get(f"_{str(unit).lower()}"), "_value"))
    return TrainingReport(source, loss, done, most or None, unit == "BATCH")


def _ignite(engine: Any, bar: Any) -> TrainingReport:
    """Read ignite's Engine, which is also the base class of MONAI's trainers."""
    source = "ignite's State"
    state = attributes(attribute(engine, "state"))
    output = state.get("output")
    if isinstance(output, (list, tuple)) and output and isinstance(output[0], dict):
        output = output[0]  # MONAI has one dictionary per sample, with the same loss in each
    if isinstance(output, dict):
        loss = training_loss(dict(dict.items(output)), source)
    elif output is None:  # between two epochs
        loss = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    elif scalar(output) is None:
        loss = Unknown(NOT_SUPPORTED, f"{source} has no single number as output")
    else:
        loss = training_loss({"loss": output}, source)
    epochs, each, most = (
        count(state.get(name)) for name in ("max_epochs", "epoch_length", "max_iters")
    )
    total = most or (epochs * each if epochs and each else None)
    return TrainingReport(source, loss, count(state.get("iteration")), total)


def _ultralytics(trainer: Any, bar: Any) -> TrainingReport:
    """Read ultralytics' trainer.

    Its loss is the sum of the parts in its bar, each a mean over the epoch.
    """
    source = "ultralytics' trainer"
    own = attributes(trainer)
    names, parts = own.get("loss_names"), own.get("tloss")
    read = [scalar(value) for value in parts.values()] if type(parts) is dict else []
    shown = attributes(bar)
    if not read or not all(isinstance(value, (int, float)) for value in read):
        words = shown["desc"].split() if isinstance(shown.get("desc"), str) else []
        size = len(names) if isinstance(names, (list, tuple)) else 0
        read = [_parsed(word) for word in words[2 : 2 + size]]  # epoch, memory, then the parts
    figures = [value for value in read if isinstance(value, (int, float))]
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    if figures and len(figures) == len(read):
        loss = finite(sum(figures), source)
    epoch, epochs = count(own.get("epoch")), count(own.get("epochs"))
    done, each = count(shown.get("n")), count(shown.get("total"))
    if epoch is None or not epochs:
        return TrainingReport(source, loss)
    if done is None or not each:
        return TrainingReport(source, loss, epoch, epochs)
    return TrainingReport(source, loss, epoch * each + done, epochs * each)


def _parsed(word: str) -> Union[float, None]:
    try:
        return float(word)
    except ValueError:
        return None


def _lab(run: Any, bar: Any) -> TrainingReport:
    """Read the Lab's own run.

    Its losses are on the host when they are reported, and no code of a user runs here.
    """
    source, tally = "the Lab", run.tally
    loss: Value = Unknown(NOT_SUPPORTED, f"{source} has no loss yet")
    if tally.diverged:
        loss = finite(math.nan, source)
    elif tally.loss is not None:
        loss = finite(tally.loss, source)
    return TrainingReport(source, loss, tally.steps, tally.config.steps, True)


READERS: Dict[str, Reader] = {
    "gpuscope.Run": _lab,
    "transformers.Trainer": _transformers,
    "lightning.Trainer": _lightning,
    "pytorch_lightning.Trainer": _lightning,
    "fastai.Learner": _fastai,
    "keras.CallbackList": _keras,
    "stable_baselines3.BaseAlgorithm": _stable_baselines,
    "skorch.NeuralNet": _skorch,
    "composer.Trainer": _composer,
    "ignite.Engine": _ignite,
    "ultralytics.BaseTrainer": _ultralytics,
}
"""The readers by package and class. Instances of derived classes are read in the same way."""
PACKAGES = frozenset(name.partition(".")[0] for name in READERS)


def read_script(values: Dict[str, Any], outer: Dict[str, Any]) -> Optional[TrainingReport]:
    """Read what two kinds of training scripts keep in variables, or return None.

    Many copies of these scripts keep the variable names: an ``AverageMeter`` whose name contains
    "loss" (timm, the ImageNet example of PyTorch), and nanoGPT's ``lossf``. ``outer`` holds the
    variables of the calling functions.
    """
    if "lossf" in values and "iter_num" in values and "max_iters" in values:
        found = number(values["lossf"])
        if found is not None:
            total = count(values["max_iters"]) or None
            source = "the script's lossf"
            return TrainingReport(
                source, finite(found, source), count(values["iter_num"]), total, True
            )
    for name, value in values.items():
        if "loss" in name and not name.startswith("val") and type(value).__name__ == "AverageMeter":
            source = f"the meter {name[:40]}"
            done, total = _timm_progress(values, outer)
            return TrainingReport(source, read_meter(value, source), done, total, True, value)
    return None


def read_meter(meter: Any, source: str) -> Value:
    """Return the last loss that was given to an ``AverageMeter``."""
    return training_loss({"loss": attributes(meter).get("val")}, source)


def _timm_progress(
    values: Dict[str, Any], outer: Dict[str, Any]
) -> Tuple[Optional[int], Optional[int]]:
    epoch, done, each = (
        count(values.get(name)) for name in ("epoch", "update_idx", "updates_per_epoch")
    )
    epochs = count(outer.get("num_epochs"))
    if epoch is None or done is None or not each or not epochs:
        return None, None
    return epoch * each + done + 1, epochs * each
