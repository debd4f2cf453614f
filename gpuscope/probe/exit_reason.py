"""Learn how the trainer ends, without disturbing it.

``sys.excepthook`` is not touched. Before any hook runs, Python stores an uncaught exception of the
main program in ``sys.last_value``, where it is looked for once a second and at the end. So
tracebacks and exit codes stay as they are, no matter whose hook is installed. Threads have no such
variable, so ``threading.excepthook`` is chained. There is no signal handler either: it would keep a
trainer that hangs in C code from dying of SIGTERM. If a signal kills the process, its black box has
no mark of an end, and the reader concludes that.

``os._exit`` ends a process without any hook, so it is called through a function of ours that notes
the code first. The code of ``sys.exit(3)`` cannot be seen, except in a process of multiprocessing.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Optional

from .on_import import debug

MAX_FRAMES = 64
MAX_TEXT = 2000
_NONE = object()


class Endings:
    """Learn how the trainer ends, and call back.

    ``on_exception(description)`` is called for an exception that nobody caught,
    ``on_end(description)`` when Python ends, before the probe stops. A description has ``how``
    (exception, thread_exception, exit); for an exception also ``type``, ``message``, ``stack``
    (innermost first) and ``thread``; for an exit ``code`` where it is known.
    """

    def __init__(
        self,
        on_exception: Callable[[Dict[str, Any]], None],
        on_end: Callable[[Dict[str, Any]], None],
    ) -> None:
        self._on_exception = on_exception
        self._on_end = on_end
        self._pid = os.getpid()
        self._seen = _last()
        self._last: Optional[Dict[str, Any]] = None
        self._hook: Any = None
        self._before: Any = None
        self._finalizer: Any = None
        self._leave: Any = None
        self._leave_before: Any = None
        self._begun = False
        self._over = False

    def install(self) -> None:
        """Install the callbacks, after the server's own: the last one is called first."""
        atexit.register(self._end)
        leave = os._exit

        def gpuscope_exit(status: int) -> NoReturn:
            # a handler of a signal may call this while the same thread is in _ended()
            if not self._begun and isinstance(status, int):
                self._ended({"how": "exit", "code": status & 0xFF})
            leave(status)

        self._leave_before, self._leave = leave, gpuscope_exit
        os._exit = gpuscope_exit
        before = getattr(threading, "excepthook", None)
        if before is not None:

            def gpuscope_thread_hook(args: Any) -> None:
                try:
                    if not self._over and args.exc_type is not SystemExit:
                        self._thread_exception(args)
                except Exception as error:
                    debug("a thread's exception is not noted", error)
                before(args)

            self._before, self._hook = before, gpuscope_thread_hook
            threading.excepthook = gpuscope_thread_hook
        util: Any = sys.modules.get("multiprocessing.util")
        process: Any = sys.modules.get("multiprocessing.process")
        try:
            if util is not None and process.parent_process() is not None:
                self._finalizer = util.Finalize(None, self._end_of_multiprocessing, exitpriority=1)
        except Exception as error:
            debug("the end of this process is not seen", error)

    def remove(self) -> None:
        """Remove our hooks. If another hook was set since then, ours stays and passes through."""
        self._over = True
        atexit.unregister(self._end)
        if self._hook is not None and threading.excepthook is self._hook:
            threading.excepthook = self._before
        if self._leave is not None and os._exit is self._leave:
            os._exit = self._leave_before
        if self._finalizer is not None:
            self._finalizer.cancel()

    def look(self) -> None:
        """Check, in the probe's thread, whether the main program has raised an exception.

        Other threads may keep the process alive. The main thread checks at its end too. An
        exception counts as seen only after it has been described, because otherwise neither thread
        might report it.
        """
        last = _last()
        if last is self._seen:
            return
        if last is not _NONE:
            self._last = description = _described("exception", last, "main")
        if last is self._seen:  # the other thread was faster
            return
        self._seen = last
        if last is not _NONE:
            self._on_exception(description)

    def _thread_exception(self, args: Any) -> None:
        name = str(getattr(args.thread, "name", ""))[:128]
        self._on_exception(_described("thread_exception", args.exc_value, name, args.exc_traceback))

    def _end(self) -> None:
        self._ended({"how": "exit"})

    def _end_of_multiprocessing(self) -> None:
        # Called while the exception that ends the process is being handled. It shows an exception
        # that multiprocessing catches later, and the exit code.
        error = sys.exc_info()[1]
        if error is None:
            self._ended({"how": "exit", "code": 0})
        elif isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
            # torch.multiprocessing.spawn catches it, reports it and exits
            cause = error.__context__
            if code and cause is not None:
                self._ended(_described("exception", cause, "main"))
            else:
                self._ended({"how": "exit", "code": code})
        else:
            self._ended(_described("exception", error, "main"))

    def _ended(self, description: Dict[str, Any]) -> None:
        if self._over or os.getpid() != self._pid:
            return
        self._begun = True
        try:
            if description["how"] == "exit":
                self.look()
                if self._last is not None and not is_interactive():
                    description = self._last
            self._over = True
            self._on_end(description)
        except Exception as error:
            debug("the end is not noted", error)


def _last() -> Any:
    """Return the exception that Python last printed, or a marker if there is none."""
    found = getattr(sys, "last_exc", None)
    return found if found is not None else getattr(sys, "last_value", _NONE)


def is_interactive() -> bool:
    """Tell whether Python runs at a prompt or in a notebook.

    There an error is shown and ends nothing.
    """
    return bool(sys.flags.interactive) or hasattr(sys, "ps1") or "ipykernel" in sys.modules


def _described(how: str, error: Any, thread: str, trace: Any = None) -> Dict[str, Any]:
    try:
        message = str(error)[:MAX_TEXT]
    except Exception:
        message = ""
    stack: List[List[Any]] = []
    trace = trace if trace is not None else getattr(error, "__traceback__", None)
    for frame, line in traceback.walk_tb(trace):
        stack.append([frame.f_code.co_filename[-256:], line, frame.f_code.co_name[:256]])
        del stack[: -4 * MAX_FRAMES]
    kind = type(error)
    name = (
        kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}"
    )
    return {
        "how": how,
        "type": name[:256],
        "message": message,
        "thread": thread,
        "stack": stack[::-1][:MAX_FRAMES],
    }
