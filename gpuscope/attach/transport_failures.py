"""Says why an agent could not be started over a route, and whether to try again.

The messages that ssh, srun, kubectl and sh write to standard error may change between versions. So
they only decide which of our explanations is shown, together with their own last line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Tuple

from .bootstrap import DAMAGED, NO_PYTHON, OLD_PYTHON


@dataclass(frozen=True)
class FailureKind:
    """The meaning of the end of a route's command.

    ``kind`` is one word; ``text`` says what happened, and the next command. ``again`` says whether
    another try may succeed.
    """

    kind: str
    text: str
    again: bool


_OF_SSH: Tuple[Tuple[str, str, str, bool], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        "host_key_changed",
        "its host key differs from the one you know: somebody may be intercepting the "
        "connection. Next: ask its administrator, then ssh-keygen -R HOST",
        False,
    ),
    (
        r"Host key verification failed|No .* host key is known|authenticity of host",
        "host_key",
        "its host key is unknown here. Next: ssh HOST, once, and compare the fingerprint",
        False,
    ),
    (
        r"Too many authentication failures",
        "auth",
        "too many keys were offered. Next: IdentitiesOnly in ~/.ssh/config",
        False,
    ),
    (
        r"Permission denied|Authentication failed|No supported authentication methods"
        r"|no mutual signature",
        "auth",
        "permission denied. Next: ssh HOST, in a terminal, which may ask for a password; or add "
        "a key to ssh-agent. Not retried, so that you are not locked out",
        False,
    ),
    (
        r"Could not resolve hostname|Name or service not known",
        "unknown_host",
        "no host has this name. Next: check its name; ssh -G HOST shows what ssh makes of it",
        False,
    ),
    (
        r"Bad configuration option|Bad owner or permissions|terminating, \d+ bad config",
        "config",
        "ssh rejects its configuration. Next: ssh -G HOST",
        False,
    ),
    (r"Connection refused", "refused", "no ssh server listens there", True),
    (r"timed out|timeout", "timeout", "it does not answer", True),
    (
        r"No route to host|Network is unreachable|Host is down",
        "unreachable",
        "there is no network route to it",
        True,
    ),
    (
        r"kex_exchange_identification|Connection (closed|reset)|MaxStartups|Broken pipe"
        r"|not responding",
        "closed",
        "it ended the connection; it may have too many at once",
        True,
    ),
)


def judge(program: str, code: int, stderr: str) -> FailureKind:
    """Return what the end of a route's command means, if it ended before an agent said hello.

    ``code`` is its exit code, negative for a signal. ``stderr`` is the end of what it wrote;
    whoever shows it must clean it.
    """
    if code == OLD_PYTHON:
        return FailureKind(
            "old_python",
            "its Python is too old: 3.8 or newer is needed. "
            "Next: --remote-python PATH, of a newer one",
            False,
        )
    if code == NO_PYTHON or re.search(r"python3?: (?:command )?not found", stderr):
        return FailureKind(
            "no_python", "no python3 was found there. Next: --remote-python PATH", False
        )
    if code == DAMAGED and "gpuscope:" in stderr:
        return FailureKind("damaged", "the agent arrived incomplete", True)
    if code == 255 or program == "ssh":
        for pattern, kind, text, again in _OF_SSH:
            if re.search(pattern, stderr, re.I):
                return FailureKind(kind, text, again)
    for pattern, kind, text in _OF_OTHERS.get(program, ()):
        if re.search(pattern, stderr, re.I):
            return FailureKind(kind, text, False)
    if code in (126, 127):
        return FailureKind("not_found", f"{program} could not start the given command", False)
    return FailureKind("ended", "", True)


_OF_OTHERS = {
    "sudo": (
        (
            r"a password is required|not allowed|not in the sudoers",
            "auth",
            "sudo -n cannot ask for a password. Next: sudo -v, or a rule with NOPASSWD",
        ),
    ),
    "srun": (
        (
            r"Invalid job id|already completed|Access/permission denied"
            r"|Unable to confirm allocation",
            "job",
            "you have no such running Slurm job. Next: squeue --me",
        ),
    ),
    "kubectl": (
        (
            r"connection to the server|unable to connect|connection refused|i/o timeout",
            "cluster",
            "kubectl does not reach its cluster. Next: kubectl cluster-info",
        ),
        (
            r"NotFound|not found|Forbidden|Unauthorized|refused",
            "pod",
            "there is no such pod, or you may not enter it. Next: kubectl get pods",
        ),
    ),
    "docker": (
        (
            r"cannot connect to the docker daemon",
            "daemon",
            "Docker does not run there. Next: docker info",
        ),
        (
            r"No such container|is not running|permission denied",
            "container",
            "you can see no such running container. Next: docker ps",
        ),
    ),
    "podman": (
        (
            r"no such container|no container|not running",
            "container",
            "you can see no such running container. Next: podman ps",
        ),
    ),
}
