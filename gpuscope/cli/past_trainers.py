"""Read the trainers of a black box or a recording, for verbs about trainers that have ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from ..missing_file import MissingFile
from ..store.past_file import LAST_SECONDS
from ..store.store import Store
from ..store.view import HostView, JobView
from ..wire.clean import clean


@dataclass(frozen=True)
class Past:
    """The hosts in a file. ``ended`` says how its trainer ended, "" where that is unknown.

    ``problem`` says what is wrong with the file; its intact part is read nevertheless.
    """

    store: Store
    ended: str
    problem: str

    @property
    def jobs(self) -> list[tuple[str, HostView, JobView]]:
        """Each job with a trainer: the key of its source, its host, the job."""
        found = []
        for key in self.store.sources:
            host = self.store.host(key)
            for job in host.jobs if host is not None else ():
                if host is not None and job.trainers:
                    found.append((key, host, job))
        return found


def is_past(text: str) -> bool:
    """Whether a target is meant as a file: there is one, or its name ends as those do."""
    return text.endswith((".box", ".gsr", ".box.gz")) or (
        not text.isdigit() and Path(text).is_file()
    )


def read(path: str | Path, last_seconds: float = LAST_SECONDS) -> Past:
    """Read the last part of a file, as the doctor does, or so many seconds of it.

    ``problem`` says what is wrong. Raises only :class:`~gpuscope.missing_file.MissingFile`.
    """
    if not os.path.lexists(path):
        raise MissingFile(str(path))
    from ..model.job_ends import end_of_box
    from ..store import past_file

    reader = past_file.reader_of(path)
    lines = past_file.last_lines(reader, last_seconds)
    store = past_file.store_of(lines, clean(Path(path).name, 80))
    ended = getattr(reader, "ended", None)
    problem = reader.problem.text if reader.problem is not None else ""
    return Past(store, clean(end_of_box(ended).sentence, 300) if ended else "", problem)
