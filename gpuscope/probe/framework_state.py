"""Finds the state object of the training framework on the stack of the thread that trains.

Frameworks keep loss and progress in an object of their own (Hugging Face's ``TrainerState``,
Lightning's ``Trainer``, …), and one of its methods calls the code that steps the optimizer or loads
a batch. So the thread that trains looks for the object among its own callers, at most once in
:data:`LOOK_SECONDS` and only while somebody watches; the probe's thread then reads it. Only weak
references are kept.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ..wire.code_owner import OWN
from . import model_finder
from .code_place import kind
from .framework_readers import PACKAGES, READERS, Reader, TrainingReport, read_meter, read_script
from .plain_values import class_names

LOOK_SECONDS = 1.0
MAX_FRAMES = 96
MAX_OWN_FRAMES = 8
MAX_VALUES = 512
BARS = frozenset(
    ("ultralytics.TQDM", "keras.Progbar", "fastprogress.ProgressBar", "fastprogress.MasterBar")
)
"""Progress bars that are in no library's list. They are found among the variables of the functions
that train.
"""
_BAR_NAMES = tuple(name.rpartition(".")[2] for name in BARS)
_gets_its_dictionary = functools.lru_cache(maxsize=512)(model_finder._has_its_dictionary)


class _Found(NamedTuple):
    """A framework's state and how to read it, or what a script's variables said.

    ``steps`` is the number of steps at that time.
    """

    reader: Optional[Reader]
    state: Optional[weakref.ref[Any]]  # the meter of a script
    script: Optional[TrainingReport] = None
    steps: int = 0
    framework: Optional[str] = None


class FrameworkState:
    """Finds and reads a framework's state.

    :meth:`look` is for the thread that trains, :meth:`read` and :meth:`bars` for the probe's
    thread.
    """

    def __init__(self) -> None:
        self._next = 0.0
        self._found: Optional[_Found] = None
        self._bars: List[weakref.ref[Any]] = []
        self._kept: Optional[TrainingReport] = None

    @property
    def framework(self) -> Optional[str]:
        """The package of the framework that trains, None if none is known.

        Lightning, which has two, is "lightning".
        """
        return self._found.framework if self._found is not None else None

    def look(self, now: float, stepped: bool, steps: int = 0) -> None:
        """Search the callers, if the interval is over (``now`` is perf_counter).

        ``stepped`` says that an optimizer stepped, so a state that is not found now belongs to no
        training. ``steps`` is the number of steps so far. Never raises.
        """
        if now < self._next:
            return
        self._next = now + LOOK_SECONDS
        # a debugger writes back the local variables that we would clear
        if sys.gettrace() is not None:
            return
        try:
            found, bars = _search(sys._getframe(1), steps)
        except Exception:  # a strange object: nothing is known about this training
            found, bars = None, []
        if found is not None or stepped:
            self._found = found
        if bars or stepped:
            self._bars = bars

    def read(self, steps: int = 0) -> Optional[TrainingReport]:
        """Return what the framework reports now; None if no framework is known.

        A loss that the framework has just discarded is kept.
        """
        found = self._found
        if found is None:
            return None
        state = found.state() if found.state is not None else None
        if found.script is not None:
            return _since(found.script, state, steps - found.steps)
        if state is None or found.reader is None:
            return None
        report = found.reader(state, next(iter(self.bars()), None))
        kept, forgotten = self._kept, getattr(report.loss, "text", "").endswith("has no loss yet")
        if forgotten and kept is not None and _same_training(kept, report):
            return report._replace(loss=kept.loss)
        self._kept = report
        return report

    def bars(self) -> List[Any]:
        """Return the progress bars that were found, if they are still alive."""
        return [bar for bar in (ref() for ref in self._bars) if bar is not None]


def _same_training(kept: TrainingReport, report: TrainingReport) -> bool:
    return kept.source == report.source and (kept.done or 0) <= (report.done or 0)


def _since(report: TrainingReport, meter: Any, steps: int) -> TrainingReport:
    """Return what a script's variables said, adjusted to ``steps``."""
    if report.done is not None and report.total is not None and steps > 0:
        report = report._replace(done=max(report.done, min(report.total, report.done + steps)))
    return report if meter is None else report._replace(loss=read_meter(meter, report.source))


def _search(frame: Any, steps: int) -> Tuple[Optional[_Found], List[weakref.ref[Any]]]:
    """Find the outermost state object of a known framework, and progress bars.

    If there is no such object, use the variables of the user's own functions.
    """
    state: Any = None
    reader: Optional[Reader] = None
    framework = ""
    own: List[Dict[str, Any]] = []
    bars: List[weakref.ref[Any]] = []
    for _ in range(MAX_FRAMES):
        if frame is None:
            break
        code = frame.f_code
        package = frame.f_globals.get("__name__")
        package = package.partition(".")[0] if isinstance(package, str) else ""
        if package in PACKAGES:
            values = _values(frame)
            for name in (code.co_varnames[:1] if code.co_argcount else ()) + ("callbacks",):
                for key in class_names(values[name]) if name in values else ():
                    if key in READERS:
                        state, reader = values[name], READERS[key]
                        framework = key.partition(".")[0].replace("pytorch_lightning", "lightning")
            bars.extend(_bars_in(values))
        elif len(own) < MAX_OWN_FRAMES and kind(code.co_filename) == OWN:
            values = _values(frame)
            own.append(values)
            bars.extend(_bars_in(values))
        frame = frame.f_back
    try:
        if reader is not None:
            return _Found(reader, weakref.ref(state), framework=framework), bars
        outer: Dict[str, Any] = {}
        for values in reversed(own):
            report = read_script(values, outer)
            if report is not None:
                meter = None if report.meter is None else weakref.ref(report.meter)
                return _Found(None, meter, report._replace(meter=None), steps), bars
            outer.update(values)
        return None, bars
    except TypeError:  # its class has no weak references
        return None, bars
    finally:
        own.clear()


def _values(frame: Any) -> Dict[str, Any]:
    """Return the variables of a running function or script.

    Empty if looking at them would change what the function sees.
    """
    code = frame.f_code
    optimized = bool(code.co_flags & model_finder.OPTIMIZED)
    if frame.f_trace is not None or (optimized and _gets_its_dictionary(code)):
        return {}
    space = frame.f_locals
    try:
        return dict(list(space.items())[:MAX_VALUES])
    finally:
        if optimized and model_finder.CACHED:
            space.clear()


def _bars_in(values: Dict[str, Any]) -> List[weakref.ref[Any]]:
    found = []
    for value in values.values():
        if type(value).__name__.endswith(_BAR_NAMES) and not BARS.isdisjoint(class_names(value)):
            try:
                found.append(weakref.ref(value))
            except TypeError:
                pass
    return found
