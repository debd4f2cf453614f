"""Notice that a model runs without a library of kernels that its training may have."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

from ..request import Doubt

_SAID = re.compile(r"falling back to its reference .{1,60} because `(\w+)` is not installed")
"""What transformers logs, once in a process for each function."""
_found: dict[str, dict[str, None]] = {}
"""The libraries that each model lacked, for when it is traced once more."""


class _Listener(logging.Handler):
    def __init__(self, libraries: dict[str, None]):
        super().__init__(logging.WARNING)
        self.libraries = libraries

    def emit(self, record: logging.LogRecord) -> None:
        said = _SAID.search(record.getMessage())
        if said:
            self.libraries[said[1]] = None


@contextlib.contextmanager
def noticed(model: str) -> Iterator[list[Doubt]]:
    """Listen while a model is traced; afterwards the list has a doubt if libraries were missing."""
    libraries, doubts = _found.setdefault(model, {}), list[Doubt]()
    listener, logger = _Listener(libraries), logging.getLogger("transformers")
    logger.addHandler(listener)
    try:
        yield doubts
    finally:
        logger.removeHandler(listener)
    if libraries:
        names = " and ".join(libraries)
        text = (
            f"{names} {'is' if len(libraries) == 1 else 'are'} not installed here, so plain torch "
            "operators were traced. A training with these kernels takes less; start from one that "
            "runs: gpuscope predict PID."
        )
        doubts.append(Doubt("unmeasured", text, "kernels"))
