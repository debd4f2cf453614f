"""From the registry of actions to Textual's bindings and to the names of keys as people write them."""

from __future__ import annotations

from collections.abc import Iterable

from textual.binding import Binding

from .actions import ACTIONS, Action

_SHOWN = {
    "slash": "/", "colon": ":", "question_mark": "?", "plus": "+", "minus": "-", "equals_sign": "=", "comma": ",",
    "full_stop": ".", "less_than_sign": "<", "greater_than_sign": ">", "left_square_bracket": "[",
    "right_square_bracket": "]", "left_curly_bracket": "{",
    "right_curly_bracket": "}", "escape": "Esc", "enter": "Enter", "up": "↑", "down": "↓", "left": "←",
    "right": "→", "tab": "Tab", "space": "space", "pagedown": "PgDn", "pageup": "PgUp", "f5": "F5",
}  # fmt: skip
ALWAYS = ("ctrl+c",)
"""Keys that act before any widget or dialog sees them: leaving must not depend on what has the focus."""


def shown(key: str) -> str:
    """A key as the footer and the help write it: ``slash`` → ``/``, ``ctrl+p`` → ``^p``."""
    return f"^{key[5:]}" if key.startswith("ctrl+") else _SHOWN.get(key, key)


def shown_keys(action: Action) -> str:
    """All keys of an action, ``j ↓``."""
    return " ".join(shown(key) for key in action.keys)


def bindings(actions: Iterable[Action] = ACTIONS) -> list[Binding]:
    """One binding for each key. An action on one tab comes before one for all tabs that shares its key."""
    ordered = sorted(actions, key=lambda action: not action.where)
    return [
        Binding(key, f"do('{action.name}')", action.label, show=False)
        for action in ordered
        for key in action.keys
        if key not in ALWAYS
    ]


def always() -> list[Binding]:
    """The bindings of the app itself, in force under every dialog."""
    return [
        Binding(key, f"do('{action.name}')", action.label, show=False, priority=True)
        for action in ACTIONS
        for key in action.keys
        if key in ALWAYS
    ]
