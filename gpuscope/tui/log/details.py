"""The line of the log under the cursor in full, for the right half of a wide terminal."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...text import styled
from ...text.styled import Line
from ..shell.keymap import key_of
from ..theme import Glyphs
from .entry import GROUPS, Entry
from .rows import event_lines

if TYPE_CHECKING:
    from ...doctor.finding import Finding

LABEL = 9
OPENS = {
    "finding": "the finding in the Doctor",
    "job": "its job",
    "device": "the GPU",
    "lab": "the Lab",
    "snapshot": "the snapshot",
    "profile": "the profile",
    "stacks": "the stacks",
}
"""What Enter opens, by the kind of the place of an entry."""
_CODE = re.compile(r"(?:[^\s:;,()]+\.py|<path>):\d+")


def path_of(entry: Entry) -> str:
    """Return the file that was saved, or the first line of code that the text names, or ""."""
    found = _CODE.search(entry.text)
    return entry.path or (found.group() if found else "")


def details(
    entry: Entry,
    same_job: Sequence[Entry],
    finding: Finding | None,
    glyphs: Glyphs,
    cells: int,
    height: int,
) -> list[Line]:
    """Return what is known of an entry in at most ``height`` lines of ``cells`` cells.

    ``same_job`` is what else happened to its job, the newest first, and ``finding`` the finding
    that it tells of, where that is still known.
    """
    at = time.strftime("%A, %d %B %Y, %H:%M:%S", time.localtime(entry.wall_seconds))
    out = styled.wrap([(entry.text, "title")], cells)
    out.append([])
    kind = GROUPS[entry.group]
    facts = [("When", at), ("Kind", f"{kind}: {entry.word}"), ("Of", entry.who)]
    facts += [("Path", path)] if (path := path_of(entry)) else []
    for label, text in facts:
        out += styled.hang([(f"{label:{LABEL}}", "accent")], [(text, "text")], cells)
    if entry.place and entry.place[0] in OPENS:
        does = (f": {OPENS[str(entry.place[0])]}", "muted")
        out.append([(f"{'More':{LABEL}}", "accent"), (key_of("open"), "bold accent"), does])
    if finding is not None:
        out.append([])
        for number, one in enumerate(finding.evidence):
            head: Line = [(f"{'Why' if number == 0 else '':{LABEL}}", "accent")]
            source = f"   {one.source}" if one.source else ""
            out += styled.hang(head, [(one.text, "text"), (source, "faint")], cells)
        if finding.effect is not None:
            head = [(f"{'Gain':{LABEL}}", "accent")]
            out += styled.hang(head, [(finding.effect.text, "text")], cells)
    others = [one for one in same_job if one.serial != entry.serial]
    room = height - len(out) - 2
    if others and room > 0:
        out += [[], [("Also of this job, the newest first", "title")]]
        out += event_lines(others, glyphs, room, cells)
    return out[:height]
