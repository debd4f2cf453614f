"""A trainer goes on when the child that traces it is killed.

The child is killed at each of its steps, and the trainer runs as if nothing had been.
"""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from bench.soak.injection import stub_pages
from gpuscope.attach import inject_machine, inject_payload, inject_ptrace
from gpuscope.attach.inject import CannotInject, inject
from gpuscope.attach.inject_target import process, python
from tests.attach.test_inject import blocked_signals, detach, read, victim
from tests.fakes.probe_client import wait_for
from tests.fakes.ptrace import BY_PTRACE

pytestmark = BY_PTRACE
KILLS_ITSELF = """
_steps, _own_ptrace, _own_write = STEPS, _ptrace, Stopped.write

def _step():
    global _steps
    _steps -= 1
    if not _steps:
        os.kill(os.getpid(), signal.SIGKILL)

def _ptrace(request, *more):
    _step()
    found = _own_ptrace(request, *more)
    if request in (7, 24):  # PTRACE_CONT, PTRACE_SYSCALL: once more while the thread runs
        _step()
    return found

def _write(*arguments):
    _step()
    return _own_write(*arguments)

Stopped.write = _write
"""
PRECISE = """
import ctypes, time
usleep = ctypes.CDLL(None).usleep
print("ready", flush=True)
while True:
    begin, x = time.monotonic(), 1.0
    if usleep(3000) or time.monotonic() - begin < 0.003:
        print("woken", flush=True)
    for _ in range(20000):
        x = x * 1.0000001 / 1.0000001
    if not 0.99 < x < 1.01:
        print("wrong", x, flush=True)
"""
"""Says so where a sleep of the C library, which nobody makes again, ends early, and where a number
is not kept.
"""


def sleeps(pid: int) -> int:
    text = Path(f"/proc/{pid}/status").read_text()
    return int(
        next(line for line in text.splitlines() if line.startswith("voluntary_ctxt")).split()[1]
    )


@pytest.mark.slow
def test_a_trainer_survives_the_death_of_its_tracer_at_every_step(monkeypatch):
    source = inject_ptrace._worker_source()
    died = 0
    with victim(PRECISE) as running:
        found = process(running.pid)
        mask = blocked_signals(running.pid)
        for steps in itertools.count(1):
            with_steps = KILLS_ITSELF.replace("STEPS", str(steps)) + '\nif __name__ == "__main__":'
            altered = source.replace('\nif __name__ == "__main__":', with_steps)
            monkeypatch.setattr(inject_ptrace, "_worker_source", lambda altered=altered: altered)
            task = inject_ptrace.job(
                found, python(found), inject_payload.stub("/tmp/gpuscope-there-is-none.py")
            )
            try:
                inject_ptrace.call(task, found)
                break  # it had fewer steps
            except CannotInject as error:
                why = error.why
            assert "it sent no message" in why
            died += 1
            before = sleeps(running.pid)
            wait_for(
                lambda before=before: sleeps(running.pid) > before + 1,
                what=f"life after step {steps}",
            )
            assert blocked_signals(running.pid) == mask, steps
        assert died > 20
        assert not any(
            read(running.pid, task["code_at"], len(inject_machine.CODE) + inject_machine.TABLE.size)
        )
        wait_for(
            lambda: stub_pages(running.pid) == [],
            what="the pages of those that were called to be unmapped",
        )
        monkeypatch.setattr(inject_ptrace, "_worker_source", lambda: source)
        inject(running.pid, patience=30)
        detach(running.pid)
        running.kill()
        assert running.communicate() == ("", "")
