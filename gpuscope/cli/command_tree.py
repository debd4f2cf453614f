"""Read from the parsers of all verbs what shell completion and the manual page need.

This imports every verb, so it is itself imported only to write one of the two.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..lab.toggles import BY_NAME
from ..predict.gpus import GPUS
from . import remote
from .main import SUBVERBS, VERBS, Parser, parser

_FILE_WORDS = ("FILE", "PATH", "SCRIPT", "ARGS")
_TAKE_FILES = ("doctor", "predict", "run")
"""Verbs whose target may be a file, although the name of the target does not say so."""


@dataclass(frozen=True)
class Word:
    """An option or a positional argument.

    ``names`` is empty for a positional argument. ``value`` is the name of the value in the help, ""
    for an option without one. ``choices`` are the values to offer, where they are known.
    """

    names: tuple[str, ...]
    value: str
    may_lack_value: bool
    choices: tuple[str, ...]
    is_file: bool
    help: str


@dataclass(frozen=True)
class Command:
    """A command: the program itself, a verb, a subcommand of a verb, or an action of a subcommand.

    ``words`` are the words after ``gpuscope``. ``groups`` are the options under their headings.
    """

    words: tuple[str, ...]
    summary: str
    description: str
    epilog: str
    groups: tuple[tuple[str, tuple[Word, ...]], ...]
    arguments: tuple[Word, ...]
    below: tuple[tuple[str, str], ...]

    @property
    def options(self) -> tuple[Word, ...]:
        """All options, whatever their heading."""
        return tuple(option for _, options in self.groups for option in options)

    @property
    def place(self) -> str:
        """The words with a stroke before each: the name of the command in a completion script."""
        return "".join(f"/{word}" for word in self.words)


def commands() -> Iterator[Command]:
    """Yield every command in the order of the help, each before those below it."""
    yield _command((), "", parser(), tuple(VERBS.items()))
    for verb, summary in VERBS.items():
        second = SUBVERBS.get(verb, {})
        yield from _with_actions((verb,), summary, parser(verb), tuple(second.items()))
        for word, text in second.items():
            yield from _with_actions((verb, word), text, parser(verb, word))


def _with_actions(
    words: tuple[str, ...], summary: str, of: Parser, below: tuple[tuple[str, str], ...] = ()
) -> Iterator[Command]:
    """Yield a command and those that argparse itself knows below it."""
    actions: dict[str, argparse.ArgumentParser] = {}
    for action in of._actions:
        if isinstance(action, argparse._SubParsersAction):
            actions = dict(action.choices)
            below = tuple((one.dest, _text(one)) for one in action._choices_actions)
    yield _command(words, summary, of, below)
    for name, text in below if actions else ():
        yield _command((*words, name), text, actions[name])


def _command(
    words: tuple[str, ...],
    summary: str,
    of: argparse.ArgumentParser,
    below: tuple[tuple[str, str], ...] = (),
) -> Command:
    groups: list[tuple[str, tuple[Word, ...]]] = []
    arguments: list[Word] = []
    for group in of._action_groups:
        options: list[Word] = []
        for action in group._group_actions:
            if isinstance(action, argparse._SubParsersAction) or not _is_listed(action):
                continue
            (options if action.option_strings else arguments).append(_word(action, words))
        if options:
            groups.append((group.title or "", tuple(options)))
    return Command(
        words,
        summary,
        of.description or summary,
        of.epilog or "",
        tuple(groups),
        tuple(arguments),
        below,
    )


def _is_listed(action: argparse.Action) -> bool:
    """Say whether an option is listed. The options for reaching a host are always listed."""
    return action.help != argparse.SUPPRESS or bool({*action.option_strings} & remote.NAMES)


def _word(action: argparse.Action, words: tuple[str, ...]) -> Word:
    takes = action.nargs != 0 and not isinstance(action, argparse.BooleanOptionalAction)
    choices = tuple(map(str, action.choices or ()))
    # An option with a type of its own only shares the name with a setting of the Lab.
    toggle = BY_NAME.get(action.dest) if action.type is None else None
    if not choices and toggle is not None and toggle.flag in action.option_strings:
        choices = toggle.choices if takes else ()
    if words == ("predict",) and "--gpu" in action.option_strings:
        choices = tuple(gpu.key for gpu in GPUS)
    metavar = action.metavar or ("|".join(choices) or action.dest.upper())
    value = metavar if isinstance(metavar, str) else " ".join(metavar)
    named = action.type is Path or any(one in value for one in _FILE_WORDS)
    own = not action.option_strings and words[:1] and words[0] in _TAKE_FILES
    return Word(
        tuple(action.option_strings),
        value if takes else "",
        action.nargs in ("?", "*", argparse.REMAINDER),
        choices,
        takes and not choices and bool(named or own),
        _text(action),
    )


def _text(action: argparse.Action) -> str:
    """Return the help of an option; for one that reaches a host, that of the verb about hosts."""
    text = action.help or ""
    if text == argparse.SUPPRESS:
        text = "see gpuscope attach --help"
    # Some versions of argparse add the default to switches that can be turned off.
    return text.replace(" (default: %(default)s)", "").replace("%%", "%")
