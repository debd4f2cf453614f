"""Loss and time to go, where a tqdm bar of the trainer knows them. Reads the bars' attributes, draws nothing."""

from __future__ import annotations

import math
import re
import sys
import time
from typing import Any, Dict, List, Optional, Union

from ..wire.frames import NOT_SUPPORTED, Unknown

COLUMNS = ("loss", "progress_done", "progress_total", "eta_seconds")
_LOSS = re.compile(
    r"(?<![a-z])(?:train(?:ing)?[ _/-]?)?loss\s*[=: ]\s*([-+]?(?:\d+\.?\d*(?:e[-+]?\d+)?|nan|inf))", re.I
)
_NO_BAR = Unknown(NOT_SUPPORTED, "the trainer shows no tqdm bar")
_NO_LOSS = Unknown(NOT_SUPPORTED, "no progress bar of the trainer shows a loss")
Value = Union[float, int, Unknown]


def read() -> Dict[str, Value]:
    """A value or an :class:`Unknown` for each of :data:`COLUMNS`. Never raises."""
    out: Dict[str, Value] = dict.fromkeys(COLUMNS, _NO_BAR)
    out["loss"] = _NO_LOSS
    try:
        bars = _bars()
        if bars:
            out.update(_progress(bars[0]))
        for bar in bars:
            loss = _loss(bar)
            if loss is not None:
                out["loss"] = loss
                break
    except Exception as error:  # another version's bar, or one that is being closed
        gone = Unknown(NOT_SUPPORTED, f"the progress bar cannot be read: {type(error).__name__}")
        out = {name: gone if isinstance(value, Unknown) else value for name, value in out.items()}
    return out


def _bars() -> List[Any]:
    """Live bars, the outermost first. Only a total makes a bar a sign of progress, only a live one has a position."""
    module: Any = sys.modules.get("tqdm.std")
    live = getattr(getattr(module, "tqdm", None), "_instances", None)
    if live is None:
        return []
    # The set's own iteration is not safe against another thread; a copy of its weak references is one step.
    refs = list(live.data) if hasattr(live, "data") else []
    bars = [bar for bar in (ref() for ref in refs) if bar is not None and getattr(bar, "n", None) is not None]
    return sorted(bars[:64], key=lambda bar: (abs(getattr(bar, "pos", 0)), getattr(bar, "start_t", 0.0)))


def _progress(bar: Any) -> Dict[str, Value]:
    done, total = _number(bar.n), _number(getattr(bar, "total", None))
    out: Dict[str, Value] = {}
    if done is not None:
        out["progress_done"] = done
    if total is None or done is None or total <= 0:
        endless = Unknown(NOT_SUPPORTED, "the progress bar has no total")
        return {**out, "progress_total": endless, "eta_seconds": endless}
    out["progress_total"] = total
    rate = _rate(bar, done)
    if rate is None:
        out["eta_seconds"] = Unknown(NOT_SUPPORTED, "the outermost progress bar has not advanced yet")
    else:
        out["eta_seconds"] = max(0.0, (total - done) / rate)
    return out


def _rate(bar: Any, done: float) -> Optional[float]:
    """Per second: tqdm's own smoothed rate, else its mean since the bar began."""
    if hasattr(bar, "_ema_dn") and hasattr(bar, "_ema_dt"):
        dn, dt = bar._ema_dn(), bar._ema_dt()
        if dn and dt and dn > 0 and dt > 0:
            return float(dn / dt)
    seconds = time.time() - float(getattr(bar, "start_t", 0.0) or 0.0)
    advanced = done - float(getattr(bar, "initial", 0) or 0)
    return advanced / seconds if advanced > 0 and 0 < seconds < 1e8 else None


def _loss(bar: Any) -> Optional[Value]:
    for text in (getattr(bar, "postfix", None), getattr(bar, "desc", None)):
        match = _LOSS.search(text[:1024]) if isinstance(text, str) else None
        if match:
            value = float(match.group(1))
            if math.isfinite(value):
                return value
            return Unknown(NOT_SUPPORTED, f"the progress bar shows loss {match.group(1).lower()}")
    return None


def _number(value: Any) -> Union[int, float, None]:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value
