"""Make the frames that an agent would send for one look, for a viewer in the same process."""

from __future__ import annotations

from dataclasses import replace
from typing import List

from ..wire.frames import PROCESS_COLUMNS, Frame, ProcDef, Sample
from .as_sent import AgentOptions
from .assembler import Assembler
from .hello import hello
from .picture import NOT_ASKED_YET, Picture, ProcessPicture
from .stream import MAX_REASONS_PER_SAMPLE


def frames(picture: Picture) -> List[Frame]:
    """Return the frames of a picture, beginning with the hello.

    No further picture follows, so nothing waits for one: devices and processes that have not
    answered yet are reported with the reason, and reasons beyond the limit of one sample go into
    the next.
    """
    assembler, now = Assembler(last=True), round(picture.seconds * 1e9)
    picture = _with_all_that_is_listed(picture)
    before, sample, after = assembler.tick(picture, now)
    sent: List[Frame] = [hello(AgentOptions()), *before, sample, *after]
    while isinstance(sample, Sample) and len(sample.why) >= MAX_REASONS_PER_SAMPLE:
        _, sample, _ = assembler.tick(picture, now)
        sent.append(sample)
    return sent


def _with_all_that_is_listed(picture: Picture) -> Picture:
    """Return the picture with a row for each listed process that was not examined yet.

    These are processes that the driver lists.
    """
    if picture.hidden is not None:
        return picture
    listed = {pid for device in picture.devices for pid, _ in device.processes or ()}
    reasons = dict.fromkeys(("start", "user", "command"), NOT_ASKED_YET)
    readings = dict.fromkeys(PROCESS_COLUMNS, NOT_ASKED_YET)
    waiting = {
        pid: ProcessPicture(ProcDef(pid), reasons, readings, picture.seconds)
        for pid in sorted(listed - picture.processes.keys())
    }
    return replace(picture, processes={**picture.processes, **waiting})
