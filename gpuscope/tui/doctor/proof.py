"""This module turns the command that proves a finding into something that the Lab can do.

That is a demonstration script, switches, two settings to measure against each other, or claims.
It is pure; commands that are not the Lab's are answered with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from ...lab.config import ConfigError, LabConfig, add_toggles

if TYPE_CHECKING:
    from pathlib import Path

    from ...doctor.finding import Finding, Pitfall

NO_PROOF = "cannot be reproduced here"
_AGAINST = re.compile(r"\s+against\s+")
_ASIDE = re.compile(r"\s{2,}")
"""Behind a command and two blanks stands what it shows."""


@dataclass(frozen=True, slots=True)
class Proof:
    """A proof that the Lab can carry out.

    ``text`` is how it is shown. Exactly one of the others is set: ``pitfall``, the name of a
    script; ``configs``, switches to set, or two settings to measure against each other;
    ``words``, another verb of the Lab after ``gpuscope``.
    """

    text: str
    pitfall: str = ""
    configs: tuple[LabConfig, ...] = ()
    words: tuple[str, ...] = ()


def proof_of(finding: Finding, row: Pitfall | None, file: Path | None = None) -> Proof | str:
    """Return how the Lab proves a finding, or in words why it cannot.

    It is the finding's own command, else that of its pitfall. A finding in the recording ``file``
    is of processes that are gone: outside the Lab, only the file shows it again.
    """
    texts = [text for text in (finding.verify, row.verify if row else "") if text]
    for text in texts:
        proof = parse_proof(text)
        if proof is not None:
            return proof
    if texts and file is not None:
        return f"outside the Lab: gpuscope doctor {shlex.quote(_from_here(file))}"
    return f"outside the Lab: {_ASIDE.split(texts[0])[0]}" if texts else NO_PROOF


def _from_here(file: Path) -> str:
    """Return how the file is named from the current folder, whole where it is not below it."""
    short = os.path.relpath(file)
    return str(file) if short.startswith(os.pardir) else short


def parse_proof(text: str) -> Proof | None:
    """Parse a command line of the Lab, and return None for any other."""
    commands = [_ASIDE.split(part.strip())[0] for part in _AGAINST.split(text)]
    try:
        words = [shlex.split(command) for command in commands]
    except ValueError:
        return None
    if not words or any(line[:2] != ["gpuscope", "lab"] for line in words):
        return None
    first = words[0][2:]
    if first[:1] == ["pitfall"] and len(first) == 2:
        return Proof(text, pitfall=first[1])
    if first[:1] in (["claims"], ["sweep"]):
        return Proof(text, words=tuple(words[0][1:]))
    try:
        configs = tuple(map(_config, (line[2:] for line in words)))
    except (ConfigError, ValueError):
        return None
    return Proof(text, configs=configs)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def _config(words: list[str]) -> LabConfig:
    parser = _Parser(add_help=False)
    add_toggles(parser)
    for flag in ("--headless", "--json"):
        parser.add_argument(flag, action="store_true")
    return LabConfig.from_arguments(parser.parse_args(words))
