"""Guess what an unknown verb, option or value was meant to be, and name it.

This module is imported only for a mistake, so that no verb starts later because of it.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from difflib import get_close_matches
from typing import Dict, Iterable, List

from ..errors import UsageError, UserError
from ..missing_file import MissingScript, is_missing_file
from ..wire.clean import clean

SHOWN = 80
"""How many characters of a mistyped word are repeated."""
MEANT = {
    "demo": "lab",
    "example": "lab",
    "top": "ps",
    "list": "devices",
    "gpu": "devices",
    "gpus": "devices",
    "status": "devices",
    "nvidia-smi": "devices",
    "profile": "why",
}
VERSION_WORDS = ("version", "-v", "-V")
"""Words that other programs have for one of our verbs."""
ACTIONS = {"compare": ("lab", "runs", "compare")}
"""Actions of a subcommand that are looked for as verbs."""
LAUNCHERS = re.compile(r"python[\d.]*|torchrun|accelerate|deepspeed")
"""Programs that start a trainer: `gpuscope run` was forgotten before them."""
PITFALL_WORDS = ("explain", "pitfall", "pitfalls")
RECORDINGS = (".gsr", ".gsr.gz")
SNAPSHOTS = (".pickle", ".pickle.gz", ".pkl")


def refusal(words: List[str], verbs: Iterable[str], second: Dict[str, Dict[str, str]]) -> UserError:
    """Return the error for ``words``, whose first is none of ``verbs``.

    ``second`` has the subcommands of the verbs that have some.
    """
    known = list(verbs)
    for guess in (_by_what_it_is, lambda words: _by_spelling(words, known, second)):
        found = guess(words)
        if found is not None:
            return found
    word = clean(words[0], SHOWN)
    return UsageError(f"no such verb: {word!r}. Verbs: {', '.join(known)}")


def refusal_of_second(verb: str, words: List[str], second: Iterable[str]) -> UserError:
    """Return the error for ``gpuscope VERB WORDS``, whose first word belongs to no option."""
    known = list(second)
    if is_missing_file(words[0]):
        return MissingScript(words[0])
    word = clean(words[0], SHOWN)
    near = _nearest(words[0], known)
    meant = ACTIONS.get(words[0]) or ((verb, near) if near else ())
    if meant:
        return UsageError(
            f"{verb} has no verb {word!r}. Did you mean {' '.join(meant[1:])}?",
            next=_command(*meant, *words[1:]),
        )
    return UsageError(f"{verb} has no verb {word!r}. Its verbs: {', '.join(known)}")


def nearest_word(parser: argparse.ArgumentParser, message: str) -> str:
    """Return the option or value that is spelled most like the one argparse refuses, or "".

    ``message`` is argparse's own. Only options and values that the help lists are returned.
    """
    option = re.match(r"unrecognized arguments: .*?(?<!\S)(--[\w-]+)", message)
    value = re.match(r"argument (\S+): invalid choice: '(.*?)' ", message)
    if message.removeprefix("unrecognized arguments: ") in VERSION_WORDS:
        return "--version"
    if option:
        listed = [
            name
            for action in parser._actions
            if action.help != argparse.SUPPRESS
            for name in action.option_strings
        ]
        near = _nearest(option.group(1), listed, 0.7)
        if near == option.group(1):  # after -- it is no option
            return ""
        return near or _option_with(parser, option.group(1)[2:])
    if value:
        for action in parser._actions:
            names = action.option_strings or (str(action.metavar or action.dest),)
            if action.choices and value.group(1) == "/".join(names):
                return _nearest(value.group(2), map(str, action.choices))
    return ""


def _option_with(parser: argparse.ArgumentParser, value: str) -> str:
    """Return ``--amp bf16`` for the value ``bf16``, "" where no option takes it."""
    from ..lab.toggles import BY_NAME

    for action in parser._actions:
        toggle = BY_NAME.get(action.dest)
        values = action.choices or (toggle.choices if toggle is not None else ())
        if action.help != argparse.SUPPRESS and action.option_strings and value in values:
            return f"{action.option_strings[-1]} {value}"
    return ""


def verb_after_options(prog: str, message: str, verbs: Iterable[str], typed: List[str]) -> str:
    """Return ``typed`` with its verb first, if ``message`` refuses a verb after options."""
    given = message.removeprefix("unrecognized arguments: ")
    verb = next((word for word in typed if word in verbs and given.startswith(word)), None)
    if prog != "gpuscope" or given == message or verb is None:
        return ""
    place = typed.index(verb)
    return _command(verb, *typed[:place], *typed[place + 1 :])


def _nearest(typed: str, known: Iterable[str], alike: float = 0.6) -> str:
    """Return the most alike of ``known``, "" if none is much alike.

    Options share their two hyphens, so that they need to be more alike.
    """
    near = get_close_matches(typed[:SHOWN].lower(), list(known), 1, alike)
    return near[0] if near else ""


def _by_what_it_is(words: List[str]) -> UserError | None:
    """Judge a word that names a file, a process or another host."""
    word = words[0]
    shown = clean(word, SHOWN)
    if os.path.isdir(word):
        return UsageError(
            f"{shown} is a directory, not a verb.",
            next=f"{_command('doctor', word)}    reads the scripts in it",
        )
    if os.path.isfile(word):
        return _of_a_file(words, shown)
    if word.endswith(".py"):
        return UsageError(
            f"{shown} is not a verb, and no such file exists here.",
            next="gpuscope run SCRIPT    starts a script with the probe in it",
        )
    if LAUNCHERS.fullmatch(os.path.basename(word)):
        return UsageError(
            f"{shown} is a program, not a verb.",
            next=f"{_command('run', *words)}    starts it with the probe in it",
        )
    if word.endswith((*RECORDINGS, *SNAPSHOTS)):
        return MissingScript(word)
    if word.isascii() and word.isdigit():
        if not os.path.exists(f"/proc/{int(word)}"):
            return UsageError(
                f"{shown} is not a verb, and no process here has this pid.",
                next="gpuscope ps    lists GPU processes and trainers",
            )
        return UsageError(
            f"{shown} is a process, not a verb.",
            next=f"gpuscope attach {int(word)}    shows it;    gpuscope doctor {int(word)}    "
            "examines it once",
        )
    if word in VERSION_WORDS:
        return UsageError(f"no such verb: {shown!r}. Did you mean --version?")
    if word.lower() in PITFALL_WORDS:
        asked = words[1:] or ["ID"]
        return UsageError(
            f"no such verb: {shown!r}. The doctor explains pitfalls.",
            next=f"{_command('doctor', '--explain', *asked)}    explains one;    "
            "gpuscope doctor --list    lists them",
        )
    from ..attach.targets import is_remote_word

    if is_remote_word(word):
        return UsageError(
            f"{shown} is another host, not a verb.",
            next=f"{_command('attach', *words)}    shows it;    {_command('devices', word)}    "
            "lists its GPUs once",
        )
    return None


def _of_a_file(words: List[str], shown: str) -> UsageError:
    word = words[0]
    if word.endswith(".py"):
        return UsageError(
            f"{shown} is a script, not a verb.",
            next=f"{_command('run', *words)}    starts it with the probe in it;    "
            f"{_command('doctor', word)}    only reads it",
        )
    if word.endswith(RECORDINGS):
        verb, does = "replay", "plays it"
    elif word.endswith(SNAPSHOTS):
        verb, does = "snapshot", "shows what was in memory"
    else:
        verb, does = "doctor", "reads it: a log, a recording, a snapshot"
    return UsageError(f"{shown} is a file, not a verb.", next=f"{_command(verb, word)}    {does}")


def _by_spelling(
    words: List[str], known: List[str], second: Dict[str, Dict[str, str]]
) -> UsageError | None:
    """Judge a word that is nearly a verb, or the second word of one."""
    commands = {verb: [verb] for verb in [*known, "help"]}
    commands.update({word: [verb, word] for verb, more in second.items() for word in more})
    commands.update({word: list(command) for word, command in ACTIONS.items()})
    typed = words[0][:SHOWN].lower().lstrip("-")
    near = typed if typed in commands else MEANT.get(typed) or _nearest(typed, commands)
    if not near:
        return None
    command = commands[near]
    return UsageError(
        f"no such verb: {clean(words[0], SHOWN)!r}. Did you mean {' '.join(command)}?",
        next=_command(*command, *words[1:]),
    )


def _command(*words: str) -> str:
    return clean("gpuscope " + " ".join(map(shlex.quote, words)))
