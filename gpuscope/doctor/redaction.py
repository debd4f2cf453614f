"""Take names of users, hosts and paths out of documents that are shown to somebody else.

What a support bundle and a report have in common is defined here. Free text goes through the
redactor of recordings.
"""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping
from typing import Any

from ..wire.redact import Redactor
from . import table

_SYSTEM = re.compile(
    r"(/dev/shm\b|/proc/(?:meminfo|self|sys/[\w/]+|driver/nvidia[\w/]*)|/sys/fs/cgroup/(?:memory|cpu)\.[\w.]+)"
)
"""Paths that are the same on every machine and need no redaction."""
_UUID = re.compile(r"\b(GPU|MIG)-[0-9a-f]{4,8}-[0-9a-f-]{4,40}", re.I)
_PROGRAM = re.compile(r"python[0-9.]*|pt_main_thread|torchrun")
_NCCL_HOST = re.compile(r"[\w.-]+(?=:\d+:\d+ \[\d+\] NCCL)")


class DocumentRedactor:
    """Remove names of users, hosts and paths from strings.

    Strings that occur in the pitfall table are left unchanged.
    """

    def __init__(self) -> None:
        self._redactor = Redactor()
        self._public = {
            text
            for row in table.load().values()
            for fix in row.fixes
            for text in (fix.code, fix.command, fix.before)
        }
        host = socket.gethostname()
        for kind, name in (("host", host), ("host", host.partition(".")[0]), ("user", _user())):
            self.hide(kind, name)

    def hide(self, kind: str, name: str) -> None:
        """Replace this name from now on, unless it is a word that names nobody."""
        if len(name) > 2 and name not in ("root", "localhost") and not _PROGRAM.fullmatch(name):
            self._redactor.hide(kind, name)

    def hide_hosts_of(self, job: Mapping[str, Any]) -> None:
        """Hide the hosts of a dead job, and what its folder is called, wherever they are named."""
        rows = [*job["suspects"], *job["ranks"], *job["clocks"]]
        for host in {str(row["host"]) for row in rows if row["host"]} - {"localhost"}:
            if len(host) > 2:
                self._redactor.hide("host", host)
        if len(str(job["name"])) > 2:
            self._redactor.hide("path", str(job["name"]))

    def everything(self, value: Any) -> Any:
        """Return a JSON value with its strings redacted; keys are ours and stay."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {key: self.everything(item) for key, item in value.items()}
        return (
            [self.everything(item) for item in value] if isinstance(value, (list, tuple)) else value
        )

    def text(self, text: str) -> str:
        """Return a text without names; one of the pitfall table is left as it is."""
        if text in self._public:
            return text
        text = _NCCL_HOST.sub("<host>", _UUID.sub(r"\1-…", text))
        pieces = _SYSTEM.split(text)
        return "".join(
            piece if number % 2 else self._redactor.text(piece)
            for number, piece in enumerate(pieces)
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""
