"""This module has the short names of processes: what people call a command or a script."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache

from ..wire.clean import limited

MAX_TITLE_CHARS = 60
LAB, PIECE_OF_CODE = "gpuscope lab", "python -c"
_INTERPRETER = re.compile(r"python[0-9.]*$")
_OPTIONS_WITH_VALUE = ("-X", "-W")
_LAUNCHERS = ("torchrun", "accelerate", "deepspeed")
"""Programs that start a script or, with ``-m``, a module, which their trainings are called by."""
_PYTHON = re.compile(r"python[0-9.]*$|torchrun$")
_LAB = re.compile(r"(?:^|[\s/])gpuscope[./]lab[./](?:worker|rank)(?:\.py)?(?:\s|$)")
_MODEL = re.compile(r'"model": ?("(?:[^"\\]|\\.){1,200}")')
_START = re.compile(r"\S*python[0-9.]*(?: -[A-Za-z]+)* ")


@lru_cache(maxsize=4096)
def short_command(command: str) -> str:
    """Shorten a command to the name that people use.

    ``/opt/bin/python -u train.py --lr 1`` becomes ``train.py``, and ``python -m a.b`` becomes
    ``a.b``. What follows a program is its own: ``python bin/pytest -m slow`` becomes ``pytest``.
    """
    words = command.split()
    if not words:
        return command
    program = words[0].rsplit("/", 1)[-1]
    if not _PYTHON.match(program):
        return limited(program, MAX_TITLE_CHARS)
    for before, word in zip(words, words[1:]):
        if before == "-m":
            return LAB if _LAB.search(word) else limited(word, MAX_TITLE_CHARS)
        if before == "-c":
            return PIECE_OF_CODE
        if word == "-":
            break
        if word.endswith(".py"):
            return short_script(word)
        if not word.startswith("-") and before not in _OPTIONS_WITH_VALUE:
            name = word.rsplit("/", 1)[-1]
            if _INTERPRETER.match(program) and name not in _LAUNCHERS:
                return limited(name, MAX_TITLE_CHARS)
            program = name if _INTERPRETER.match(program) else program
    return limited(program, MAX_TITLE_CHARS)


@lru_cache(maxsize=4096)
def short_script(script: str | None) -> str:
    """Return the name of a trainer's script without its folders; "trainer" where it has none."""
    if script == "-c":
        return PIECE_OF_CODE
    if script and _LAB.search(script):
        return LAB
    return limited((script or "").rsplit("/", 1)[-1], MAX_TITLE_CHARS) or "trainer"


def short_place(place: str) -> str:
    """Return a line of code and its function without the folder: ``train.py:14 main``."""
    path, space, function = place.partition(" ")
    return path.rpartition("/")[2] + space + function


def behind_options(words: Sequence[str]) -> int:
    """Return the index of what a command of Python runs: its script, ``-c``, ``-m`` or ``-``.

    It is the number of words where the command has options alone.
    """
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-", "-c", "-m"):
        at += 2 if words[at] in _OPTIONS_WITH_VALUE else 1
    return at


@lru_cache(maxsize=4096)
def shown_command(command: str) -> str:
    """Return a command as a line shows it: from the script on, without the interpreter before it.

    ``/opt/bin/python -u src/train.py --lr 1`` becomes ``train.py --lr 1``, and ``python -m a.b x``
    becomes ``a.b x``. A run of the Lab is called by its model, without all its switches.
    """
    if _START.match(command) and _LAB.search(command):
        model = _MODEL.search(command)
        return f"{LAB} {json.loads(model[1])}" if model is not None else LAB
    words = command.split(" ")
    if not _INTERPRETER.match(words[0].rsplit("/", 1)[-1]):
        return command
    at = behind_options(words)
    if at >= len(words) or words[at] == "-":
        return command
    if words[at] == "-c":
        return " ".join(("python", *words[at:]))
    if words[at] == "-m":
        return " ".join(words[at + 1 :]) or command
    return " ".join((words[at].rsplit("/", 1)[-1] or words[at], *words[at + 1 :]))
