"""The help screen has every key of the registry, and the words and glyphs in use.

It says of what cannot be done here why not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import BindingType

from ...text.styled import Line
from ...text.width import cells as text_cells
from ..cells import fit
from ..widgets.dialog import ClosesOnce
from ..widgets.text_dialog import TextDialog
from .actions import ACTIONS, GROUPS
from .keymap import KEY_CELLS, Section, bindings_of, sections_of, shown_keys, shown_whole

if TYPE_CHECKING:
    from textual.screen import Screen

    from .session import Session

LABEL_CELLS = 16
NOT_NOW = "nothing to act on right now"
WORDS = (
    ("allocated", "bytes of live tensors, as torch's allocator hands them out"),
    (
        "cached",
        "reserved by torch's allocator and not allocated: empty_cache() can return what is not "
        "split",
    ),
    (
        "outside torch",
        "memory of the process that torch did not allocate: CUDA context, libraries",
    ),
    ("other", "other processes on the same device"),
    ("driver", "the driver's own memory, not part of what nvidia-smi counts as used"),
    ("free", "what a new process could get"),
)
GLYPHS = (
    ("ok", "ok: working"),
    ("warn", "warning: slower or fuller than necessary"),
    ("bad", "lost, not answering or out of memory"),
    ("idle", "idle or free"),
    ("shared", "shared by several processes"),
)


MARKS = (
    ("oom", "bad", "out of memory"),
    ("spared", "warn", "out of memory, but the training went on"),
    ("retry", "warn", "cudaMalloc failed: cache flushed, then retried"),
    ("stall", "bad", "a step was overdue"),
    ("phase", "accent", "training or evaluation starts; green: steps continue"),
    ("dashes", "text", "peak allocated, as torch counts it"),
    ("about", "text", "before an amount: an estimate, or measured at another moment"),
)


class HelpScreen(TextDialog):
    """The help, which ``?`` opens and closes."""

    BINDINGS: ClassVar[list[BindingType]] = [*bindings_of("HelpScreen")]

    def __init__(self, session: Session, screen: Screen[Any], on_tab: Collection[str] = ()) -> None:
        """Begin with the keys of ``screen``.

        ``on_tab`` are the keys that the actions of its tab tell of.
        """
        super().__init__("Help")
        self._why_not = session.why_not
        self._sections = sections_of(screen, on_tab)
        self._states = screen.key_states() if isinstance(screen, ClosesOnce) else ()

    def text(self) -> Iterator[Line]:
        glyphs = self.lines.tokens.glyphs
        for section in self._sections:
            yield from self._here(section)
            yield []
        for group in GROUPS:
            yield [(group, "title")]
            for action in (a for a in ACTIONS if a.group == group):
                reason = self._why_not(action.name)
                where = f" ({', '.join(action.where)})" if action.where else ""
                yield from _entry(shown_keys(action), action.label, action.help + where, reason)
            yield []
        yield [("Memory", "title")]
        for layer, text in WORDS:
            token = "outside" if layer == "outside torch" else layer
            yield [(f"  {fit(glyphs.fill(token) * 2, 4)}{fit(layer, 16)}", token), (text, "muted")]
        yield []
        yield [("On the timeline", "title")]
        for mark, token, text in MARKS:
            yield [(f"  {getattr(glyphs, mark)}   ", token), (text, "muted")]
        yield []
        yield [("States", "title")]
        for state, text in GLYPHS:
            yield [
                (f"  {getattr(glyphs, state)}   ", "series4" if state == "shared" else state),
                (text, "muted"),
            ]

    def _here(self, section: Section) -> Iterator[Line]:
        """What the keys do on the screen below, or in the part of it that has the keyboard."""
        yield [(section.title, "title")]
        for key in section.keys:
            reason = self._why_not(key.needs) if key.needs else ""
            if key.when and key.when not in self._states:
                reason = NOT_NOW
            yield from _entry(shown_whole(key), key.label, key.help, reason)
        if section.more:
            yield [
                (f"  {' ' * KEY_CELLS}{fit('as usual', LABEL_CELLS)}", "accent"),
                (section.more, "text"),
            ]


def _entry(keys: str, label: str, help_text: str, reason: str) -> Iterator[Line]:
    """Return a key, its word and what it does; below that ``reason``, why not here."""
    head = f"  {fit(keys, KEY_CELLS)}{fit(label, LABEL_CELLS)}"
    yield [(head, "faint" if reason else "accent"), (help_text, "faint" if reason else "text")]
    if reason:
        yield [(" " * text_cells(head), "faint"), (f"not here: {reason}", "faint")]
