"""Stand in for the closure of ``optimizer.step(closure)`` and report when it is called.

It also reports when the call is over.

torch allows a hook before the step to replace the step's arguments. A wrapper function would add a
frame to every traceback of the user's forward and backward pass. This stand-in adds none: Python
looks up ``__call__`` for each call, which tells us about the call, and then calls what it got. That
is a ``functools.partial`` made for this one call, to which nobody else has a reference. When it is
destroyed, the call has ended, whether it returned or raised.
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

    ``begins()`` is called before each call of ``closure``, and ``ended(its result)`` after it.
    Neither may raise. All other attributes are those of ``closure``.
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

    None if there is no closure, or if it is timed already: a step may pass its closure to the step
    of a base class, or of an optimizer that it contains.
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
