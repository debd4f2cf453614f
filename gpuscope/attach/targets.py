"""What a target on the command line means, and which ones never reach a command.

The forms are ``PID`` · ``HOST`` · ``USER@HOST`` · either of the last two with ``:PID`` ·
``slurm:JOB[.STEP][@[USER@]LOGIN][:PID]`` · ``k8s:NAMESPACE/POD[/CONTAINER][:PID]``. Names come from
people, from files, from Slurm and from Kubernetes. Each must match a pattern that allows no option,
no white space, no control character and nothing that a shell would interpret.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, replace
from typing import Iterable, List, Optional, Sequence, Tuple

from ..errors import UsageError
from ..text.units import bytes_text
from ..wire.clean import clean

LOCAL, SSH, SLURM, KUBERNETES, PREFIX = "local", "ssh", "slurm", "kubernetes", "prefix"

MAX_TARGETS = 64
"""Limit of the hosts in one viewer. More ssh clients take half a gigabyte, and no screen shows
them.
"""
MAX_HOSTS_FILE_BYTES = 256 * 1024
MAX_PREFIX_CHARS = 4096
MAX_PID = 1 << 22

_NAME = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_])?\.?"
_HOST = re.compile(_NAME)
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+-]{0,63}(?:[@\\][A-Za-z0-9._-]{1,64})?\$?")
_POD = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?")
_JOB = re.compile(r"[0-9]{1,12}(?:_[0-9]{1,9})?(?:\+[0-9]{1,6})?(?:\.[0-9]{1,9})?")
_SELECTOR = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*)(?:=|==|!=)?(?:[A-Za-z0-9._-]*)(?:,[A-Za-z0-9._/=!-]+)*"
)
_DIGITS = re.compile(r"[0-9]{1,12}")


class BadTarget(UsageError):
    """A target that is refused. The text says in a whole sentence what to write instead."""


@dataclass(frozen=True)
class Target:
    """The place where an agent is to run, and the process there, if one is meant.

    ``host`` is what ssh gets, with its user; for Slurm it is the login node, "" for this one.
    ``via`` holds the words that are put in front of the command.
    """

    kind: str
    text: str
    host: str = ""
    pid: Optional[int] = None
    job: str = ""
    node: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    via: Tuple[str, ...] = ()

    @property
    def is_remote(self) -> bool:
        """Whether anything has to be started to get there."""
        return self.kind != LOCAL or bool(self.via)

    @property
    def where(self) -> str:
        """Return the place without the process. Targets with the same place share one agent."""
        place = {
            SSH: self.host,
            SLURM: f"slurm:{self.job}"
            + (f"@{self.host}" if self.host else "")
            + (f" {self.node}" if self.node else ""),
            KUBERNETES: f"k8s:{self.namespace}/{self.pod}"
            + (f"/{self.container}" if self.container else ""),
        }.get(self.kind, "")
        return " ".join(part for part in (" ".join(self.via), place) if part)

    def words_for(self, pid: int) -> str:
        """Return what every verb that takes a process understands as this one of the place.

        What was typed may have been the name of a job, a launcher or a whole host.
        """
        if self.kind in (LOCAL, PREFIX):
            word = str(pid)
        else:
            place = self.text.rpartition(":")[0] if self.pid is not None else self.text
            word = shlex.quote(f"{place}:{pid}")
        return f"{word} --via {shlex.quote(shlex.join(self.via))}" if self.via else word


def parse(text: str) -> Target:
    """Return the target that a word means. Raises :class:`BadTarget`."""
    shown = clean(text, 100)
    if not text or text != text.strip():
        raise BadTarget(f"a target is empty, or begins or ends with a space: {shown!r}.")
    if text.isascii() and text.isdigit():  # never a host, even if it is too long for a pid
        return Target(LOCAL, text, pid=_pid(text, shown))
    if text.startswith("slurm:"):
        return _slurm(text, shown)
    if text.startswith(("k8s:", "kubernetes:")):
        return _kubernetes(text, shown)
    if "://" in text:
        raise BadTarget(
            f"{shown}: not an address gpuscope accepts. Put the port in ~/.ssh/config, or use: "
            "--via 'ssh -p PORT HOST'"
        )
    place, pid = _split_pid(text, shown)
    return Target(SSH, text, host=checked_host(place, shown), pid=pid)


def parse_all(texts: Sequence[str], hosts_files: Iterable[str] = (), via: str = "") -> List[Target]:
    """Return all targets of a command line; each place with each process once.

    ``via`` is put in front of every one; without a target it is a target itself. Raises
    :class:`BadTarget`.
    """
    words = prefix_words(via) if via else ()
    found = [parse(text) for text in texts]
    for path in hosts_files:
        found += read_hosts_file(path)
    if words:
        found = [replace(one, via=words) for one in found] or [Target(PREFIX, via, via=words)]
    unique = list(dict.fromkeys(found))
    places = {one.where for one in unique}
    if len(places) > MAX_TARGETS:
        raise too_many(f"{len(places)} hosts")
    return unique


def too_many(what: str) -> BadTarget:
    """Return the message for more places than one viewer shows, with what can show them."""
    return BadTarget(
        f"{what}: one viewer shows at most {MAX_TARGETS}; nothing was started. Next: gpuscope "
        "export    on each host, for Prometheus and the Grafana dashboard of demos/fleet/, which "
        "have no such limit"
    )


def read_hosts_file(path: str) -> List[Target]:
    """Return the targets of a file that has one per line. Raises :class:`BadTarget`.

    Blank lines and anything after ``#`` are ignored.
    """
    shown = clean(path, 200)
    try:
        with open(path, "rb") as stream:
            data = stream.read(MAX_HOSTS_FILE_BYTES + 1)
    except OSError as error:
        raise BadTarget(f"hosts file {shown}: {error.strerror}.") from None
    if len(data) > MAX_HOSTS_FILE_BYTES:
        raise BadTarget(f"hosts file {shown}: larger than {bytes_text(MAX_HOSTS_FILE_BYTES)}.")
    found = []
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            try:
                found.append(parse(text))
            except BadTarget as error:
                raise BadTarget(f"{shown}:{number}: {error}") from None
    if not found:
        raise BadTarget(f"hosts file {shown}: it names no host.")
    return found


def prefix_words(text: str) -> Tuple[str, ...]:
    """Return the words of ``--via``, split as a shell would. Raises :class:`BadTarget`."""
    shown = clean(text, 100)
    if len(text) > MAX_PREFIX_CHARS or any(char in text for char in "\0\n\r"):
        raise BadTarget(f"--via {shown!r}: too long, or more than one line.")
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise BadTarget(f"--via {shown!r}: {error}.") from None
    if not words or words[0].startswith("-"):
        raise BadTarget(
            f"--via {shown!r}: must begin with a command, such as --via 'docker exec -i NAME'."
        )
    return words


def checked_host(text: str, shown: str = "") -> str:
    """Return ``[USER@]HOST`` if it is safe on ssh's command line.

    Raises :class:`BadTarget` if it may not; then ssh is not started.
    """
    shown = shown or clean(text, 100)
    user, at, host = text.rpartition("@")
    if at and not _USER.fullmatch(user):
        raise BadTarget(f"{shown}: not a valid user name for ssh. Nothing was started.")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if _HOST.fullmatch(bare):
        return f"{user}{at}{bare}"
    import ipaddress  # imported here because it is seldom needed

    try:
        address = bare.partition("%")[0]
        ipaddress.IPv6Address(address)
        zone = bare[len(address) :]
        if zone and not re.fullmatch(r"%[A-Za-z0-9._-]{1,32}", zone):
            raise ValueError
    except ValueError:
        why = (
            "it looks like an option"
            if bare.startswith("-")
            else "only letters, digits, '.', '_' and '-' are allowed"
        )
        raise BadTarget(f"{shown}: not a host name ({why}). Nothing was started.") from None
    return f"{user}{at}{bare}"


def checked_selector(text: str) -> str:
    """Return a label selector for kubectl (``-l``) if it is valid. Raises :class:`BadTarget`."""
    if len(text) > 512 or not _SELECTOR.fullmatch(text):
        raise BadTarget(
            f"-l {clean(text, 100)}: not a label selector such as app=trainer. Nothing was started."
        )
    return text


def checked_node(text: str) -> str:
    """Return the name of a cluster's node if it is valid. Raises :class:`BadTarget`."""
    if not _HOST.fullmatch(text):
        raise BadTarget(
            f"the cluster lists a node {clean(text, 60)!r}: not a name. Nothing was started there."
        )
    return text


def pod(namespace: str, name: str, container: str = "") -> Target:
    """Return the target of a pod from kubectl's name for it. Raises :class:`BadTarget`."""
    for part in (namespace, name, *([container] if container else [])):
        if not _POD.fullmatch(part):
            raise BadTarget(f"{clean(part, 60)!r}: not a Kubernetes name. Nothing was started.")
    text = f"k8s:{namespace}/{name}" + (f"/{container}" if container else "")
    return Target(KUBERNETES, text, namespace=namespace, pod=name, container=container)


def is_remote_word(text: str) -> bool:
    """Tell whether a word that could also be a file name means a target elsewhere.

    It does if it contains a user, a process or the scheme of a cluster, and there is no such file.
    """
    if os.path.lexists(text) or "/" in text.partition(":")[0]:
        return False
    scheme = text.startswith(("slurm:", "k8s:", "kubernetes:"))
    return scheme or bool(re.match(r"[^@/\s]+@[^@/]|[^@/\s]+:[0-9]+$", text))


def _slurm(text: str, shown: str) -> Target:
    rest, _, login = text[len("slurm:") :].partition("@")
    pid = None
    if login:
        login, pid = _split_pid(login, shown)
        login = checked_host(login, shown)
    else:
        rest, pid = _split_pid(rest, shown)
    if not _JOB.fullmatch(rest):
        raise BadTarget(f"{shown}: not a Slurm job, such as slurm:4242 or slurm:4242@LOGIN-NODE.")
    return Target(SLURM, text, host=login, pid=pid, job=rest)


def _kubernetes(text: str, shown: str) -> Target:
    rest, pid = _split_pid(text.partition(":")[2], shown)
    parts = rest.split("/")
    if len(parts) not in (2, 3):
        raise BadTarget(f"{shown}: write k8s:NAMESPACE/POD, or k8s:NAMESPACE/POD/CONTAINER.")
    return replace(pod(*parts), text=text, pid=pid)


def _split_pid(text: str, shown: str) -> Tuple[str, Optional[int]]:
    """Split ``HOST:PID``.

    Colons of an IPv6 address belong to the host, unless the address is in brackets.
    """
    place, colon, last = text.rpartition(":")
    if not colon or (":" in place and not place.endswith("]")):
        return text, None
    if not _DIGITS.fullmatch(last):
        raise BadTarget(f"{shown}: a pid must follow the colon.")
    return place, _pid(last, shown)


def _pid(text: str, shown: str) -> int:
    if len(text) > 12 or not 0 < int(text) < MAX_PID:
        raise BadTarget(f"{shown}: no process can have this pid.")
    return int(text)
