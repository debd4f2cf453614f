"""This module keeps the state of looking: which sort, theme and rate were on.

It lies in ``$XDG_STATE_HOME/gpuscope/state.json`` and is written atomically; a file that cannot
be read is ignored with a notice, and replaced only when the app ends well.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ... import paths
from ...process import atomic_file
from ...wire.files import open_regular

MAX_STATE_BYTES = 16 * 1024
SORTS = ("index", "used", "utilization", "power", "temperature")
PROCESS_SORTS = ("gpu", "memory", "sm", "cpu", "rss", "age", "idle", "user", "pid")


@dataclass(slots=True)
class ViewState:
    """What a user has chosen to look at, and how.

    ``sort`` is one of ``SORTS``; ``rate_hz`` 0 means the rate that fits the link. ``process_…``
    is of the process screen; ``process_hidden`` names the columns that are left out, with
    commas between them; ``recent`` has the names of what was last chosen in the palette, a line
    each; ``deaths_seen`` is when the last of the deaths happened that the Doctor has shown.
    ``mine`` and the filters are of this session alone: a list that leaves out most of a machine
    without having been asked to would mislead. The tab is not kept either: whoever opens a monitor
    first wants to know how things stand, which the Overview says.
    """

    filter: str = ""
    mine: bool = False
    sort: str = "index"
    theme: str = ""
    rate_hz: float = 0.0
    process_sort: str = "gpu"
    process_filter: str = ""
    process_tree: bool = False
    process_hidden: str = ""
    recent: str = ""
    deaths_seen: float = 0.0


_NOT_KEPT = ("mine", "filter", "process_filter")
_KEPT = tuple(field.name for field in fields(ViewState) if field.name not in _NOT_KEPT)
_CHOICES = {"sort": SORTS, "process_sort": PROCESS_SORTS}


def state_path() -> Path:
    """Return where the state is kept; it need not exist."""
    return paths.state_folder() / "state.json"


def load(path: Path | None = None) -> tuple[ViewState, str]:
    """Return the state, and "" or one line that says why the file was ignored."""
    path = path or state_path()
    try:
        with open_regular(path) as file:
            data = file.read(MAX_STATE_BYTES + 1)
    except FileNotFoundError:
        return ViewState(), ""
    except OSError as error:
        return ViewState(), f"{path}: not readable ({error.strerror}); starting fresh"
    try:
        if len(data) > MAX_STATE_BYTES:
            raise ValueError
        import json

        return _check(json.loads(data)), ""
    except (ValueError, TypeError, RecursionError):
        return ViewState(), f"{path}: not a gpuscope state file; starting fresh"


def _check(body: object) -> ViewState:
    if not isinstance(body, dict):
        raise ValueError("not an object")
    state = ViewState()
    for name in _KEPT:
        value, default = body.get(name), getattr(state, name)
        if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if type(value) is not type(default) or value not in _CHOICES.get(name, (value,)):
            continue
        setattr(state, name, value[:200] if isinstance(value, str) else value)
    if not 0 <= state.rate_hz <= 10:
        state.rate_hz = 0.0
    return state


def save(state: ViewState, path: Path | None = None) -> str:
    """Replace the file in one step, and return why that failed, "" when it did not.

    A full disk must not end a session.
    """
    import json

    path = path or state_path()
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {name: getattr(state, name) for name in _KEPT}
        atomic_file.write_text(path, json.dumps(kept, indent=1))
    except OSError as error:
        return f"{path}: not written ({error.strerror})"
    return ""
