"""The probe meets trainers that are not as most are.

Some are refused at once with the reason; some must notice nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.soak.injection import stub_pages
from gpuscope.attach import inject as injecting
from gpuscope.attach.attach_options import look
from gpuscope.attach.inject import CannotInject, inject
from gpuscope.attach.inject_target import KERNEL_THREAD, process
from tests.attach.test_inject import (
    descriptors,
    detach,
    files_of_injections,
    socket_of,
    threads,
    victim,
)
from tests.fakes.probe_client import Reader, wait_for
from tests.fakes.program import program
from tests.fakes.ptrace import BY_PTRACE

pytestmark = BY_PTRACE
WAIT = "print('ready', flush=True)\nwhile True:\n    time.sleep(0.002)\n"
THREADS = (
    "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
    + WAIT
)
FEW_DESCRIPTORS = (
    "import resource, time\nhard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))\n" + WAIT
)
NO_OPEN = (
    "import builtins, time\ndef never(*a, **k):\n    raise ValueError('closed here')\n"
    "builtins.open = never\n" + WAIT
)
TRACED = """
import select, sys, threading, time
seen = {}
def trace(frame, event, arg):
    name = frame.f_code.co_filename
    if "gpuscope" in name:
        seen[name] = seen.get(name, 0) + 1
    return trace
threading.settrace(trace)
sys.settrace(trace)
print("ready", flush=True)
while not select.select([sys.stdin], [], [], 0.002)[0]:
    pass
sys.settrace(None)
print(repr(seen), flush=True)
"""
GREEN = """
import _thread, sys, threading, time, types
real_start, real_sleep = _thread.start_new_thread, time.sleep
monkey = types.ModuleType("gevent.monkey")
monkey.is_module_patched = lambda name: name == "threading"
monkey.get_original = lambda module, name: {"start_new_thread": real_start, "sleep": real_sleep}[name]
sys.modules["gevent.monkey"] = monkey
def never(*a, **k):
    print("used", flush=True)
    raise RuntimeError("a green thread")
threading.Thread.start = never
print("ready", flush=True)
while True:
    real_sleep(0.002)
"""  # noqa: E501
"""As gevent's monkey.patch_all leaves a program: what it starts as a thread runs in the main
thread.
"""
BUSY = "import sys\nprint('ready', flush=True)\nsys.setswitchinterval(20)\nwhile True:\n    pass\n"


def refusal(pid: int) -> CannotInject:
    with pytest.raises(CannotInject) as caught:
        inject(pid, patience=20)
    return caught.value


def test_a_thread_s_number_is_no_process():
    with victim(THREADS) as running:
        thread = next(
            int(one) for one in os.listdir(f"/proc/{running.pid}/task") if int(one) != running.pid
        )
        error = refusal(thread)
        assert f"{thread} is a thread of process {running.pid}" in error.why
        assert error.next == f"gpuscope attach {running.pid} --inject"
        ladder = look(thread)
        assert ladder.best.name == "outside"
        assert error.why in ladder.text()
        assert threads(running.pid) == 2, "nothing was put in"
        done = program("attach", thread)
        assert (done.returncode, error.why in done.stderr) == (3, True), done.stderr


def test_a_thread_of_the_kernel_is_named_as_one():
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[6]) & KERNEL_THREAD:
            break
    else:
        pytest.skip("no thread of the kernel is seen here")
    assert refusal(int(folder.name)).why == f"{folder.name} is a kernel thread."


@pytest.mark.slow
def test_a_trainer_without_free_descriptors_keeps_those_it_has():
    with victim(FEW_DESCRIPTORS) as running:
        before = descriptors(running.pid)
        error = refusal(running.pid)
        assert error.code == "refused"
        assert "of 8 possible files open" in error.why
        assert descriptors(running.pid) == before
        assert not files_of_injections(running.pid)
        command = error.next.partition("  ")[0].split()
        assert command[0] == "prlimit"
        assert str(running.pid) in command
        import resource

        resource.prlimit(running.pid, resource.RLIMIT_NOFILE, (4096, 4096))
        inject(running.pid, patience=30)
        detach(running.pid)


def test_a_script_that_can_open_nothing_says_so_at_once():
    """Not after the patience, and not as a main thread that never came."""
    with victim(NO_OPEN) as running:
        error = refusal(running.pid)
        assert (error.code, "closed here" in error.why) == ("failed", True)
        wait_for(
            lambda: not stub_pages(running.pid) and threads(running.pid) == 1,
            what="the last trace to go",
        )
        assert not files_of_injections(running.pid)


@pytest.mark.slow
def test_what_a_trainer_traces_of_its_threads_is_not_the_probe():
    """What a trainer traces of its threads does not include the probe.

    A tool that measures coverage would look for our sources, and fail: no name is a path, and no
    more is traced than the calls before it is switched off.
    """
    with victim(TRACED) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        inject(running.pid, patience=30)
        reader = Reader(socket_of(running.pid))
        reader.until(lambda: reader.samples > 2)
        reader.close()
        detach(running.pid)
        print(file=running.stdin, flush=True)
        seen = eval(running.stdout.readline())
        ours = {name: count for name, count in seen.items() if name != "<gpuscope>"}
        assert all(name.startswith("<gpuscope>") for name in seen), seen
        assert sum(ours.values()) <= 2, ours


def test_green_threads_are_refused_and_none_is_started():
    with victim(GREEN) as running:
        before = descriptors(running.pid)
        error = refusal(running.pid)
        assert "gevent" in error.why
        wait_for(
            lambda: not stub_pages(running.pid) and threads(running.pid) == 1,
            what="the last trace to go",
        )
        assert descriptors(running.pid) == before
        running.kill()
        assert running.communicate() == ("", "")


@pytest.mark.slow
def test_a_probe_that_gets_no_time_to_load_is_not_said_to_be_withdrawn(monkeypatch):
    monkeypatch.setattr(injecting, "READY_SECONDS", 1.0)
    with victim(BUSY) as running:
        with pytest.raises(CannotInject) as caught:
            inject(running.pid, patience=2)
        assert caught.value.code == "failed"
        assert "not ready within 1 s" in caught.value.why
        assert "It may still start" in caught.value.why
        assert process(running.pid).pid == running.pid
