"""This module chooses the names of the files in which answers are kept.

They lie under ``$XDG_DATA_HOME/gpuscope``.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

from ...paths import data_folder, new_file
from ...store.view import TrainerView

_ODD = re.compile(r"[^A-Za-z0-9._-]+")
MAX_PART_CHARS = 40
FOLDERS = {"snapshot": ("snapshots", "pickle"), "profile": ("profiles", "json")}


def file_for(kind: str, host: str, trainer: TrainerView, folder: Path | None = None) -> Path:
    """Return a path for a new file, whose folder is made.

    An example is ``snapshots/node-17-train.py-rank3-48216-20261120-094105.pickle``. Names come
    from outside: what has no place in a file name becomes "_". Raises OSError.
    """
    where, suffix = FOLDERS[kind]
    definition = trainer.definition
    script = (definition.script or "trainer").rstrip("/").rsplit("/", 1)[-1]
    rank = [f"rank{definition.rank}"] if definition.rank is not None else []
    parts = [host, script, *rank, str(definition.pid), time.strftime("%Y%m%d-%H%M%S")]
    stem = "-".join(_ODD.sub("_", part)[:MAX_PART_CHARS].strip("._-") or "_" for part in parts)
    return new_file((folder or data_folder()) / where, stem, suffix)
