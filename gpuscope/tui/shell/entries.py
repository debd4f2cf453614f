"""These are the entries of the registry of keys: actions of the tabs, and keys elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

GROUPS = ("Screens", "Move", "View", "Trainer", "Lab", "Past", "Program")


class Action(NamedTuple):
    """One thing that a user can do, and the keys for it.

    ``keys`` are Textual key names, the first one is shown. ``where`` lists the tabs it acts on,
    empty for all. ``needs`` names a capability of the session, "" for none: where it is missing,
    the key says why. ``footer`` is the place in the footer, 0 for not shown there: the
    lowest come first and stay when there is little room.
    """

    name: str
    keys: tuple[str, ...]
    label: str
    help: str
    group: str
    where: tuple[str, ...] = ()
    needs: str = ""
    footer: int = 0
    on_tab: Mapping[str, str] = MappingProxyType({})
    """What it does on one tab, where that is not what ``help`` says."""
    hidden: tuple[str, ...] = ()
    """Those of its keys that work and that no text names: keys of other programs, former keys."""

    def help_on(self, tab: str) -> str:
        return self.on_tab.get(tab, self.help)

    def applies(self, tab: str) -> bool:
        return not self.where or tab in self.where


def action(
    group: str,
    name: str,
    keys: str,
    label: str,
    does: str,
    where: str = "",
    needs: str = "",
    footer: int = 0,
    on_tab: Mapping[str, str] = MappingProxyType({}),
    hidden: str = "",
) -> Action:
    """Return an action; the names in ``keys``, ``where`` and ``hidden`` are separated by blanks."""
    names, tabs, silent = (tuple(text.split()) for text in (keys, where, hidden))
    return Action(name, names, label, does, group, tabs, needs, footer, on_tab, silent)


class Key(NamedTuple):
    """One entry of a screen: a key, or several that belong together such as ``<`` and ``>``.

    ``binds`` are pairs of key names, with commas between them, and of the Textual action that they
    carry out. ``footer`` is the order in the line at the bottom, 0 for not shown there; ``still``
    is the word there while the screen stands still, where such keys come first. ``needs`` names an
    action of :data:`ACTIONS` that the session must be able to carry out, or "live" where a
    recording has nobody to ask; ``when`` is a state of the screen outside which the key does
    nothing; see ``key_states``. With ``via`` the named widget has the key, and this screen only
    says what comes of it.
    """

    binds: tuple[tuple[str, str], ...]
    label: str
    help: str
    footer: int = 0
    shown: str = ""
    needs: str = ""
    when: str = ""
    via: str = ""
    still: str = ""
    hidden: tuple[str, ...] = ()
    """Those of its keys that work and that no text names: keys of other programs, former keys."""


class Hint(NamedTuple):
    """A key as the line at the bottom names it.

    ``action`` is what a click carries out, and ``second`` what one on the second of two keys does.
    """

    keys: str
    label: str
    action: str = ""
    second: str = ""


def one(
    keys: str,
    action: str,
    label: str,
    does: str,
    footer: int = 0,
    needs: str = "",
    when: str = "",
    via: str = "",
    shown: str = "",
    hidden: str = "",
) -> Key:
    """Return an entry with a single action."""
    silent = tuple(hidden.split())
    return Key(((keys, action),), label, does, footer, shown, needs, when, via, hidden=silent)


def two(
    keys: str,
    action: str,
    other_keys: str,
    other_action: str,
    label: str,
    does: str,
    footer: int = 0,
    when: str = "",
    shown: str = "",
    still: str = "",
    hidden: str = "",
) -> Key:
    """Return an entry with two actions that belong together."""
    binds, silent = ((keys, action), (other_keys, other_action)), tuple(hidden.split())
    return Key(binds, label, does, footer, shown, when=when, still=still, hidden=silent)
