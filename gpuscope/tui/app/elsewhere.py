"""This module says of a key that means nothing here where it does something.

It reads the two registries of keys, so that what it says cannot differ from what the keys do.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..shell.actions import ACTIONS, BY_NAME
from ..shell.keymap import key_of, key_text, names_in
from ..shell.screen_keys import KEYS

PLACES = {
    "ProcessScreen": ("Processes", "processes"),
    "DeviceScreen": ("a GPU's page", ""),
    "JobScreen": ("a job's page", ""),
    "OneProcessScreen": ("a process's page", ""),
    "StacksScreen": ("Stacks", "stacks"),
    "SnapshotScreen": ("a snapshot's page", ""),
    "ProfileScreen": ("a profile's page", ""),
    "AttachScreen": ("Attach", "attach"),
}
"""What a sentence calls a screen, and the action that opens it, if one does."""

MOST_PLACES = 2
"""The most places that are named. For a key with more of them the help is named instead."""


def elsewhere(key: str, screen: str = "", tab: str = "") -> str:
    """Return one sentence about a key that does nothing on this screen.

    ``screen`` is the name of its class, "" for the tabs, of which ``tab`` is the visible one.
    """
    name = key_text(key)
    found: dict[str, list[str]] = {}
    for place, label in list(dict.fromkeys(_uses(key, screen, tab)))[:MOST_PLACES]:
        found.setdefault(label, []).append(place)
    if not found:
        return f"{name} does nothing here. {key_of('help')} shows what the keys do"
    told = (f"{name} ({label}) works {' and '.join(at)}" for label, at in found.items())
    return "; ".join(told)


def _uses(key: str, screen: str, tab: str) -> Iterator[tuple[str, str]]:
    """Yield (place, label) of what the key does on the tabs, then on the other screens."""
    for action in ACTIONS:
        if key in action.keys and (screen or not action.applies(tab)):
            yield _on_tabs(action.where), action.label
    for name, (place, opens) in PLACES.items():
        if name != screen:
            for entry in KEYS[name]:
                if key in names_in(entry):
                    how = f" ({key_of(opens)})" if opens else ""
                    yield f"on {place}{how}", entry.label


def _on_tabs(where: tuple[str, ...]) -> str:
    if not where:
        return f"on the tabs ({key_of('back')})"
    keys = " ".join(key_text(BY_NAME[tab].keys[0]) for tab in where)
    return f"on {BY_NAME[where[0]].label} ({keys})" if len(where) == 1 else f"on tabs {keys}"
