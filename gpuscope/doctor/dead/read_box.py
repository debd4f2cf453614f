"""Read from a black box of gpuscope's probe which rank it was, its last step, and how it ended."""

from __future__ import annotations

from itertools import islice

from ...model.job_ends import end_of_box
from ...snapshot.model import Frame
from ...store.blackbox import BoxReader
from .find import FoundFile
from .model import Exit, Failure
from .read_log import LogPart
from .read_recording import about_trainer
from .rules import classify

MOST_LINES = 20_000


def read(found: FoundFile) -> LogPart | None:
    """Return what a black box says of its rank, or None where it holds no trainer."""
    from ...store.past_file import store_of

    reader = BoxReader(found.path)
    host = store_of(islice(reader.lines(), MOST_LINES), found.name).view().host
    trainers = host.trainers if host is not None else ()
    if host is None or not trainers:
        return None
    trainer = trainers[0]
    last = host.wall_seconds
    about = about_trainer(host, trainer, found.name)
    about.gone, about.finished = None, ""  # the box says it better
    ended = reader.ended
    if ended is not None and ended.get("how") == "exception":
        text = f"{ended.get('type', 'Exception')}: {str(ended.get('message', ''))[:2000]}"
        failure = Failure([text], [_frames(ended)], found.name, last)
        classify(failure)
        about.failures.append(failure)
    elif ended is not None:
        killed = ended.get("signal")
        code = -killed if isinstance(killed, int) else ended.get("code")
        about.finished = found.name if not code else ""
        if isinstance(code, int):
            about.exit = Exit(code, found.name, trainer.definition.pid, last)
        about.last_line = end_of_box(ended).sentence
    return LogPart(found, about, trainer.definition.rank, None)


def _frames(ended: dict[str, object]) -> list[Frame]:
    """Return the stack that the trainer wrote down, the innermost frame last."""
    rows = ended.get("stack")
    frames = []
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, list) and len(row) == 3 and str(row[1]).isdigit():
            frames.append(Frame(str(row[0]), int(row[1]), str(row[2])))
    return frames[::-1]
