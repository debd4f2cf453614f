"""Stand in for the closure of ``optimizer.step(closure)`` and report when it is called.

It also reports when the call is done.

torch's contract lets a hook before the step hand on other arguments. A wrapping function would be a
frame in every traceback of the user's forward and backward. This one is in none: Python looks
``__call__`` up for each call, which is where the call is noted, and calls what it is given. That is
a ``functools.partial`` made for this one call, which nobody else holds: its end is the end of the
call, whether that returned or raised.
"""

from __future__ import annotations

import functools
import weakref
from typing import Any, Callable, Dict, Optional, Tuple


class _Called:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else instance._gpuscope_called()


class TimedClosure:
    """The stand-in for one closure.

    ``begins()`` is called before each call of ``closure`` and ``ended(what that gave)`` after it.
    Neither may raise. For everything else that is asked of the stand-in, ``closure`` answers.
    """

    __slots__ = ("_gpuscope_begins", "_gpuscope_calls", "_gpuscope_closure", "_gpuscope_ended")
    __call__ = _Called()

    def __init__(
        self, closure: Callable[..., Any], begins: Callable[[], Any], ended: Callable[[Any], None]
    ) -> None:
        self._gpuscope_closure = closure
        self._gpuscope_begins = begins
        self._gpuscope_ended = ended
        self._gpuscope_calls: Dict[int, Any] = {}

    def _gpuscope_called(self) -> Any:
        begun = self._gpuscope_begins()
        call = functools.partial(self._gpuscope_closure)
        key, calls, ended = id(call), self._gpuscope_calls, self._gpuscope_ended

        def done(_: Any) -> None:
            calls.pop(key, None)
            ended(begun)

        calls[key] = weakref.ref(call, done)
        return call

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_gpuscope_closure"), name)


Arguments = Tuple[Tuple[Any, ...], Dict[str, Any]]


def with_timed_closure(
    args: Tuple[Any, ...],
    kwargs: Dict[str, Any],
    begins: Callable[[], Any],
    ended: Callable[[Any], None],
) -> Optional[Arguments]:
    """Return the arguments of a step with its closure replaced.

    None where it has none, or where the closure is timed already: a step may hand its closure on to
    the step of a base class, or of an optimizer within.
    """
    if len(args) > 1:
        closure = args[1]
        if callable(closure) and type(closure) is not TimedClosure:
            return (args[0], TimedClosure(closure, begins, ended), *args[2:]), kwargs
        return None
    closure = kwargs.get("closure")
    if callable(closure) and type(closure) is not TimedClosure:
        return args, {**kwargs, "closure": TimedClosure(closure, begins, ended)}
    return None
