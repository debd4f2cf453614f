"""This module turns the registry of keys into Textual's bindings and into words.

The help, footers and texts write keys as people do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from .actions import ACTIONS, BY_NAME
from .entries import Action, Key
from .screen_keys import BY_TEXTUAL, KEYS, TITLES

if TYPE_CHECKING:
    from textual.binding import Binding
    from textual.screen import Screen

_SHOWN = {
    "slash": "/",
    "colon": ":",
    "question_mark": "?",
    "plus": "+",
    "minus": "-",
    "equals_sign": "=",
    "comma": ",",
    "full_stop": ".",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "left_square_bracket": "[",
    "right_square_bracket": "]",
    "left_curly_bracket": "{",
    "exclamation_mark": "!",
    "right_curly_bracket": "}",
    "escape": "Esc",
    "enter": "Enter",
    "up": "↑",
    "down": "↓",
    "left": "←",
    "right": "→",
    "tab": "Tab",
    "space": "space",
    "pagedown": "PgDn",
    "pageup": "PgUp",
    "f5": "F5",
    "f9": "F9",
    "home": "Home",
    "end": "End",
}
ALWAYS = ("ctrl+c", "ctrl+q")
"""Keys that act before any widget or dialog sees them: leaving must not depend on what has the
focus.
"""
KEY_CELLS = 11
"""Of a column of keys, with the gap behind it."""

NOT_IN_FOOTER = 1000
"""Where entries come that the line at the bottom has no place for."""


def key_text(key: str) -> str:
    """A key as the footer and the help write it: ``slash`` → ``/``, ``ctrl+p`` → ``^p``."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _SHOWN.get(key, key)


def shown_keys(action: Action) -> str:
    """Return all keys of an action that texts name, ``j ↓``."""
    return " ".join(key_text(key) for key in action.keys if key not in action.hidden)


@cache
def key_of(action: str, on: str = "") -> str:
    """Return the key of an action as texts write it.

    It is an action for the tabs, or with ``on`` one of that class's keys. Raises KeyError where
    the registry has no such action, so that no text can name a key that does nothing.
    """
    if not on:
        return key_text(BY_NAME[action].keys[0])
    for names, found in (bind for key in KEYS[on] for bind in key.binds):
        if found == action:
            return key_text(names.split(",")[0])
    raise KeyError(f"{on} has no key for {action}")


def bindings() -> list[Binding]:
    """Return one binding for each key.

    An action on one tab comes before one for all tabs that shares its key.
    """
    ordered = sorted(ACTIONS, key=lambda action: not action.where)
    from textual.binding import Binding  # verbs without a screen name keys, and load no Textual

    return [
        Binding(key, f"do('{action.name}')", action.label, show=False)
        for action in ordered
        for key in action.keys
        if key not in ALWAYS
    ]


def always() -> list[Binding]:
    """Return the bindings of the app itself, in force under every dialog."""
    from textual.binding import Binding  # verbs without a screen name keys, and load no Textual

    return [
        Binding(key, f"do('{action.name}')", action.label, show=False, priority=True)
        for action in ACTIONS
        for key in action.keys
        if key in ALWAYS
    ]


# ── screens, dialogs and lists ──


def bindings_of(name: str) -> list[Binding]:
    """The bindings of a class of this name; those of its base classes are added by Textual."""
    own = (key for key in KEYS[name] if not key.via)
    from textual.binding import Binding  # verbs without a screen name keys, and load no Textual

    return [
        Binding(keys, action, key.label, show=False) for key in own for keys, action in key.binds
    ]


def names_in(key: Key) -> list[str]:
    return [name for names, _ in key.binds for name in names.split(",")]


def keys_of(kind: type) -> list[Key]:
    """Return the entries of a class and of its base classes.

    Keys that a nearer class gives another meaning are left out.
    """
    out: list[Key] = []
    taken: set[str] = set()
    for base in kind.__mro__:
        own = KEYS.get(base.__name__, ())
        out += [left for key in own if (left := _without(key, taken)) is not None]
        taken.update(name for key in own for name in names_in(key))
        if not base.__dict__.get("_inherit_bindings", True):
            break
    return out


def in_order(keys: Iterable[Key]) -> list[Key]:
    """Those of the line at the bottom first, in its order."""
    return sorted(keys, key=lambda key: key.footer or NOT_IN_FOOTER)


def _without(key: Key, taken: Collection[str]) -> Key | None:
    """Return the entry without some of its keys; None where that leaves nothing."""
    if not any(name in taken for name in names_in(key)):
        return key
    left = (
        (",".join(name for name in names.split(",") if name not in taken), action)
        for names, action in key.binds
    )
    binds = tuple((names, action) for names, action in left if names)
    return key._replace(binds=binds, shown="") if binds else None


def shown_short(key: Key) -> str:
    """Return one key for each action of an entry, as ``← →``."""
    return key.shown or " ".join(key_text(names.split(",")[0]) for names, _ in key.binds)


def shown_whole(key: Key) -> str:
    """Return all its keys where a column of keys has room for them."""
    whole = " ".join(key_text(name) for name in names_in(key) if name not in key.hidden)
    return whole if len(whole) < KEY_CELLS else shown_short(key)


def in_footer(keys: Iterable[Key], states: Collection[str] = ()) -> list[Key]:
    """The entries for the line at the bottom of a screen in these states, in their order."""
    return sorted(
        (k for k in keys if k.footer and (not k.when or k.when in states)), key=lambda k: k.footer
    )


class KeySection(NamedTuple):
    """The keys of a screen, or of the part of it that has the keyboard.

    ``more`` says in words which keys are Textual's.
    """

    title: str
    keys: Sequence[Key]
    more: str = ""


def sections_of(screen: Screen[Any], on_tab: Collection[str] = ()) -> list[KeySection]:
    """Return what the keys do on a screen, and in the part of it that has the keyboard.

    ``on_tab`` are the names of keys that the actions of the tab tell of.
    """
    out = []
    whole = keys_of(type(screen))
    if whole:
        out.append(KeySection(TITLES.get(type(screen).__name__, "This dialog"), in_order(whole)))
    if (part := screen.focused) is not None:
        listed = {*on_tab, *(name for key in whole if key.via for name in names_in(key))}
        keys = [left for key in keys_of(type(part)) if (left := _without(key, listed)) is not None]
        more = next(
            (
                BY_TEXTUAL[base.__name__]
                for base in type(part).__mro__
                if base.__name__ in BY_TEXTUAL
            ),
            "",
        )
        title = next(
            (TITLES[base.__name__] for base in type(part).__mro__ if base.__name__ in TITLES),
            "Here",
        )
        if keys or more:
            out.append(KeySection(title, keys, more))
    return out
