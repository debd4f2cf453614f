"""Read the trainer's progress bars: tqdm's, Rich's, and those found among its variables.

Only their attributes are read. Of several bars, that of the whole run is chosen: the outermost one
that advances.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
import time
from typing import Any, List, NamedTuple, Optional, Tuple, Union

from ..wire.loss_text import NOT_TRAINING
from .plain_values import attribute, attributes, class_names, number

MAX_BARS = 64
STALE_ROUNDS, STALE_SECONDS = 5.0, 20.0
"""A bar counts as stopped when it has not moved for this many of its own rounds, and for at least
this many seconds.
"""
_EPOCH = re.compile(r"(?<![A-Za-z])ep(?:och)?\b\W{0,3}\d", re.IGNORECASE)
_WORD = re.compile(r"[A-Za-z]+")


class Bar(NamedTuple):
    """One progress bar.

    ``place`` orders the bars, the outermost first. ``rate`` is per second. ``moved`` says when the
    bar last moved, if that is known.
    """

    place: Tuple[float, float]
    done: Union[int, float, None]
    total: Union[int, float, None]
    rate: Optional[float]
    texts: Tuple[str, ...]
    began: bool
    moved: Optional[float]
    of_epoch: bool

    @property
    def trains(self) -> bool:
        """Whether none of its texts says that it belongs to a validation."""
        return not any(
            word.lower() in NOT_TRAINING
            for text in self.texts[:1]
            for word in _WORD.findall(text[:200])
        )

    def advances(self, now: float) -> bool:
        """Whether it has begun and has not stopped since."""
        if not self.began or not self.rate:
            return self.began
        return self.moved is None or now - self.moved < max(STALE_SECONDS, STALE_ROUNDS / self.rate)

    @property
    def open(self) -> bool:
        return self.total is None or self.done is None or self.done < self.total


def read(met: List[Any]) -> List[Bar]:
    """Return all living bars, the outermost first.

    ``met`` holds bars that are in no library's list.
    """
    found = [*_of_tqdm(), *_of_rich(), *(bar for bar in map(_of_variable, met) if bar is not None)]
    return sorted(found, key=lambda bar: bar.place)


def of_the_run(bars: List[Bar], now: float) -> Optional[Bar]:
    """Return the outermost bar that advances.

    If an outer bar has not begun yet, the inner one is that of an epoch.
    """
    training = [bar for bar in bars if bar.trains]
    counting = [bar for bar in training if bar.total is None or bar.total > 1] or training
    running = [bar for bar in counting if bar.open] or counting
    for index, bar in enumerate(running):
        if bar.advances(now):
            return bar._replace(
                of_epoch=bar.of_epoch or any(outer.total for outer in running[:index])
            )
    return running[0] if running else None


def _of_tqdm() -> List[Bar]:
    module: Any = sys.modules.get("tqdm.std")
    live = getattr(getattr(module, "tqdm", None), "_instances", None)
    if live is None:
        return []
    # The set's own iteration is not safe against another thread, but one call copies its weak
    # references.
    refs = list(live.data) if hasattr(live, "data") else []
    bars = [bar for bar in (ref() for ref in refs[:MAX_BARS]) if bar is not None]
    return [_tqdm(bar) for bar in bars if getattr(bar, "n", None) is not None]


def _tqdm(bar: Any) -> Bar:
    own = attributes(bar)
    done, start = number(own.get("n")), number(own.get("start_t")) or 0.0
    advanced = (done or 0) - (number(own.get("initial")) or 0)
    texts = tuple(text for text in (own.get("desc"), own.get("postfix")) if isinstance(text, str))
    return Bar(
        (abs(number(own.get("pos")) or 0), start),
        done,
        number(own.get("total")),
        _tqdm_rate(bar, advanced, start),
        texts,
        advanced > 0,
        (number(own.get("last_print_t")) or 0.0) + 2 * (number(own.get("mininterval")) or 0.0),
        bool(texts and _EPOCH.search(texts[0][:200])) or _is_loader(own.get("iterable")),
    )


def _tqdm_rate(bar: Any, advanced: float, start: float) -> Optional[float]:
    """Return tqdm's own smoothed rate, else its mean since the bar began."""
    if hasattr(bar, "_ema_dn") and hasattr(bar, "_ema_dt"):
        dn, dt = bar._ema_dn(), bar._ema_dt()
        if dn and dt and dn > 0 and dt > 0:
            return float(dn / dt)
    return _mean_rate(advanced, time.time() - start)


def _mean_rate(advanced: float, seconds: float) -> Optional[float]:
    return advanced / seconds if advanced > 0 and 0 < seconds < 1e8 else None


def _is_loader(iterable: Any) -> bool:
    """Whether a bar iterates over a DataLoader; one pass over it is an epoch."""
    if type(iterable) is enumerate:
        return any(
            cls.endswith("DataLoaderIter")
            for item in gc.get_referents(iterable)
            for cls in class_names(item)
        )
    return "torch.DataLoader" in class_names(iterable)


def _of_rich() -> List[Bar]:
    """Return the bars of displays that refresh themselves, and of the one on Rich's own console."""
    if "rich.live" not in sys.modules or "rich.progress" not in sys.modules:
        return []
    lives = [attribute(thread, "live") for thread in list(threading._active.values())]  # type: ignore[attr-defined]
    stack = attribute(attribute(sys.modules.get("rich"), "_console"), "_live_stack")
    lives.extend(stack if type(stack) is list else [])
    shown = {
        id(live): getattr(attribute(live, "_get_renderable"), "__self__", None)
        for live in lives
        if live
    }
    bars: List[Bar] = []
    for progress in {id(item): item for item in shown.values()}.values():
        tasks = attribute(progress, "_tasks")
        for index, task in enumerate(
            list(tasks.values())[:MAX_BARS] if type(tasks) is dict else ()
        ):
            bars.append(_rich_task(index, attributes(task)))
    return bars


def _rich_task(index: int, task: Any) -> Bar:
    done, start = number(task.get("completed")), number(task.get("start_time"))
    fields = task.get("fields")
    pairs = list(fields.items())[:32] if type(fields) is dict else []
    shown = [f"{name}={value}" for name, value in pairs if type(value) in (int, float, str)]
    texts = (str(task["description"]),) if type(task.get("description")) is str else ("",)
    rate = _mean_rate(done or 0, time.monotonic() - start) if start is not None else None
    return Bar(
        (float(index), start or 0.0),
        done,
        number(task.get("total")),
        rate,
        (*texts, *shown),
        bool(done),
        None,
        bool(_EPOCH.search(texts[0][:200])),
    )


def _of_variable(bar: Any) -> Optional[Bar]:
    """A bar of fastprogress, Keras or ultralytics."""
    own = attributes(bar)
    names = class_names(bar)
    if "fastprogress.MasterBar" in names:
        own = attributes(own.get("main_bar"))
        return _simple(own, "last_v", "start_t", "comment", 0.0)
    if "fastprogress.ProgressBar" in names:
        return (
            _simple(own, "last_v", "start_t", "comment", 1.0) if own.get("master") is None else None
        )
    if "keras.Progbar" in names:
        return _simple(own, "_seen_so_far", "_start", "unit_name", 1.0, own.get("target"))
    return _simple(own, "n", "start_t", "desc", 1.0)


def _simple(own: Any, done: str, start: str, text: str, place: float, target: Any = None) -> Bar:
    count, began = number(own.get(done)), number(own.get(start))
    rate = _mean_rate(count or 0, time.time() - began) if began is not None else None
    value = own.get(text)
    pairs = own.get("_values")
    shown: Any = pairs.get("loss") if type(pairs) is dict else None
    texts = [value if isinstance(value, str) else ""]
    # Keras: the sum, and of how many
    if type(shown) is list and len(shown) == 2 and number(shown[1]):
        texts.append(f"loss={(number(shown[0]) or 0.0) / shown[1]:.7g}")
    total = number(target if target is not None else own.get("total"))
    return Bar((place, began or 0.0), count, total, rate, tuple(texts), bool(count), None, False)
