"""This module chooses the keys that the last line of a screen names, and fits them into it.

The screen's own keys stand at the left, the most important first, and the three keys that act
everywhere at the right: help, palette, and leaving. An action has one word at any width: where
there is little room, keys are left out; the help has them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from ...text import styled
from ...text.styled import Line
from .actions import ACTIONS, BY_NAME
from .entries import Action, Hint, Key
from .keymap import in_footer, key_text, names_in, shown_short

ENDS = ("help", "palette", "quit")
"""The actions at the right end, which are named at any width."""
ENDS_ON_SCREENS = ("question_mark", "colon", "q")
"""The same on a screen over the tabs, by their keys: there q closes it."""
ENDS_WHILE_TYPING = ("escape",)
ENDS_ON_DIALOGS = ("question_mark", "colon", "escape")
"""Letters have meanings of their own in dialogs, such as Q, which sends QUIT."""
PAIRS = {
    "down": ("up", "Move", "to the next row, or the one before"),
    "zoom": ("zoom_back", "Zoom", "show a longer or a shorter time"),
    "slower": ("faster", "Speed", "fewer or more samples a second; of a replay, its speed"),
    "sort_previous": ("sort_next", "Sort", "sort by another column"),
    "replay_back": ("replay_forward", "Past", "go 10 seconds back, or forward again"),
    "far_back": ("far_forward", "5 min", "go 5 minutes back, or forward again"),
    "next_subject": ("previous_subject", "GPU", "the next GPU or trainer, or the one before"),
    "next_trainer": ("previous_trainer", "Rank", "the next rank or trainer, or the one before"),
    "next_kind": ("previous_kind", "Kind", "only jobs, findings, GPUs, files …"),
    "next_host": ("previous_host", "Host", "the next host, or the one before"),
    "expand": ("collapse", "Branch", "show what is inside, or hide it"),
    "deeper": ("shallower", "Depth", "one level more, or one less"),
    "text_down": ("text_up", "Text", "scroll the text of the finding"),
    "lab_previous": ("lab_next", "Change", "another value of the setting"),
    "lab_mark_a": ("lab_mark_b", "Mark", "the run under the cursor becomes A or B"),
}
"""Action → the one that undoes it, which shares its entry, and the word and help for both."""
FIRST = {
    "fleet": ("open", "connect_again", "filter", "attach", "next_pane", "sort_previous", "mine"),
    "overview": ("open", "next_pane", "processes", "attach", "filter", "pause", "replay_back"),
    "memory": ("next_subject", "waterfall", "what_if", "modules", "counters"),
    "doctor": ("next_fix", "prove", "stacks", "signal", "copy", "open", "filter"),
    "log": ("next_kind", "open", "filter"),
}
"""Tab → what one comes there for, which stands before all else; elsewhere it is what the order of
the registry puts first.
"""
FEWEST_KEYS = 3
"""So many of the keys at the left are named before the words of those at the right."""
ON_JOBS = ("open", "next_pane", "processes", "filter", "pause", "replay_back")
"""The same on the Overview while its list of jobs has the keyboard: a job has its probe already."""
IN_A_HANG = ("open", "stacks", "signal")
"""What one needs first on the Overview while a job hangs."""
STANDING = {"pause": "Now", "replay_back": "10 s", "far_back": "5 min"}
"""What leads back to now and through time, which comes first where the screen stands still."""


# ── what there is ──


def tab_actions(tab: str, first: Sequence[str] = ()) -> list[Action]:
    """Return the actions that the line of a tab may name, the most important first.

    ``first`` are those to begin with where these are not the usual ones of the tab.
    """
    here = [a for a in ACTIONS if a.footer and a.applies(tab) and a.name not in ENDS]
    first = first or FIRST.get(tab, ())
    here.sort(key=lambda a: first.index(a.name) if a.name in first else len(first) + a.footer)
    return here


def tab_hints(
    tab: str,
    why_not: Callable[[str], str],
    frozen: bool = False,
    hangs: bool = False,
    on_jobs: bool = False,
) -> list[Hint]:
    """Return the keys of a tab that can act now, the most important first.

    ``frozen`` says that the screen stands still in a live session, ``hangs`` that a job does, and
    ``on_jobs`` that the list of jobs has the keyboard.
    """
    here = [
        a
        for a in tab_actions(tab, ON_JOBS if on_jobs else ())
        if not (frozen and a.name in STANDING)
    ]
    if hangs and tab == "overview":
        here.sort(key=lambda a: IN_A_HANG.index(a.name) if a.name in IN_A_HANG else len(IN_A_HANG))
    out = [_of_action(a.name) for a in here if not why_not(a.name)]
    if frozen:
        out[:0] = [_of_action(name)._replace(label=label) for name, label in STANDING.items()]
    return out


def tab_ends() -> list[Hint]:
    """Return the keys at the right end of a tab's line."""
    return [_of_action(name) for name in ENDS]


def _of_action(name: str) -> Hint:
    keys, label, second = key_text(BY_NAME[name].keys[0]), BY_NAME[name].label, ""
    if name in PAIRS:
        other, label, _ = PAIRS[name]
        keys, second = f"{keys} {key_text(BY_NAME[other].keys[0])}", f"do('{other}')"
    return Hint(keys, label, f"do('{name}')", second)


def screen_hints(
    keys: Sequence[Key],
    states: Collection[str] = (),
    why_not: Callable[[str], str] | None = None,
    still: bool = False,
) -> list[Hint]:
    """Return the keys of a screen over the tabs, the most important first.

    Entries that would only say why not are left out. ``still`` says that the screen stands
    still: what leads on from there comes first.
    """
    line = [key for key in in_footer(keys, states) if not _is_end(key)]
    if why_not is not None:
        line = [key for key in line if not (key.needs and why_not(key.needs))]
    if not still:
        return [_of_key(key) for key in line]
    leading = [_of_key(key._replace(label=key.still)) for key in keys if key.still]
    return [*leading, *(_of_key(key) for key in line if not key.still)]


def screen_ends(
    keys: Sequence[Key], typing: bool = False, names: Sequence[str] = ENDS_ON_SCREENS
) -> list[Hint]:
    """Return the keys at the right end of the line of a screen over the tabs.

    While somebody is ``typing``, letters are text and only one key leads out.
    """
    out = []
    for name in ENDS_WHILE_TYPING if typing else names:
        key = next((key for key in keys if name in names_in(key)), None)
        if key is not None:
            action = next(does for names, does in key.binds if name in names.split(","))
            out.append(Hint(key_text(name), key.label, action))
    return out


def _is_end(key: Key) -> bool:
    return any(name in ENDS_ON_SCREENS for name in names_in(key))


def _of_key(key: Key) -> Hint:
    second = key.binds[1][1] if len(key.binds) == 2 and not key.shown else ""
    return Hint(shown_short(key), key.label, key.binds[0][1], second)


# ── what there is room for ──


def fitted(own: Sequence[Hint], ends: Sequence[Hint], width: int) -> tuple[list[Hint], list[Hint]]:
    """Return what stands at the left and at the right of a line, with the labels to show.

    The last keys of the left go before the words of the right, which are those of all screens, but
    not the first keys: before these the right loses its words, that of the key that leaves last.
    A terminal of 80 columns has room for all of these words.
    """
    short = [hint._replace(label="") for hint in ends]
    for shown, least in (
        (list(ends), FEWEST_KEYS),
        ([*short[:-1], *ends[-1:]], FEWEST_KEYS),
        (short, 0),
    ):
        left = list(own)
        while len(left) > least and _cells(left) + _cells(shown) > width:
            del left[-1]
        if _cells(left) + _cells(shown) <= width:
            break
    for at, hint in enumerate(shown):  # the words that have room all the same
        named = [*shown[:at], hint._replace(label=hint.label or ends[at].label), *shown[at + 1 :]]
        shown = named if _cells(left) + _cells(named) <= width else shown
    return left, shown


def ends_beside(taken: int, ends: Sequence[Hint], width: int) -> list[Hint]:
    """Return the right end beside a sentence of so many cells, which may need their labels.

    The palette goes first, then the key that leaves: a key without its word says little. Beside
    a sentence that has no room for the help either there is none, since the end of it may be the
    path of a file; a sentence that is cut anyway leaves the keys alone.
    """
    for shown in (list(ends), [*ends[:1], *ends[2:]], list(ends[:1])):
        if taken + _cells(shown) <= width:
            return shown
    return [hint._replace(label="") for hint in ends] if taken > width else []


def beside(taken: int, own: Sequence[Hint], ends: Sequence[Hint], width: int) -> list[Hint]:
    """Return the first keys of the left that have room between a sentence and the right end."""
    left = list(own)
    while left and taken + _cells(left) + _cells(ends) > width:
        del left[-1]
    return left


def hint_pieces(hint: Hint) -> Line:
    """Return a key and its label as they stand in the line."""
    key = (f" {hint.keys} ", "bold accent")
    return [key, (f"{hint.label} ", "muted")] if hint.label else [key]


def _cells(hints: Sequence[Hint]) -> int:
    return sum(styled.cells(hint_pieces(hint)) for hint in hints)
