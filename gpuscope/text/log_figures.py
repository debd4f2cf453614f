"""Reads step, epoch and loss from the end of a training's log, as frameworks print them."""

from __future__ import annotations

import math
import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple

from ..wire.loss_text import NOT_TRAINING, NUMBER, training_losses

MAX_LINE_CHARS = 2000
MAX_COLUMNS = 32
_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")
_COUNT = r"(\d{1,12})/(\d{1,12})"
_BAR = re.compile(rf"\d{{1,3}}%\|[^|]{{0,300}}\|\s*{_COUNT}\s*\[")
_DRAWN = re.compile(rf"(?:^|\s){_COUNT}\s[━─╸╺\s]{{0,3}}━|━[━─╸╺]{{0,300}}\s{{1,3}}{_COUNT}(?=\s)")
"""A progress bar of Keras, Rich or ultralytics, with the count before or behind it."""
_IN_EPOCH = re.compile(
    rf"(?:Train|Epoch)(?:ing)?(?: Epoch)?:?\s{{0,3}}\[?(\d{{1,9}})\]?\s{{0,3}}\[\s{{0,12}}{_COUNT}"
)
"""Step counts of timm and of PyTorch's examples.

They look like ``Train: 0 [ 5/20`` (timm), ``Epoch: [0][ 10/5005]`` and ``Train Epoch: 1
[640/60000`` (PyTorch's examples).
"""
_EPOCH = re.compile(r"(?<![A-Za-z])epoch\W{0,3}(\d{1,9})(?![\d.]*\.\d)", re.IGNORECASE)
_STEP = re.compile(
    r"(?<![A-Za-z])(?<!nan )(?<!skipped )(?:global[_ ]?)?(?:steps?|iter(?:ation)?s?|it"
    r"|batch)[\"']?\s{0,3}[:=#]?\s{0,3}[\[(]?\s{0,6}(\d{1,12})(?![\d.]\d)(?:\s{0,3}(?:/"
    r"|of)\s{0,3}(\d{1,12}))?(?!\s{0,2}(?:it|s|ms)/)",
    re.IGNORECASE,
)
_CELL = re.compile(
    rf"^\|\s{{0,40}}(total_timesteps|loss)\s{{0,40}}\|\s{{0,40}}({NUMBER}|nan|-?inf)\s{{0,40}}\|"
)
"""One line of the tables that Stable-Baselines3 prints."""


EPOCH_HEADER = re.compile(r"Epoch (\d{1,9})/\d{1,9}\s{0,9}$")
"""The line of Keras above the progress bar of an epoch, which itself does not name it."""
_PLACE = re.compile(r"step ([\d,]+)(.*)")


class LogFigures(NamedTuple):
    """The figures about a training at the end of a log, None where the log does not contain them.

    ``loss`` may be NaN or infinite. ``epoch`` is the one to which ``step``, ``total`` or ``loss``
    belong.
    """

    step: Optional[int] = None
    total: Optional[int] = None
    loss: Optional[float] = None
    epoch: Optional[int] = None


def figures(text: str) -> LogFigures:
    """Return the last step and the last training loss in ``text``.

    A step looks like ``step 123``, ``iter: 7/100`` or a progress bar.
    """
    step: Optional[int] = None
    total: Optional[int] = None
    loss: Optional[float] = None
    epoch: Optional[int] = None
    lines = _lines(text)
    for line in reversed(lines):
        cell = _CELL.match(line)
        if cell:
            if cell.group(1) == "loss":
                loss = float(cell.group(2)) if loss is None else loss
            elif step is None and cell.group(2).isdigit():
                step = int(cell.group(2))
        if step is None and not cell:
            found = _step(line)
            if found is not None:
                step, total, epoch = found
        if loss is None:
            losses = training_losses(line)
            loss = float(losses[-1]) if losses else None
        if step is not None and loss is not None:
            break
    if loss is None:
        rows = list(table_losses(lines))
        if rows:
            _, loss, last = rows[-1]
            epoch = last if epoch is None else epoch
    return LogFigures(step, total, loss, epoch)


class LostRun(NamedTuple):
    """The losses at the end of a log that are NaN or infinite, one after the other.

    ``since`` is "step 12", or "step 26–50" where the log leaves steps out: the first is one of
    them, as the last finite loss was printed at step 25. It is "" where the log does not say.
    ``length`` is how many there are; what a progress bar draws again for one step counts once.
    ``is_whole`` says that the text has no finite loss before them, so that they may have begun
    earlier.
    """

    since: str
    length: int
    is_whole: bool


def lost_run(text: str) -> Optional[LostRun]:
    """Return the losses that are not finite at the end of ``text``, None if the last is finite."""
    lines = _lines(text)
    rows = table_losses(lines)
    losses = list(_placed_losses(lines)) or [
        (loss, f"epoch {epoch}", True) for _, loss, epoch in rows
    ]
    run: List[str] = []
    is_whole = True
    for loss, place, is_once in losses:
        if math.isfinite(loss):
            run, is_whole = [], False
        elif not is_once or not run or place != run[-1]:
            run.append(place)
    finite = next((one[1] for one in reversed(losses) if math.isfinite(one[0])), "")
    return LostRun(first_lost(finite, run[0]), len(run), is_whole) if run else None


def has_finite_loss(text: str) -> bool:
    """Say whether a line of ``text`` has a training loss that is a number."""
    return any(math.isfinite(loss) for loss, _, _ in _placed_losses(_lines(text)))


def first_lost(finite: str, first: str) -> str:
    """Return in which steps a loss was lost: behind that of the last finite one, to the first."""
    before, then = _PLACE.fullmatch(finite), _PLACE.fullmatch(first)
    if before is None or then is None or before[2] != then[2]:
        return first
    step, last = (int(found[1].replace(",", "")) for found in (before, then))
    return f"step {step + 1:,}–{then[1]}{then[2]}" if step + 1 < last else first


def _placed_losses(lines: List[str]) -> Iterator[Tuple[float, str, bool]]:
    """Yield each training loss of these lines with where it was printed, "" where that is unknown.

    That is a step, else an epoch. Then follows whether such a place has one loss only: an epoch may
    have several.
    """
    place = ""
    is_step = False
    headed: Optional[int] = None
    for line in lines:
        header = EPOCH_HEADER.match(line)
        if header:
            headed = int(header.group(1))
        cell = _CELL.match(line)
        if cell and cell.group(1) != "loss":
            continue
        found = None if cell else _step(line)
        if found is not None:
            step, total, epoch = found
            epoch = headed if epoch is None and total is not None else epoch
            place = f"step {step:,}" + (f" of epoch {epoch}" if epoch is not None else "")
            is_step = True
        losses = [cell.group(2)] if cell else training_losses(line)
        named = _EPOCH.search(line) if losses and not is_step else None
        if named:
            place = f"epoch {named.group(1)}"
        if losses:
            yield float(losses[-1]), place, is_step


def _lines(text: str) -> List[str]:
    return [_ANSI.sub("", line[-MAX_LINE_CHARS:]) for line in re.split(r"[\r\n]+", text)]


def _step(line: str) -> Optional[Tuple[int, Optional[int], Optional[int]]]:
    """Return the step, of how many, and the epoch within which they are counted."""
    within = _IN_EPOCH.search(line)
    if within:
        return int(within.group(2)), int(within.group(3)), int(within.group(1))
    bars = list(_BAR.finditer(line)) or list(_DRAWN.finditer(line))
    if bars:
        done, total = (int(number) for number in bars[-1].groups() if number is not None)
        named = _EPOCH.search(line[: bars[-1].start() + 1])
        return done, total, int(named.group(1)) if named else None
    steps = list(_STEP.finditer(line))
    if steps:
        return (
            int(steps[-1].group(1)),
            int(steps[-1].group(2)) if steps[-1].group(2) else None,
            None,
        )
    return None


def table_losses(lines: List[str]) -> Iterator[Tuple[int, float, int]]:
    """Yield the index, the loss and the epoch of each row of a table that has them as columns.

    fastai, skorch and ultralytics print such tables, and pandas with an index before each row.
    """
    losses: Dict[int, str] = {}
    at, width = -1, 0
    for index, line in enumerate(lines):
        words = line.lower().split()[:MAX_COLUMNS]
        if "epoch" in words and any(word.endswith("loss") for word in words):
            names = {n: word for n, word in enumerate(words) if word.endswith("loss")}
            training = {n: w for n, w in names.items() if w.partition("_")[0] not in NOT_TRAINING}
            only = {n: w for n, w in training.items() if w in ("train_loss", "loss")}
            # Otherwise the columns are parts of one loss.
            losses, at, width = only or training, words.index("epoch"), len(words)
            continue
        words = words[len(words) == width + 1 :]
        if losses and len(words) > max(max(losses), at):
            try:
                loss, epoch = sum(float(words[n]) for n in losses), int(words[at].split("/")[0])
            except ValueError:
                continue
            yield index, loss, epoch
