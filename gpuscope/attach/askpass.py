"""Answers what ssh asks (password, passphrase, host key) with what the user types.

The ssh that we start has no terminal. Instead it runs a program of two lines, which passes the
question on over a socket and prints the answer. The socket is in a directory that only its owner
may enter. No secret is in an argument, a variable or a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
import struct
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from typing import Callable, Dict, Optional, Set

from ..wire.clean import clean

MAX_QUESTION_BYTES = 8192
MAX_QUESTION_CHARS = 1000
ASKING_SECONDS = 5.0
"""How long the helper program may take to send its question."""
MAX_QUESTIONS = 16
"""Limit of the questions on one way to a place: a host key, some passphrases and passwords, each
tried three times. A hostile server may ask without end, and the user should not have to answer
that.
"""
MAX_QUESTION_LINES = 12
_FOLDER = "gpuscope-ask-"
_LEFT = re.compile(_FOLDER + "[0-9]{1,9}-[A-Za-z0-9_]{4,16}")
_HOST_KEY = re.compile(r"authenticity of .* \(yes/no|^Please type 'yes'", re.S)

_HELPER = """\
#!/bin/sh
exec %(python)s -I -S -c '
import os, socket, sys, json
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
kind = os.environ.get("SSH_ASKPASS_PROMPT", "")
place = os.environ.get("GPUSCOPE_ASK", "")
asked = {"prompt": " ".join(sys.argv[2:])[:1200], "kind": kind, "place": place}
link.sendall(json.dumps(asked).encode() + bytes([10]))
answer = b""
while not answer.endswith(bytes([10])):
    piece = link.recv(4096)
    if not piece:
        sys.exit(1)
    answer += piece
os.write(1, answer)
' %(path)s "$@"
"""


@dataclass(frozen=True)
class SshQuestion:
    """A question that ssh asks on the way to ``place``. Its text may come from the server.

    ``secret``: the answer is not shown. ``confirm``: the answer is yes or no. ``notice``: no answer
    is expected, as for "touch your key". ``again``: the same question was answered before on this
    try, and that answer was not accepted.
    """

    prompt: str
    secret: bool
    confirm: bool
    notice: bool
    place: str = ""
    again: bool = False


Answerer = Callable[[SshQuestion], Optional[str]]
"""A function that returns the answer, or None to refuse. It is called on a thread of its own, one
question at a time.
"""


class Questions:
    """The questions on the way to one place. ``environment`` makes ssh ask us.

    ``pending`` counts the questions that wait for an answer. After somebody has refused, or after
    too many questions, nobody is asked any more until :meth:`begin`.
    """

    def __init__(self, environment: Dict[str, str], label: str) -> None:
        self.environment = environment
        self.label = label
        self.pending = 0
        self.refused_seconds: Optional[float] = None
        """The monotonic time at which somebody refused; None if nobody has."""
        self._count = 0
        self._answered: Set[str] = set()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Begin a new try to connect, on which questions may be asked again."""
        with self._lock:
            self._count, self.refused_seconds = 0, None
            self._answered.clear()

    def put(self, question: SshQuestion, one: threading.Lock, answer: Answerer) -> Optional[str]:
        """Return the answer, after the question has had its turn."""
        with self._lock:
            self._count += 1
            if self._count > MAX_QUESTIONS:
                self._refuse()
            self.pending += 1
        try:
            with one:
                question = replace(
                    question, again=question.secret and question.prompt in self._answered
                )
                given = answer(question) if self.refused_seconds is None else None
                self._answered.add(question.prompt)
        finally:
            with self._lock:
                self.pending -= 1
        if given is None and not question.notice:
            with self._lock:
                self._refuse()
        return given

    def _refuse(self) -> None:
        if self.refused_seconds is None:
            self.refused_seconds = time.monotonic()


class Askpass:
    """A context manager that opens the socket for all questions of this program."""

    def __init__(self, answer: Answerer) -> None:
        _sweep(tempfile.gettempdir())
        self._answer = answer
        self._one = threading.Lock()
        self._places: Dict[str, Questions] = {}
        self._folder = tempfile.mkdtemp(prefix=f"{_FOLDER}{os.getpid()}-")  # 0700
        path = os.path.join(self._folder, "s")
        self._program = os.path.join(self._folder, "askpass")
        descriptor = os.open(
            self._program, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o700
        )
        with os.fdopen(descriptor, "w") as stream:
            stream.write(_HELPER % {"python": _quote(sys.executable), "path": _quote(path)})
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(path)
        self._socket.listen(16)
        threading.Thread(target=self._serve, name="askpass", daemon=True).start()

    def place(self, label: str) -> Questions:
        """Return the object that handles the questions on the way to ``label``."""
        key = str(len(self._places))
        # Before OpenSSH 8.4, ssh runs an askpass program only if DISPLAY is set.
        environment = {
            "SSH_ASKPASS": self._program,
            "SSH_ASKPASS_REQUIRE": "force",
            "GPUSCOPE_ASK": key,
        }
        if not os.environ.get("DISPLAY"):
            environment["DISPLAY"] = ":gpuscope"
        self._places[key] = questions = Questions(environment, label)
        return questions

    def close(self) -> None:
        """Answer no more questions and remove the files."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Askpass:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self) -> None:
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(
                target=self._one_question, args=(link,), name="askpass question", daemon=True
            ).start()

    def _one_question(self, link: socket.socket) -> None:
        with link:
            try:
                _, uid, _ = struct.unpack(
                    "3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
                )
                link.settimeout(ASKING_SECONDS)
                body = _read(link) if uid == os.geteuid() else None
                questions = self._places.get(str(body.get("place"))) if body is not None else None
                if body is None or questions is None:
                    return
                link.settimeout(None)
                answer = questions.put(_question(body, questions.label), self._one, self._answer)
                if answer is not None:
                    link.sendall(answer.partition("\n")[0].encode() + b"\n")
            except (OSError, ValueError, RecursionError):
                return  # ssh has given up meanwhile


def _read(link: socket.socket) -> Optional[Dict[str, object]]:
    data = b""
    while not data.endswith(b"\n"):
        piece = link.recv(4096)
        if not piece or len(data) > MAX_QUESTION_BYTES:
            return None
        data += piece
    body = json.loads(data.decode("utf-8", "replace"))
    return body if isinstance(body, dict) else None


def _question(body: Dict[str, object], place: str) -> SshQuestion:
    prompt, kind = str(body.get("prompt", "")), body.get("kind", "")
    lines = [clean(line) for line in prompt.splitlines() if line.strip()]
    text = "\n".join(lines[:MAX_QUESTION_LINES])[:MAX_QUESTION_CHARS]
    confirm = bool(_HOST_KEY.search(prompt)) or kind == "confirm"
    return SshQuestion(text, not confirm and kind != "none", confirm, kind == "none", place)


def _sweep(temporary: str) -> None:
    """Remove the sockets that killed programs of our user have left behind."""
    try:
        names = [name for name in os.listdir(temporary) if _LEFT.fullmatch(name)]
    except OSError:
        return
    for name in names:
        folder = os.path.join(temporary, name)
        try:
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            if not os.path.exists(f"/proc/{name.split('-')[2]}") and not _listens(
                os.path.join(folder, "s")
            ):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue


def _listens(path: str) -> bool:
    """Tell whether a process listens on this socket.

    Looking for the process by its pid would not do: in a container that shares this directory it
    would not be visible from here.
    """
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(0.2)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            return True
    return True


def _quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
