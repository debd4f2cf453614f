"""The help begins with the keys of this screen and row, then has those for everywhere.

A second page has what is not possible now, with the reason, the keys of other tabs, and what
colours, words and glyphs mean. All keys are those of the registry. A wide terminal gets two
columns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ...model.device_state import NEARLY_FULL
from ...text import styled
from ...text.styled import Line
from ...text.units import percent_text
from ..cells import fit
from ..shell.actions import ACTIONS, BY_NAME
from ..shell.entries import GROUPS, Action
from ..shell.footer import PAIRS, tab_actions
from ..shell.keymap import (
    KEY_CELLS,
    KeySection,
    key_of,
    key_text,
    sections_of,
    shown_keys,
    shown_whole,
)
from ..terminal.copying import text_of
from ..theme import UNREAD
from ..widgets.dialog import ClosesOnce
from ..widgets.text_dialog import TextDialog
from .row_words import row_of, what_opens

if TYPE_CHECKING:
    from textual.screen import Screen

    from ..shell.entries import Key
    from ..shell.session import Session

LABEL_CELLS = 15
RUN_ON_CELLS = 64
"""In fewer cells what a key does follows its label: a column for labels would leave it too few."""
NOT_NOW = "there is nothing here that it could act on"
KEYS_HERE, MEANINGS = "Help: keys", "Help: words, glyphs and other keys"
TWO_COLUMNS, BETWEEN_CELLS, GLYPH_CELLS = 100, 3, 5
"""From which width of the terminal on there are two columns, the cells between them, and where
glyphs end.
"""
ROW_ACTIONS = (
    *("open", "try_fix", "expand", "lab_mark_a", "prove", "next_fix"),
    *("stacks", "snapshot", "profile", "history", "look", "work", "signal"),
)
"""Actions that are about the row under the cursor."""
SECONDS = {second: first for first, (second, *_) in PAIRS.items()}
"""Actions that share the entry of another one."""

Block = list[Line]
"""Lines that stay together: a heading and what is below it."""
WORDS = (
    ("allocated", "live tensors, as torch's allocator counts them"),
    ("cached", "reserved by torch but not allocated; empty_cache() returns what is not split"),
    ("outside torch", "memory of the process that torch did not allocate: CUDA context, libraries"),
    ("not read", "held by a process whose torch allocator was not read at that time"),
    ("other", "other processes on the same GPU"),
    ("driver", "kept by the driver; nvidia-smi does not count it as used"),
    ("free", "what a new process could allocate"),
)
COLUMNS = (
    ("UTIL", "share of the time that any kernel ran (GPU-Util)"),
    ("TENS", "share of the time that tensor cores worked"),
    ("STEP TIME", "median of the last steps; P95: 95 % take no longer"),
    ("STEP AGE", "time since the last step ended"),
    ("INPUT", "share of a step that waits for the data loader"),
    ("PEAK/RES.", "peak allocated, and reserved by torch"),
    ("HEADROOM", "left before out of memory: free, and what torch's cache gives back"),
    ("COLLECTIVES", "all_reduce and the like, launched so far"),
    ("RSS", "host memory of the process"),
)
"""Heads of columns that are short for something."""
GLYPHS = (
    ("ok", "ok: working"),
    ("warn", "warning: slower or fuller than necessary"),
    ("bad", "a problem: work stands still or is lost, as in a hang, NaN or out of memory"),
    ("idle", "idle, free or over; of a finding or a row: a hint, or not to be judged"),
    ("shared", "shared by several processes"),
)

IN_BARS = (
    ("tight", "warn", f"memory beyond {percent_text(NEARLY_FULL, whole=True)} of the GPU"),
    ("idling", "text", "load without progress, as when a rank waits; in charts {hatch}"),
    ("unknown", "muted", "no reading"),
)
ABOUT = (
    "before an amount: an estimate, or of another moment; after a name: its line runs so near to "
    "the next one that one covers the other"
)
MARKS = (
    ("oom", "bad", "out of memory"),
    ("spared", "warn", "out of memory, but the training went on"),
    ("retry", "warn", "cudaMalloc failed: torch emptied its cache and tried again"),
    ("stall", "bad", "stall: no step when one was due"),
    ("phase", "accent", "training or evaluation starts; green: steps continue"),
    ("dashes", "text", "peak allocated, as torch counts it"),
    ("about", "text", ABOUT),
)


class HelpScreen(TextDialog):
    """The help, which ``?`` opens and closes."""

    DEFAULT_CSS = "HelpScreen .dialog { width: 170; max-width: 100%; max-height: 92%; }"

    def __init__(self, session: Session, screen: Screen[Any], on_tab: Collection[str] = ()) -> None:
        """Begin with the keys of ``screen``.

        ``on_tab`` are the keys that the actions of its tab tell of; none where it is no tab.
        """
        super().__init__(KEYS_HERE)
        self._turned = False
        """Whether the second page is shown."""
        self._why_not = session.why_not
        self._sections = sections_of(screen, on_tab)
        self._states = screen.key_states() if isinstance(screen, ClosesOnce) else ()
        self._tab = getattr(screen, "tab", "") if on_tab else ""
        self._drawn = text_of(screen)
        self._row, self._opens = row_of(screen), what_opens(screen, session.host)

    def text(self) -> Iterator[Line]:
        """Return both pages in one column."""
        blocks = [*self._first(self.cells), *self._second(self.cells)]
        return (line for block in blocks for line in [*block, []])

    def redraw(self) -> None:
        """Draw the page again, in two columns where there is room."""
        if not self.is_open:
            return
        wide = self.app.size.width >= TWO_COLUMNS
        cells = (self.cells - BETWEEN_CELLS) // 2 if wide else self.cells
        blocks = self._second(cells) if self._turned else self._first(cells)
        one = [line for block in blocks for line in [*block, []]]
        self.lines.show(two_columns(blocks, cells) if wide else one)

    def action_turn(self) -> None:
        """Show the other page."""
        self._turned = not self._turned
        for body in self.query(".dialog"):
            body.border_title = MEANINGS if self._turned else KEYS_HERE
            body.scroll_home(animate=False)
        self.redraw()

    def _first(self, cells: int) -> list[Block]:
        """Return what can be done here, wrapped to the width."""
        return _told([*self._here(), *self._everywhere()], cells)

    def _second(self, cells: int) -> list[Block]:
        """Return what nobody looks for first, wrapped to the width."""
        return _told([self._not_now(), self._on_other_tabs(), *self._pictures()], cells)

    # ── keys ──

    def _actions(self) -> tuple[list[Action], list[Action]]:
        """Return the possible actions: those of this tab, and the others that act on all tabs.

        The first are in the order of the line at the bottom.
        """
        named = tab_actions(self._tab) if self._tab else []
        own = [a for a in ACTIONS if a.where and self._tab and a.applies(self._tab)]
        here = [a for a in named if a.where or a.name in ROW_ACTIONS]
        here += [action for action in own if action not in here]
        everywhere = [a for a in ACTIONS if not a.where and a not in here]
        possible = [
            [a for a in some if a.name not in SECONDS and not self._why_not(a.name)]
            for some in (here, everywhere)
        ]
        return possible[0], possible[1]

    def _here(self) -> Iterator[Block]:
        """Yield what acts on the row under the cursor, on the tab, and on the screen."""
        mine, _ = self._actions()
        on_row = [a for a in mine if a.name in ROW_ACTIONS]
        rest = [a for a in mine if a not in on_row]
        if on_row:
            yield [
                [("On this row", "title"), (f"  {self._row}" if self._row else "", "muted")],
                *(self._of_row(a) for a in on_row),
            ]
        if self._tab:
            title = f"On {BY_NAME[self._tab].label}"
            yield [[(title, "title")], *(_entry(a, self._tab) for a in rest)]
        for section in self._sections:
            yield [[(section.title, "title")], *self._keys_of(section)]
        yield [[("Signs on this screen", "title")], *self._signs(self._drawn)]

    def _of_row(self, action: Action) -> Line:
        """Return an entry about the row under the cursor."""
        does = (self._opens if action.name == "open" else "") or action.help_on(self._tab)
        return _line(_keys(action), _label(action), does)

    def _keys_of(self, section: KeySection) -> Iterator[Line]:
        for key in section.keys:
            if not self._reason(key):
                yield _line(shown_whole(key), key.label, key.help)
        if section.more:
            yield _line("", "as usual", section.more)

    def _reason(self, key: Key) -> str:
        if key.when and key.when not in self._states:
            return NOT_NOW
        return self._why_not(key.needs) if key.needs else ""

    def _everywhere(self) -> Iterator[Block]:
        """Yield the keys for all tabs by their groups; elsewhere only how to get there."""
        if not self._tab:
            yield [
                [("Everything else", "title")],
                _line(key_of("back"), "", "leads to the tabs, where ? lists their keys"),
            ]
            return
        _, found = self._actions()
        for group in GROUPS:
            actions = [action for action in found if action.group == group]
            if actions:
                yield [[(group, "title")], *(_entry(a) for a in actions)]

    def _not_now(self) -> Block:
        """Return the actions that are not possible now, each with the reason as its help."""
        out: Block = [[("Not possible now", "title")]]
        for section in self._sections:
            for key in section.keys:
                if reason := self._reason(key):
                    out.append(_line(shown_whole(key), key.label, reason, faint=True))
        for action in ACTIONS:
            reason = self._why_not(action.name)
            here = not self._tab or action.applies(self._tab)
            if reason and here and action.name not in SECONDS:
                out.append(_line(_keys(action), _label(action), reason, faint=True))
        return out

    def _on_other_tabs(self) -> Block:
        """Return the actions of the other tabs, each with the tabs."""
        out: Block = [[("On other tabs", "title")]]
        for action in ACTIONS:
            described = self._tab and action.applies(self._tab)
            described = described or (not self._tab and self._why_not(action.name))
            if action.where and not described and action.name not in SECONDS:
                tabs = ", ".join(BY_NAME[tab].label for tab in action.where)
                text = f"{tabs}: {_does(action)}"
                out.append(_line(_keys(action), _label(action), text))
        return out

    # ── words and glyphs ──

    def _pictures(self) -> Iterator[Block]:
        glyphs = self.lines.tokens.glyphs
        out: Block = [[("Colours of memory", "title")]]
        for layer, text in WORDS:
            token = {"outside torch": "outside", "not read": UNREAD}.get(layer, layer)
            glyph = glyphs.groove if layer == "free" else glyphs.fill(token)  # as bars have it
            head = f"  {fit(glyph * 2, 4)}{fit(layer, 15)}"
            out.append([(head, token), (text, "muted")])
        yield out
        yield [
            [("Column heads", "title")],
            *([(f"  {fit(head, 15)}", "title"), (text, "muted")] for head, text in COLUMNS),
        ]
        for title, marks in (("In a bar", IN_BARS), ("On the timeline", MARKS)):
            yield [
                [(title, "title")],
                *(
                    [
                        (f"  {fit(getattr(glyphs, mark), GLYPH_CELLS)}", token),
                        (text.format(hatch=glyphs.hatch), "muted"),
                    ]
                    for mark, token, text in marks
                ),
            ]
        yield [[("States", "title")], *self._signs()]

    def _signs(self, drawn: str | None = None) -> Iterator[Line]:
        """Yield what the signs of states mean, all of them or those that are ``drawn``."""
        glyphs = self.lines.tokens.glyphs
        for state, text in GLYPHS:
            sign, token = getattr(glyphs, state), "series4" if state == "shared" else state
            if drawn is None or sign in drawn:
                yield [(f"  {fit(sign, GLYPH_CELLS)}", token), (text, "muted")]
        if drawn is not None and not glyphs.about.isascii() and glyphs.about in drawn:
            yield [(f"  {fit(glyphs.about, GLYPH_CELLS)}", "text"), (ABOUT, "muted")]


def two_columns(blocks: Sequence[Block], wide: int) -> list[Line]:
    """Return blocks beside each other: the first ones at the left, up to half of all lines."""
    total = sum(len(block) + 1 for block in blocks)
    left: Block = []
    right: Block = []
    for block in blocks:
        here = left if not right and len(left) + len(block) / 2 <= total / 2 else right
        here += [*block, []]
    rows = max(len(left), len(right))
    gap = " " * BETWEEN_CELLS
    return [
        [
            *styled.pad(left[row] if row < len(left) else [], wide),
            (gap, "text"),
            *(right[row] if row < len(right) else []),
        ]
        for row in range(rows)
    ]


def _entry(action: Action, tab: str = "") -> Line:
    """Return an action's keys, its word and what it does."""
    return _line(_keys(action), _label(action), _does(action, tab))


def _does(action: Action, tab: str = "") -> str:
    """Return what it does, or what it and the action that undoes it do."""
    return PAIRS[action.name][2] if action.name in PAIRS else action.help_on(tab)


def _label(action: Action) -> str:
    """Return its word, or the one for it and the action that undoes it."""
    return PAIRS[action.name][1] if action.name in PAIRS else action.label


def _keys(action: Action) -> str:
    """Return its keys, with those of the action that undoes it; where many, one of each."""
    if action.name not in PAIRS:
        return shown_keys(action)
    both = (action, BY_NAME[PAIRS[action.name][0]])
    whole = " ".join(map(shown_keys, both))
    return whole if len(whole) < KEY_CELLS else " ".join(key_text(one.keys[0]) for one in both)


def _line(keys: str, label: str, does: str, faint: bool = False) -> Line:
    head = f"  {fit(keys, KEY_CELLS)}"
    if faint:
        return [(f"{head}{fit(label, LABEL_CELLS)}", "faint"), (does, "faint")]
    return [(head, "accent"), (fit(label, LABEL_CELLS), "title"), (does, "text")]


def _told(parts: Sequence[Block], cells: int) -> list[Block]:
    """Return the parts that have more than a heading, wrapped to so many cells."""
    return [_wrapped(part, cells) for part in parts if len(part) > 1]


def _wrapped(lines: Block, cells: int) -> Block:
    """Return lines wrapped below what they say, not below their key."""
    out: Block = []
    for line in lines:
        labelled = len(line) > 2
        if labelled and cells < RUN_ON_CELLS:
            head, (label, style), *does = line
            named = [(f"{label.rstrip()}  ", style)] if label.strip() else []
            out += styled.hang([head], [*named, *does], cells)
        else:
            out += styled.hang_lines([line], cells, 2 if labelled else 1)
    return out
