"""Finds the places that one target means: a Slurm job's nodes, a label's pods.

It asks squeue and kubectl. Their answers are not trusted: names are checked before they become
arguments of a command.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Callable, Dict, List, Sequence

from ..exit_status import ExitStatus
from ..process import child
from ..process.child import how_it_ended
from ..wire.clean import clean
from .targets import (
    LOCAL,
    MAX_TARGETS,
    SLURM,
    BadTarget,
    Target,
    checked_node,
    checked_selector,
    pod,
    too_many,
)
from .transport import through_prefix, through_ssh

ASK_SECONDS = 20.0
MAX_ANSWER_BYTES = 1 << 20
MAX_LIST_CHARS = 64 * 1024
"""Limit of the length of a node list; 64 long names written in full need a fifth of it."""
_PIECE = re.compile(r"([^\[\]]+)|\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


class NoAnswer(BadTarget):
    """The cluster was asked for a valid target, and did not name a host."""

    exit_status = ExitStatus.UNCHECKED


Ask = Callable[[Sequence[str]], str]


def nodes_of(target: Target, ssh: Sequence[str] = ("ssh",), ask: Ask | None = None) -> List[Target]:
    """Return one target for each node of a Slurm job.

    Raises :class:`BadTarget` if there is no such job, or no Slurm.
    """
    if target.kind != SLURM or target.node:
        return [target]
    job = target.job.partition(".")[0]
    words: List[str] = ["squeue", "--noheader", "--jobs", job, "--states=RUNNING", "--format=%N"]
    words = through_ssh(target.host, words, ssh) if target.host else words
    words = through_prefix(target.via, words) if target.via else words
    answer = (ask or _ask)(words)
    names: Dict[str, None] = {}
    for line in answer.split():
        names.update(dict.fromkeys(expand(line)))
        if len(names) > MAX_TARGETS:
            raise _too_many()
    if not names:
        raise NoAnswer(f"slurm:{job}: no such running job. Next: squeue --me")
    return [replace(target, node=name) for name in names]


def pods_of(
    selector: str,
    namespace: str = "",
    container: str = "",
    via: Sequence[str] = (),
    ask: Ask | None = None,
) -> List[Target]:
    """Return one target for each running pod with this label. Raises :class:`BadTarget`."""
    words = [
        "kubectl",
        "get",
        "pods",
        "-l",
        checked_selector(selector),
        "--field-selector=status.phase=Running",
        "-o",
    ]
    words.append('jsonpath={range .items[*]}{.metadata.namespace}{" "}{.metadata.name}{"\\n"}{end}')
    words += ["-n", pod(namespace, "x").namespace] if namespace else []
    answer = (ask or _ask)(through_prefix(via, words) if via else words)
    rows = [line.split() for line in answer.splitlines() if line.strip()]
    if len(rows) > MAX_TARGETS:
        raise _too_many()
    found = [
        replace(pod(row[0], row[1], container), via=tuple(via)) for row in rows if len(row) == 2
    ]
    if not found:
        raise NoAnswer(
            f"-l {selector}: no running pod has this label. Next: kubectl get pods -l {selector}"
        )
    return found


def expand(names: str) -> List[str]:
    """Expand a Slurm node list: ``gpu[01-03,7]`` gives gpu01, gpu02, gpu03, gpu7.

    Raises :class:`BadTarget` for text that is not a node list.
    """
    if len(names) > MAX_LIST_CHARS:
        raise BadTarget(f"the cluster lists more nodes than one viewer shows ({MAX_TARGETS}).")
    found: List[str] = []
    for part in _parts(names):
        grown = [""]
        for text, ranges in _PIECE.findall(part):
            ends = [text] if text else _numbers(ranges)
            grown = [start + end for start in grown for end in ends]
            if len(grown) > MAX_TARGETS:
                raise _too_many()
        found += [checked_node(name) for name in grown]
        if len(found) > MAX_TARGETS:
            raise _too_many()
    return found


def _parts(names: str) -> List[str]:
    """Split at the commas outside of brackets.

    Raises :class:`BadTarget` if brackets are not closed or are nested.
    """
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(names + ","):
        depth += (char == "[") - (char == "]")
        if depth not in (0, 1):
            break
        if char == "," and not depth:
            parts.append(names[begin:at])
            begin = at + 1
    if depth or not all(parts):
        raise BadTarget(f"the cluster lists nodes {clean(names, 40)!r}: not a valid list.")
    return parts


def _numbers(ranges: str) -> List[str]:
    found: List[str] = []
    for part in ranges.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise BadTarget(f"the cluster lists nodes [{clean(ranges, 40)}]: not a valid range.")
        first, last = match.group(1), match.group(2) or match.group(1)
        if int(last) < int(first):
            raise BadTarget(f"the cluster lists nodes [{clean(ranges, 40)}]: not a valid range.")
        if int(last) - int(first) + len(found) >= MAX_TARGETS:
            raise _too_many()
        found += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return found


def _too_many() -> BadTarget:
    return too_many(f"more than {MAX_TARGETS} hosts")


def _ask(words: Sequence[str]) -> str:
    """Return what a command printed. Raises :class:`NoAnswer` with its error text if it fails."""
    try:
        # ssh may ask for a password
        output = child.ask(words, ASK_SECONDS, max_bytes=MAX_ANSWER_BYTES, keep_terminal=True)
    except OSError as error:
        there = " Next: slurm:JOB@LOGIN-NODE    asks that node" if words[0] == "squeue" else ""
        raise NoAnswer(
            f"cannot start {words[0]}: {error.strerror}. It is needed to find the hosts.{there}"
        ) from None
    if output.code:
        raise NoAnswer(f"{words[0]} says: {output.last_words or how_it_ended(output.code)}")
    if output.failure:
        raise NoAnswer(f"{words[0]} {output.failure}.")
    return output.output.decode("utf-8", "replace")


def resolve(
    targets: Sequence[Target], ssh: Sequence[str] = ("ssh",), ask: Ask | None = None
) -> List[Target]:
    """Return all targets as places where an agent can be started. Raises :class:`BadTarget`."""
    found: List[Target] = []
    for target in targets:
        found += [target] if target.kind == LOCAL else nodes_of(target, ssh, ask)
    if len({one.where for one in found}) > MAX_TARGETS:
        raise _too_many()
    return found
