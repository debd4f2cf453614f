"""What happened on each host, and what trainers say that were started here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...store.view import HostView
    from ..runs.runs import LabRuns
    from .finding_history import Case
    from .journal import Journal
    from .log_entry import LogEntry

KEPT_OUTPUT = 400
"""How many lines of output are kept of trainers that were started here."""
OUTPUT_CHARS = 1000
"""How many characters of such a line are kept, with control characters made harmless."""


class Happened:
    """A journal for each host of a session, by its key.

    ``output`` are lines of trainers that were started here, ``stopped`` tells by pid what was
    done here to end a process. ``lines`` counts what they
    have said.
    """

    def __init__(self) -> None:
        self.output: deque[LogEntry] = deque(maxlen=KEPT_OUTPUT)
        self.stopped: dict[int, str] = {}
        self.lines = 0
        self._journals: dict[str, Journal] = {}

    def on(self, host: HostView | None) -> Journal:
        """Return the journal of a host."""
        from .journal import Journal

        return self._journals.setdefault(host.key if host is not None else "", Journal())

    def look(
        self,
        host: HostView,
        cases: Sequence[Case],
        labs: LabRuns | None,
        told: dict[str, LogEntry] | None = None,
    ) -> bool:
        """Take in a picture, what the doctor has found, and what runs of the Lab have said.

        Of a recording ``told`` is all that had happened. Return whether anything of it is new.
        """
        from ...wire.clean import clean
        from .log_entry import LogEntry

        lines = self.lines
        if labs is not None:
            self.stopped.update(labs.stopped)
            for who, line in labs.new_output():
                self.lines += 1
                self.output.append(
                    LogEntry(
                        time.time(),
                        "output",
                        "output",
                        who,
                        clean(line, OUTPUT_CHARS),
                        "text",
                        f"o{self.lines}",
                        ("lab",),
                    )
                )
        journal = self.on(host)
        before = journal.changes, lines
        if told is None:
            journal.look(host, cases, self.stopped)
        else:
            journal.show(told)
        return (journal.changes, self.lines) != before
