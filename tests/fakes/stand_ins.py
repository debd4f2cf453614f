"""Commands with the names and the stdio behaviour of srun, kubectl, docker, sudo and ssh.

They are for where there are none.

Each drops its own options, notes its words in ``$STAND_IN_LOG`` and becomes what it is to run; ssh
hands its words to ``sh -c`` in one string, as a login shell gets them.
"""

from __future__ import annotations

import os
from pathlib import Path

_HEAD = '#!/bin/sh\nprintf "%s\\n" "{name} $*" >> "${{STAND_IN_LOG:-/dev/null}}"\n'
_BODIES = {
    "srun": 'while :; do case "$1" in -w|--jobid) shift 2;; -*) shift;; *) break;; esac; done\n'
    'exec "$@"\n',
    "kubectl": (
        'if [ "$1" = get ]; then printf "team a-0\\nteam a-1\\n"; exit 0; fi\n'
        'while [ "$1" != -- ]; do shift; done; shift\nexec "$@"\n'
    ),
    "docker": 'while [ "$1" != -i ]; do shift; done; shift 2\nexec "$@"\n',
    "sudo": 'while :; do case "$1" in -n) shift;; -u) shift 2;; *) break;; esac; done\nexec "$@"\n',
    "ssh": (
        'while :; do case "$1" in -o|-p|-F|-l) shift 2;; --) shift; break;; -*) shift;; *) break;; '
        "esac; done\n"
        'shift\necho "Welcome to $HOSTNAME"\nexec sh -c "$*"\n'
    ),
    "squeue": 'echo "gpu[1-2]"\n',
}


def install(folder: Path) -> dict[str, str]:
    """Writes them into ``folder``; the environment in which they come first."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in _BODIES.items():
        path = folder / name
        path.write_text(_HEAD.format(name=name) + body)
        path.chmod(0o755)
    log = folder / "log"
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "STAND_IN_LOG": str(log)}
