"""Two ways of doing a thing that one process cannot do both of, each in a process of its own that is asked in turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

START_SECONDS = 120.0
ASK_SECONDS = 120.0


class Side:
    """A process that calls ``make(*arguments)`` once and then answers :meth:`ask` with what the made object's call
    returns. It ends with this process, or at :meth:`close`. ``make`` must be importable by name."""

    def __init__(self, make: Callable[..., Callable[..., Any]], *arguments: Any):
        spawn = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Returns once it stands."""
        self._answer(START_SECONDS)

    def ask(self, *arguments: Any) -> Any:
        self._pipe.send(arguments)
        return self._answer(ASK_SECONDS)

    def _answer(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError(f"the other process did not answer within {seconds:.0f} s")
        try:
            good, value = self._pipe.recv()
        except EOFError:
            self._process.join(5)
            raise RuntimeError(f"the other process ended with code {self._process.exitcode}") from None
        if not good:
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        self._pipe.close()
        self._process.join(5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(5)


def _serve(pipe: Any, make: Callable[..., Callable[..., Any]], arguments: tuple[Any, ...]) -> None:
    try:
        call = make(*arguments)
        pipe.send((True, None))
        while True:
            pipe.send((True, call(*pipe.recv())))
    except (EOFError, BrokenPipeError):
        pass
    except Exception as error:
        pipe.send((False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
