"""Run programs in forks of one process that has imported torch.

That process has also made an optimizer, which takes a fresh process seconds.

Such a program is a process like any other: it has its own pid, pipes, environment and folder; its
code is the whole of ``__main__``, nothing of gpuscope is loaded, and it ends as an interpreter
ends. It does not show what happens if torch is imported later, what ``/proc`` says about its
command and first environment, and what Python reads when it starts. Its innermost frames are its
own, and its outermost is one of ``forking.py``. Its garbage collector ignores objects from before
the fork.
"""

from __future__ import annotations

import atexit
import fcntl
import gc
import json
import os
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
MESSAGE = 1 << 17
BEGIN = (
    "exec(__import__('tests.fakes.forking', "
    "fromlist=['serve']).serve(int(__import__('sys').argv.pop())))"
)


def serve(number: int) -> Any:
    """Run the process that forks.

    Never returns there. In a fork, return the code that it is to run.
    """
    import torch
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data

    torch.optim.AdamW([torch.zeros(1)])  # the first optimizer imports the compiler
    gc.collect()
    # otherwise every fork copies what its collector scans, and takes apart all of torch at its end
    gc.freeze()
    listener = socket.socket(fileno=number)
    waiting = selectors.DefaultSelector()
    waiting.register(listener, selectors.EVENT_READ)
    asking = 0
    while True:
        for key, _ in waiting.select():
            if key.fileobj is listener:
                waiting.register(listener.accept()[0], selectors.EVENT_READ)
                asking += 1
                continue
            if key.data:  # the pidfd of one that ended
                pid, status, _ = key.data
                waiting.unregister(key.fileobj)
                os.close(key.fd)
                _, ended, used = os.wait4(pid, 0)
                code, seconds = os.waitstatus_to_exitcode(ended), used.ru_utime + used.ru_stime
                with suppress(OSError), status:
                    status.sendall(f"{code} {seconds}".encode())
                continue
            asked: Any = key.fileobj
            message, descriptors, _, _ = socket.recv_fds(asked, MESSAGE, 5)
            if not message:
                for other in waiting.get_map().values():
                    if other.data and other.data[2] is asked:
                        os.kill(other.data[0], signal.SIGKILL)
                waiting.unregister(asked)
                asked.close()
                asking -= 1
                if not asking:
                    os._exit(0)
                continue
            pid = os.fork()
            if not pid:
                return _become(json.loads(message), descriptors, waiting)
            for descriptor in (*descriptors[:3], *descriptors[4:]):
                os.close(descriptor)
            status = socket.socket(fileno=descriptors[3])
            status.sendall(f"{pid}\n".encode())
            waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, status, asked))


def _become(job: dict[str, Any], descriptors: list[int], waiting: selectors.BaseSelector) -> Any:
    for place, descriptor in enumerate(descriptors[:3]):
        os.dup2(descriptor, place)
    kept = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, 1000) for descriptor in descriptors[4:]]
    for other in list(waiting.get_map().values()):
        if other.data:
            os.close(other.fd)
            other.data[1].close()
        else:
            other.fileobj.close()  # type: ignore[union-attr]
    for descriptor in descriptors:
        os.close(descriptor)
    waiting.close()
    for descriptor in kept:
        os.dup2(descriptor, job["pipe"])
        os.close(descriptor)
    os.chdir(job["cwd"])
    os.environ.clear()
    os.environ.update(job["environ"])
    if job["session"]:
        os.setsid()
    return compile(job["code"], "<string>", "exec")


def script(path: str, *words: str) -> str:
    """Return code that does what ``python path words…`` does.

    If ``path`` is no file, it does what ``python -m path words…`` does.
    """
    how = "path" if path.endswith(".py") else "module"
    run = (
        f"runpy.run_{how}({path!r}, "
        f"run_name='__main__'{', alter_sys=True' if how == 'module' else ''})"
    )
    return f"import runpy, sys\nsys.argv = {[path, *words]!r}\n{run}"


class Forked:
    """One such program, used like a ``subprocess.Popen`` whose three streams are pipes.

    With ``output``, a file that several may share, what it prints is put at the end of that, and it
    has no streams.
    """

    def __init__(
        self,
        code: str,
        environ: dict[str, str],
        *,
        cwd: str | Path = "",
        text: bool = True,
        session: bool = False,
        output: Path | None = None,
    ) -> None:
        job = {"code": code, "environ": environ, "cwd": str(cwd) or os.getcwd(), "session": session}
        if output is None:
            theirs, ours = zip(os.pipe(), os.pipe()[::-1], os.pipe()[::-1], strict=True)
        else:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            theirs, ours = (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), file, os.dup(file)), ()
        self._status, status = socket.socketpair()
        try:
            with _lock:
                socket.send_fds(_server(), [json.dumps(job).encode()], [*theirs, status.fileno()])
        finally:
            for descriptor in theirs:
                os.close(descriptor)
            status.close()
        self._said = b""
        self.returncode: int | None = None
        self.cpu_seconds = 0.0
        """What it used of the processor, known when it has ended."""
        while b"\n" not in self._said:
            self._said += (part := self._status.recv(64))
            assert part, "the process that forks has ended: is torch installed?"
        first, _, self._said = self._said.partition(b"\n")
        self.pid = int(first)
        if output is not None:
            self.stdin = self.stdout = self.stderr = None
            return
        # The types are those of pipes of text; with text=False they are pipes of bytes.
        self.stdin: IO[Any] = open(ours[0], "w" if text else "wb", -1 if text else 0)  # noqa: SIM115
        self.stdout: IO[Any] = open(ours[1], "r" if text else "rb")  # noqa: SIM115
        self.stderr: IO[Any] = open(ours[2], "r" if text else "rb")  # noqa: SIM115

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code, below 0 for a signal.

        Raises ``TimeoutExpired`` after ``timeout`` seconds.
        """
        self._status.settimeout(timeout)
        while self.returncode is None:
            try:
                part = self._status.recv(64)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0) from None
            self._said += part
            if not part:
                code, _, seconds = self._said.partition(b" ")
                self.returncode, self.cpu_seconds = int(code), float(seconds)
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def end(self) -> None:
        """Kill it, together with the processes that it started if it has a session of its own."""
        while self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has no session, or not yet
                self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.wait(1.0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, text: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Return what it still writes until it ends.

        ``TimeoutExpired`` after ``timeout`` seconds.
        """
        read: dict[int, Any] = {}
        streams = [
            stream
            for stream in (self.stdout, self.stderr)
            if stream is not None and not stream.closed
        ]
        threads = [
            threading.Thread(
                target=lambda stream=stream: read.update({id(stream): stream.read()}), daemon=True
            )
            for stream in streams
        ]
        for thread in threads:
            thread.start()
        if self.stdin is not None and not self.stdin.closed:
            with suppress(BrokenPipeError):
                if text:
                    self.stdin.write(text)
                self.stdin.close()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
        self.wait(timeout)
        for stream in streams:
            stream.close()
        return read.get(id(self.stdout)), read.get(id(self.stderr))


BEGINS = """
import os, sys
sys.path[:0] = [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
try:
    import sitecustomize
except ImportError:
    pass
"""


def completed(
    code: str, environ: dict[str, str], *, cwd: str | Path = ROOT, seconds: float = 120.0
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run([python, "-c", code])`` does, in a fork that has torch already."""
    fork = Forked(BEGINS + code, environ, cwd=cwd)
    try:
        out, err = fork.communicate(timeout=seconds)
    finally:
        fork.end()
    return subprocess.CompletedProcess(code, fork.wait(), out, err)


TRACES, WORKS, RANK = "gpuscope.predict.tracing", "gpuscope.lab.worker", "gpuscope.lab.rank"
SERVES = "gpuscope.lab.fork_server"
OF_THE_FORK = {
    WORKS: "sys.executable = {python!r}  # its ranks are forks, too\n",
    RANK: "from gpuscope.process import parent\nparent.die_with = print  # see stand_between\n",
}
STAND_IN = """#!/bin/bash
words=("$@")
[ "$1" = -u ] && words=("${{@:2}}")
case "${{words[0]}} ${{words[1]}}" in
  "-m {traces}" | "-m {works}" | "-m {rank}" | "-m {serves}") words=("${{words[@]:1}}") ;;
  *".py "*) ;;
  *) exec {python} "$@" ;;
esac
GPUSCOPE_TEST_FORKS={run} exec {python} -c '
import sys
sys.path.insert(0, sys.argv.pop(1))
from tests.fakes.forking import stand_between
stand_between(*sys.argv[1:])
' {root} "$0" "${{words[@]}}"
"""


def forking_python(folder: Path) -> str:
    """Return the path of a Python that runs in forks what imports torch.

    These are the process that traces for predictions, the Lab's worker, its ranks, the process that
    forks trainers, and scripts. For ``$GPUSCOPE_LAB_PYTHON``, and for torchrun's ``$PYTHON_EXEC``:
    each such process would import torch for three seconds. The pid that who starts it knows is not
    the fork's, which gets the signals that ask a process to end.
    """
    _server()
    path = folder / "python"
    text = STAND_IN.format(
        python=shlex.quote(sys.executable),
        run=_run(),
        root=shlex.quote(str(ROOT)),
        traces=TRACES,
        works=WORKS,
        rank=RANK,
        serves=SERVES,
    )
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def stand_between(python: str, program: str, *words: str) -> None:
    """Stand between the process that asks and a fork that works.

    The fork ends with this process, and this process with the one that asks if a rank would.
    """
    traces = program == TRACES
    if program == RANK:
        from gpuscope.process.parent import die_with

        die_with(int(words[1]))
    environ = {name: value for name, value in os.environ.items() if name != FORKS}
    job = {
        "code": BEGINS
        + OF_THE_FORK.get(program, "").format(python=python)
        + script(program, *words),
        "environ": environ,
        "cwd": os.getcwd(),
        "session": True,
    }
    pipes = [int(words[0])] if traces else []
    if traces:
        job["pipe"] = pipes[0]
    ours, theirs = socket.socketpair()
    socket.send_fds(_server(), [json.dumps(job).encode()], [0, 1, 2, theirs.fileno(), *pipes])
    for descriptor in (0, 1, 2, *pipes):
        os.close(descriptor)
    theirs.close()
    said = b""
    while b"\n" not in said:
        said += ours.recv(64)
    pid = int(said.partition(b"\n")[0])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: os.kill(pid, number))
    while part := ours.recv(64):
        said += part
    code = int(said.partition(b"\n")[2].split()[0])
    if code < 0:
        if -code in (signal.SIGINT, signal.SIGTERM):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


FORKS = "GPUSCOPE_TEST_FORKS"
_lock = threading.Lock()
_servers: dict[int, socket.socket] = {}
"""The connection to the process that forks, by the pid of the one that uses it."""


def _server() -> socket.socket:
    """Return this process's connection to the process that forks.

    All workers of a run of pytest-xdist share one such process, which imports torch once for all.
    Whoever needs it first starts it; it ends with the last of them.
    """
    if os.getpid() not in _servers:
        run = _run()
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MESSAGE)
        while True:
            try:
                ours.connect(f"\0gpuscope-tests-fork-{run}")
                break
            except ConnectionRefusedError:
                _start(f"\0gpuscope-tests-fork-{run}")
        _servers[os.getpid()] = ours
        atexit.register(_end, os.getpid())
    return _servers[os.getpid()]


def _run() -> str:
    """Return the name of the run of tests, which all its processes have."""
    named = os.environ.get(FORKS) or os.environ.get("PYTEST_XDIST_TESTRUNUID")
    return named or str(os.getpid())


def _start(address: str) -> None:
    """Start the process that forks, unless another one has just done so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:
            time.sleep(0.01)  # bound, and about to listen
            return
        listener.listen(16)
        subprocess.Popen(
            [sys.executable, "-u", "-c", BEGIN, str(listener.fileno())],
            pass_fds=[listener.fileno()],
            env={**_plain(), "PYTHONPATH": _path(), "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _plain() -> dict[str, str]:
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("GPUSCOPE", "RANK", "WORLD"))
    }


def _path() -> str:
    """Return a path on which forks find torch where this process finds it."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


def _end(of: int) -> None:
    if os.getpid() == of:
        _servers.pop(of).close()
