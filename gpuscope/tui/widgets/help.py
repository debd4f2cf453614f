"""The help screen: every key from the registry, what cannot be done here and why, and the words and glyphs in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from ..actions import ACTIONS, GROUPS
from ..cells import fit
from ..keymap import shown_keys
from ..theme import Tokens

WORDS = (
    ("allocated", "bytes of live tensors, as torch's allocator hands them out"),
    ("cached", "reserved by torch's allocator and not allocated: empty_cache() can return what is not split"),
    ("outside torch", "what the process holds on the device that torch did not allocate: context, libraries"),
    ("other", "other processes on the same device"),
    ("driver", "kept by the driver for itself; nvidia-smi adds it to used"),
    ("free", "what a new process could get"),
)
GLYPHS = (
    ("ok", "ok: working, nothing to say"),
    ("warn", "look here: slower or fuller than it need be"),
    ("bad", "lost, not answering, or out of memory"),
    ("idle", "idle or free"),
    ("shared", "shared by several processes"),
)


class HelpScreen(ModalScreen[None]):
    """Opened by ``?``. Esc, q and ? close it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,question_mark", "dismiss", "Close", show=False),
        Binding("j", "down", show=False),
        Binding("k", "up", show=False),
    ]

    def __init__(self, why_not: Callable[[str], str]) -> None:
        super().__init__()
        self._why_not = why_not

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="dialog") as body:
            body.border_title = "Help"
            body.border_subtitle = "Esc: close"
            yield Static(self._text())

    def _text(self) -> Text:
        tokens = Tokens.of(self.app)
        out = Text(no_wrap=False)
        for group in GROUPS:
            out.append(f"{group}\n", tokens.style("title"))
            for action in (a for a in ACTIONS if a.group == group):
                reason = self._why_not(action.name)
                where = f" ({', '.join(action.where)})" if action.where else ""
                out.append(f"  {fit(shown_keys(action), 9)}", tokens.style("accent"))
                out.append(fit(action.label, 16), tokens.style("faint" if reason else "text"))
                out.append(f"{action.help}{where}\n", tokens.style("faint" if reason else "muted"))
                if reason:
                    out.append(f"{'':27}not here: {reason}\n", tokens.style("faint"))
            out.append("\n")
        out.append("Memory\n", tokens.style("title"))
        for layer, text in WORDS:
            token = "outside" if layer == "outside torch" else layer
            out.append(f"  {fit(tokens.glyphs.fill(token) * 2, 4)}", tokens.style(token))
            out.append(fit(layer, 16), tokens.style("text"))
            out.append(f"{text}\n", tokens.style("muted"))
        out.append("\nStates\n", tokens.style("title"))
        for state, text in GLYPHS:
            out.append(f"  {getattr(tokens.glyphs, state)}   ", tokens.style("muted" if state == "shared" else state))
            out.append(f"{text}\n", tokens.style("muted"))
        return out

    def action_down(self) -> None:
        self.query_one(VerticalScroll).scroll_down(animate=False)

    def action_up(self) -> None:
        self.query_one(VerticalScroll).scroll_up(animate=False)
