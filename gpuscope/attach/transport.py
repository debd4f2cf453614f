"""Makes the command that starts an agent at a target.

It begins with ssh, srun, kubectl, or the prefix that the user gave.

A command is always a list of arguments and is never run by a shell on this side. If a program joins
its arguments for a shell on the other side, as ssh does, everything after it is quoted for that
shell. All other programs pass their arguments on unchanged.
"""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass
from typing import List, Optional, Sequence, Tuple

from .bootstrap import command
from .targets import KUBERNETES, LOCAL, SLURM, SSH, BadTarget, Target, checked_host

SSH_OPTIONS = (
    ("ConnectTimeout", "10"),
    ("ServerAliveInterval", "5"),
    ("ServerAliveCountMax", "3"),
    ("ClearAllForwardings", "yes"),
    ("PermitLocalCommand", "no"),
    ("RemoteCommand", "none"),
    ("ForwardAgent", "no"),
    ("ForwardX11", "no"),
    # A master connection of the user's is used. If we opened one, it would end with us, together
    # with the sessions of all who share it.
    ("ControlMaster", "no"),
    # Compression makes a frame six times smaller; the agent's zip is compressed already.
    ("Compression", "yes"),
)
_SSH_LIKE = frozenset(("ssh", "autossh", "slogin"))
_SSH_TAKES_VALUE = frozenset("BbcDEeFIiJLlmOopPQRSWw")
_CONTAINERS = frozenset(("docker", "podman", "nerdctl", "kubectl", "oc"))


@dataclass(frozen=True)
class Route:
    """The way to reach a place.

    ``argv`` starts an agent there; ``batch_argv`` does so without asking anybody anything. ``key``
    is the place's name in the store, ``label`` its name for people, and ``program`` the name of the
    program that is started.
    """

    argv: Tuple[str, ...]
    batch_argv: Tuple[str, ...]
    key: str
    label: str
    program: str
    asks: bool
    """Whether it may ask for a password, because the command contains ssh."""


def route(target: Target, ssh: Sequence[str] = ("ssh",), python: str = "") -> Route:
    """Return the way to a target.

    For Slurm a node is needed: see :mod:`.clusters`. ``ssh`` holds the words of the ssh command.
    Raises :class:`BadTarget` and :class:`~.bootstrap.BadPython`.
    """
    inside = command(python)
    argv = [words_to(target, inside, ssh, batch) for batch in (False, True)]
    asks = (
        any(_is_ssh(word) for word in argv[0][: len(argv[0]) - len(inside)]) or target.kind == SSH
    )
    where = target.where or "local"
    return Route(tuple(argv[0]), tuple(argv[1]), where, where, os.path.basename(argv[0][0]), asks)


def words_to(
    target: Target, inside: Sequence[str], ssh: Sequence[str] = ("ssh",), batch: bool = False
) -> List[str]:
    """Return the words that run ``inside`` at a target. Raises :class:`BadTarget`."""
    if target.kind == SLURM:
        steps = ["srun", "--overlap", "--quiet", "--jobid", target.job.partition(".")[0]]
        steps += ["-w", target.node] if target.node else []
        words = [*steps, "--nodes=1", "--ntasks=1", *inside]
        words = through_ssh(target.host, words, ssh, batch) if target.host else words
    elif target.kind == KUBERNETES:
        chosen = ["-c", target.container] if target.container else []
        words = [
            "kubectl",
            "exec",
            "-i",
            "-n",
            target.namespace,
            target.pod,
            *chosen,
            "--",
            *inside,
        ]
    elif target.kind == SSH:
        words = through_ssh(target.host, inside, ssh, batch)
    elif target.kind == LOCAL and not target.via:
        raise BadTarget(f"{target.text}: this machine needs no transport.")
    else:
        words = list(inside)
    return through_prefix(target.via, words, batch) if target.via else words


def through_ssh(
    host: str, words: Sequence[str], ssh: Sequence[str] = ("ssh",), batch: bool = False
) -> List[str]:
    """Return the ssh command that runs these words on ``host``. Raises :class:`BadTarget`."""
    options = [word for name, value in SSH_OPTIONS for word in ("-o", f"{name}={value}")]
    options += ["-o", "BatchMode=yes"] if batch else []
    return [*ssh, "-T", *options, "--", checked_host(host), _join(words)]


def through_prefix(prefix: Sequence[str], words: Sequence[str], batch: bool = False) -> List[str]:
    """Return ``prefix`` with ``words`` behind it.

    The prefix is as the user wrote it. What a shell on the way would split or expand is quoted.
    """
    for index, word in enumerate(prefix):
        if _is_ssh(word) and not _is_name_of_container(prefix, index):
            end = _end_of_destination(prefix, index + 1)
            if end is None:
                raise BadTarget(f"--via: {word} needs a host after its options.")
            options = ["-o", "BatchMode=yes"] if batch else []
            rest = through_prefix(prefix[end:], words, batch)
            more = [] if "-T" in prefix[index:end] else ["-T"]
            return [*prefix[: index + 1], *more, *options, *prefix[index + 1 : end], _join(rest)]
    return [*prefix, *words]


def _join(words: Sequence[str]) -> str:
    return "exec " + " ".join(shlex.quote(word) for word in words)


def _is_ssh(word: str) -> bool:
    return os.path.basename(word) in _SSH_LIKE


def _is_name_of_container(prefix: Sequence[str], index: int) -> bool:
    """Tell whether this "ssh" is not the program but the name of a container or a pod."""
    return (
        index > 0
        and prefix[index - 1] in ("-i", "-c", "-w")
        and os.path.basename(prefix[0]) in _CONTAINERS
    )


def _end_of_destination(words: Sequence[str], index: int) -> Optional[int]:
    """Return where the command for the other side begins, after ssh's options and destination."""
    while index < len(words):
        word = words[index]
        if word == "--":
            return index + 2 if index + 1 < len(words) else None
        if not word.startswith("-") or word == "-":
            return index + 1
        takes = next(
            (place for place, letter in enumerate(word[1:], 1) if letter in _SSH_TAKES_VALUE), None
        )
        index += 2 if takes == len(word) - 1 else 1
    return None
