"""The help screen: every key from the registry, what cannot be done here and why, and the words and glyphs in use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll

from ...text import styled
from ...text.styled import Line
from ...text.width import cells as text_cells
from ..cells import fit
from ..widgets.dialog import Dialog
from ..widgets.text import Lines
from .actions import ACTIONS, GROUPS
from .keymap import shown_keys

WORDS = (
    ("allocated", "bytes of live tensors, as torch's allocator hands them out"),
    ("cached", "reserved by torch's allocator and not allocated: empty_cache() can return what is not split"),
    ("outside torch", "what the process holds on the device that torch did not allocate: context, libraries"),
    ("other", "other processes on the same device"),
    ("driver", "kept by the driver for itself, beside what nvidia-smi counts as used"),
    ("free", "what a new process could get"),
)
GLYPHS = (
    ("ok", "ok: working, nothing to say"),
    ("warn", "look here: slower or fuller than it need be"),
    ("bad", "lost, not answering, or out of memory"),
    ("idle", "idle or free"),
    ("shared", "shared by several processes"),
)


MARKS = (
    ("oom", "bad", "out of memory"),
    ("spared", "warn", "out of memory, and the training went on"),
    ("retry", "warn", "cudaMalloc failed, the cache was flushed, it was tried again"),
    ("stall", "bad", "a step was overdue"),
    ("phase", "accent", "training or evaluation begins; green: steps go on"),
    ("dashes", "text", "the most that was ever allocated, as torch counts it"),
    ("about", "text", "before an amount: an estimate, or counted at another moment"),
)


class HelpScreen(Dialog):
    """Opened by ``?``, which closes it, too."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark", "dismiss", "Close", show=False)]

    def __init__(self, why_not: Callable[[str], str]) -> None:
        super().__init__()
        self._lines = Lines()
        self._why_not = why_not

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Help"
            body.border_subtitle = "j k: scroll   space: on   Esc: close"
            yield self._lines

    def on_mount(self) -> None:
        self.call_after_refresh(self._show)

    def on_resize(self) -> None:
        self.call_after_refresh(self._show)

    def _show(self) -> None:
        cells = max(30, self._lines.size.width)
        self._lines.show(styled.hang_lines(self._text(), cells))

    def _text(self) -> Iterator[Line]:
        glyphs = self._lines.tokens.glyphs
        for group in GROUPS:
            yield [(group, "title")]
            for action in (a for a in ACTIONS if a.group == group):
                reason = self._why_not(action.name)
                where = f" ({', '.join(action.where)})" if action.where else ""
                keys = f"  {fit(shown_keys(action), 9)}{fit(action.label, 16)}"
                yield [(keys, "faint" if reason else "accent"), (action.help + where, "faint" if reason else "text")]
                if reason:
                    yield [(" " * text_cells(keys), "faint"), (f"not here: {reason}", "faint")]
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
            yield [(f"  {getattr(glyphs, state)}   ", "series4" if state == "shared" else state), (text, "muted")]
