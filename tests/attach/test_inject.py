"""The probe is put into real processes that run already.

All Pythons that are here are tried, and every way in which it can fail.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.soak.injection import stub_pages
from gpuscope.attach import inject_payload, inject_pep768, inject_ptrace
from gpuscope.attach.inject import CannotInject, inject
from gpuscope.attach.inject_place import InjectionDirectory
from gpuscope.attach.inject_target import check_ptrace, process, python
from gpuscope.wire import frames
from tests.fakes import pythons
from tests.fakes.forking import Forked
from tests.fakes.probe_client import Reader, wait_for
from tests.fakes.ptrace import MAY_TRACE

pytestmark = [pytest.mark.slow, *MAY_TRACE]
TRIES = 2

TIGHT = "count = 0\nwhile True:\n    count += 1\n"
CALM = "import time\nprint('ready', flush=True)\nwhile True: time.sleep(0.002)\n"
"""What runs where the test is not about a busy program: it leaves the cores to others."""
ALLOC = (
    "kept = {}\ncount = 0\nwhile True:\n    count += 1\n"
    "    kept[count % 997] = [{'a': [i] * 7} for i in range(20)]\n"
)
PULSE = """
import sys, time
names = sorted(globals())
print("ready", flush=True)
while True:
    time.sleep(0.002)
    if sorted(globals()) != sorted(names + ["names"]):
        print("changed", sorted(set(globals()) - set(names)), flush=True)
        names = [name for name in globals() if name != "names"]
"""
"""Prints a line should anybody touch ``__main__``."""
TRAIN = """
import torch
torch.manual_seed(20)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 32))
optimizer = torch.optim.AdamW(model.parameters())
def step():
    data = torch.randn(16, 32)
    loss = (model(data) - data).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
LOADER = """
import torch
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.ones(8)
print("ready", flush=True)
while True:
    for batch in torch.utils.data.DataLoader(Rows(), batch_size=8, num_workers=2):
        pass
    print("epoch", flush=True)
"""


@contextmanager
def victim(code: str, binary: str = sys.executable, **env: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs ``code``, which nothing of ours has prepared; past its start."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("GPUSCOPE", "PYTHONPATH"))}
    running = subprocess.Popen(
        [binary, "-c", code],
        env={**clean, "OMP_NUM_THREADS": "1", **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        if "ready" in code:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n", running.communicate()[1]
        else:
            wait_for(lambda: runs_python(running.pid), what="the start of Python")
        yield running
    finally:
        # With its workers: one whose parent ends while it starts may wait for ever, with the pipes.
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def runs_python(pid: int) -> bool:
    """Past the start: its code runs, and has for 0.2 s of processor time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) >= 20


def socket_of(pid: int) -> Path:
    found = process(pid)
    return Path(f"/tmp/gpuscope-{found.uid}/{found.inner_pid}-{found.start}.sock")


def detach(pid: int) -> None:
    reader = Reader(socket_of(pid))
    assert isinstance(reader.answer(frames.Request("detach", 1)), frames.Result)
    while reader.next() is not None:
        pass
    reader.close()
    wait_for(lambda: not socket_of(pid).exists(), what="the end of the probe")


def code_of(pid: int, patience: float) -> str:
    """Why the probe could not be put in, "" where it could."""
    try:
        inject(pid, patience=patience)
    except CannotInject as error:
        return error.code
    return ""


def descriptors(pid: int) -> list[str]:
    found = []
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            found.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return sorted(found)


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def files_of_injections(pid: int) -> list[Path]:
    return sorted(Path(f"/tmp/gpuscope-{os.geteuid()}").glob(f"inject-{pid}*"))


@pytest.mark.parametrize(
    ("minor", "code"),
    [
        *(pytest.param(minor, TIGHT, id=f"{minor}-tight") for minor in pythons.MINORS),
        *(pytest.param(minor, ALLOC, id=f"{minor}-alloc") for minor in (13, 14)),
    ],
)
def test_every_python_takes_the_probe_and_lets_it_go(minor, code):
    binary = pythons.find_or_skip(minor)
    with victim(code, binary) as running:
        before = threads(running.pid), descriptors(running.pid)
        done = inject(running.pid, patience=30)
        assert done.method == ("pep768" if minor >= 14 else "ptrace")
        reader = Reader(socket_of(running.pid))
        assert reader.until(lambda: reader.defs)
        assert reader.trainer().origin == "inject"
        reader.close()
        detach(running.pid)
        wait_for(
            lambda: (threads(running.pid), descriptors(running.pid)) == before,
            what="the last trace to go",
        )
        assert running.poll() is None


def test_main_is_not_touched_and_nothing_is_printed():
    with victim(PULSE) as running:
        inject(running.pid, patience=30)
        detach(running.pid)
        time.sleep(0.1)
        running.kill()
        out, err = running.communicate()
        assert (out, err) == ("", "")


def test_a_second_injection_finds_the_first():
    with victim(CALM) as running:
        assert inject(running.pid, patience=30).method == "ptrace"
        assert inject(running.pid, patience=30).method == "probe"
        assert inject(running.pid, process(running.pid).start).method == "probe"


def test_the_stub_s_page_goes():
    with victim(CALM) as running:
        assert stub_pages(running.pid) == []
        seen: set[int] = set()
        over = threading.Event()

        def look() -> None:
            while not over.is_set():
                seen.update(stub_pages(running.pid))
                time.sleep(0.01)

        watcher = threading.Thread(target=look)
        watcher.start()
        try:
            inject(running.pid, patience=30)
            detach(running.pid)
        finally:
            over.set()
            watcher.join()
        assert len(seen) == 1, "one page, while the probe was loaded"
        wait_for(lambda: stub_pages(running.pid) == [], what="the page to be unmapped")


def test_training_is_seen_at_once_and_gives_the_same_loss_to_the_last_digit():
    script = TRAIN + (
        "import sys, time\n"
        "print('ready', flush=True)\n"
        "for _ in range(700):\n"
        "    loss = step()\n"
        "    time.sleep(PAUSE)\n"  # time for six injections, and none of the numbers' business
        "print(repr(loss), repr(sum(p.double().sum().item() for p in model.parameters())), "
        "flush=True)\n"
    )
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    untouched = Forked(script.replace("PAUSE", "0"), environ).communicate(timeout=120)[0]
    untouched = untouched.split("\n")[1]
    with victim(script.replace("PAUSE", "0.004")) as running:
        inject(running.pid, patience=30)
        reader = Reader(socket_of(running.pid))
        step = reader.until(lambda: reader.value("step"))
        assert reader.until(lambda: (reader.value("step") or 0) > step)
        reader.close()
        detach(running.pid)
        count = 1
        while count < 6:
            try:
                inject(running.pid, patience=30)
                detach(running.pid)
            except (CannotInject, OSError, AssertionError):
                break  # it came to its end first
            count += 1
        assert running.stdout is not None
        assert running.stdout.readline().rstrip() == untouched
        assert count >= 3


def test_loader_workers_come_and_go_while_it_happens():
    with victim(LOADER) as running:
        for _ in range(TRIES):
            inject(running.pid, patience=30)
            detach(running.pid)
        assert running.stdout is not None
        for _ in range(2):  # whole epochs after the last one: no worker hangs
            while running.stdout.readline() != "epoch\n":
                assert running.poll() is None


def test_a_blocked_main_thread_is_reported_and_what_was_left_does_nothing():
    code = "import ctypes, time\nread = ctypes.CDLL(None).read\nprint('ready', flush=True)\n"
    code += (
        "read(0, ctypes.create_string_buffer(1), 1)\nprint('back', flush=True)\n"
        "while True: time.sleep(0.01)\n"
    )
    with victim(code) as running:
        with pytest.raises(CannotInject, match=r"did not return to Python within 0\.5 s") as caught:
            inject(running.pid, patience=0.5)
        assert caught.value.code == "busy"
        assert files_of_injections(running.pid) == []
        let_go(running)
        time.sleep(0.2)
        assert not socket_of(running.pid).exists()
        inject(running.pid, patience=30)  # now it works


def let_go(running: subprocess.Popen[str]) -> None:
    """Its main thread comes back from the read that it waits in."""
    assert running.stdin is not None
    assert running.stdout is not None
    running.stdin.write("x")
    running.stdin.flush()
    assert running.stdout.readline() == "back\n"


def test_a_call_that_waits_for_a_lock_is_rolled_back():
    # It is led to a semaphore that nobody posts: what a held lock of the pending calls looks like.
    code = """
import ctypes, time
libc = ctypes.CDLL(None)
sem = ctypes.create_string_buffer(64)
libc.sem_init(sem, 0, 0)
print('ready', flush=True)
print(ctypes.cast(libc.sem_wait, ctypes.c_void_p).value, ctypes.addressof(sem), flush=True)
count = 0
x = 1.0
while True:
    count += 1
    x = x * 1.0000001 / 1.0000001
    if not 0.99 < x < 1.01: print('broken', x, flush=True)
"""
    with victim(code) as running:
        assert running.stdout is not None
        wait, semaphore = (int(word) for word in running.stdout.readline().split())
        found = process(running.pid)
        task = inject_ptrace.job(found, python(found), "pass")
        around = task["code_at"] // 4096 * 4096, 4096
        before = read(running.pid, *around)
        maps = len(Path(f"/proc/{running.pid}/maps").read_text().splitlines())
        task.update(add_pending_call=wait, run_string=semaphore, call_seconds=0.2)
        for _ in range(3):
            with pytest.raises(
                CannotInject, match=r"keeps the lock of Python's pending calls\. It was restored"
            ) as caught:
                inject_ptrace.call(task, found)
            assert caught.value.code == "busy"
        assert read(running.pid, *around) == before
        assert len(Path(f"/proc/{running.pid}/maps").read_text().splitlines()) == maps
        inject(running.pid, patience=30)
        running.kill()
        assert running.communicate() == ("", "")


def read(pid: int, at: int, size: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(at)
        return memory.read(size)


@pytest.mark.parametrize(
    "call",
    [
        "time.sleep(1)",
        "select.select([], [], [], 1)",
        "lock.acquire(timeout=1)",
        "subprocess.run(['sleep', '1'])",
        "later.start(); os.read(pipe[0], 1)",
    ],
)
def test_a_system_call_goes_on_where_it_was(call):
    code = f"""
import os, select, subprocess, threading, time
lock = threading.Lock(); lock.acquire()
pipe = os.pipe()
later = threading.Timer(1, os.write, (pipe[1], b'x'))
print('ready', flush=True)
time.sleep(0.2)
begin = time.monotonic()
{call}
print(time.monotonic() - begin, flush=True)
"""
    with victim(code) as running:
        time.sleep(0.5)
        assert code_of(running.pid, 3) in ("", "busy", "gone")
        assert running.stdout is not None
        assert float(running.stdout.readline()) >= 0.99


def test_signals_that_come_meanwhile_are_not_lost():
    code = """
import signal
got = 0
def count(*_):
    global got
    got += 1
    if not got % 50:
        print(got, flush=True)
signal.signal(signal.SIGALRM, count)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
print('ready', flush=True)
last = 0
while True:
    pass
"""
    with victim(code) as running:
        before = blocked_signals(running.pid)
        for _ in range(TRIES):
            inject(running.pid, patience=30)
            detach(running.pid)
        assert blocked_signals(running.pid) == before
        assert running.stdout is not None
        os.set_blocking(running.stdout.fileno(), False)
        while os.read(running.stdout.fileno(), 1 << 16):
            if not select.select([running.stdout], [], [], 0)[0]:
                break
        assert select.select([running.stdout], [], [], 20)[0], "its handler runs on"
        assert running.poll() is None


def blocked_signals(pid: int) -> str:
    (line,) = [
        one
        for one in Path(f"/proc/{pid}/status").read_text().splitlines()
        if one.startswith("SigBlk")
    ]
    return line


def test_a_probe_that_is_just_being_loaded_is_waited_for():
    # The patience is shorter than the load takes: what had begun is not called off, and not
    # reported as busy.
    with victim(TIGHT) as running:
        code = code_of(running.pid, 0.3)
        if code:  # not even begun, on a machine that is busy
            time.sleep(5.0)
        assert code in ("", "busy")
        assert socket_of(running.pid).exists() == (code == ""), code


def test_a_victim_that_exits_meanwhile_is_reported_gone():
    for delay in (0.0, 0.02, 0.05, 0.1):
        with victim(CALM) as running:
            threading.Timer(delay, running.kill).start()
            assert code_of(running.pid, 5) in ("", "gone")
            assert files_of_injections(running.pid) == []


def test_a_victim_whose_memory_is_being_taken_is_gone(monkeypatch):
    # It is killed between two looks at it: its state says that it runs, and nothing of it can be
    # read any more.
    code = "much = b'x' * (1 << 30)\nprint('ready', flush=True)\nwhile True: pass\n"
    prepare = inject_ptrace.job
    with victim(code) as running:

        def kill_first(*arguments):
            running.kill()
            wait_for(lambda: not Path(f"/proc/{running.pid}/exe").exists())
            return prepare(*arguments)

        monkeypatch.setattr(inject_ptrace, "job", kill_first)
        assert code_of(running.pid, 5) == "gone"
        assert files_of_injections(running.pid) == []


def test_two_at_once_take_turns():
    with victim(ALLOC) as running:
        results: list[str] = []

        def attach() -> None:
            try:
                results.append(inject(running.pid, patience=30).method)
            except CannotInject as error:
                results.append(error.code)

        both = [threading.Thread(target=attach) for _ in range(2)]
        for one in both:
            one.start()
        for one in both:
            one.join()
        assert sorted(results) == ["probe", "ptrace"]


def test_a_stopped_process_stays_stopped():
    with victim(CALM) as running:
        running.send_signal(signal.SIGSTOP)
        wait_for(
            lambda: (
                Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
            )
        )
        with pytest.raises(CannotInject, match="is stopped") as caught:
            inject(running.pid, patience=2)
        assert caught.value.next.startswith(f"kill -CONT {running.pid}")
        assert Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace")
def test_a_traced_process_is_left_to_its_tracer():
    with victim(CALM) as running:
        tracer = subprocess.Popen(
            ["strace", "-f", "-e", "trace=none", "-p", str(running.pid)], stderr=subprocess.DEVNULL
        )
        try:
            wait_for(
                lambda: (
                    f"TracerPid:\t{tracer.pid}\n" in Path(f"/proc/{running.pid}/status").read_text()
                )
            )
            with pytest.raises(CannotInject, match=f"pid {tracer.pid} traces it already") as caught:
                inject(running.pid, patience=2)
            assert caught.value.code == "traced"
        finally:
            tracer.terminate()
            tracer.wait()


@pytest.mark.parametrize("minor", [14, 15])
def test_disabled_remote_debugging_is_respected(minor):
    binary = pythons.find_or_skip(minor)
    with victim(CALM, binary, PYTHON_DISABLE_REMOTE_DEBUG="1") as running:
        with pytest.raises(
            CannotInject, match=r"switched off .* and gpuscope respects that"
        ) as caught:
            inject(running.pid, patience=2)
        assert caught.value.code == "disabled"
        with pytest.raises(CannotInject, match="has PEP 768 attach"):
            inject(running.pid, method="ptrace", patience=2)


def test_a_blocked_main_thread_of_3_14_is_called_off():
    binary = pythons.find_or_skip(14)
    code = (
        "import os, time\nprint('ready', flush=True)\nos.read(0, 1)\n"
        "print('back', flush=True)\ntime.sleep(60)\n"
    )
    with victim(code, binary) as running:
        stat = Path(f"/proc/{running.pid}/stat")
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "S", what="its read")
        with pytest.raises(CannotInject) as caught:
            inject(running.pid, patience=0.5)
        assert caught.value.code == "busy"
        let_go(running)
        time.sleep(0.2)
        assert not socket_of(running.pid).exists()
        running.kill()
        assert running.communicate() == ("", "")  # no traceback of a script that is gone


IMPORTING = """
import sys, types
sys.setswitchinterval(1e-6)
for number in range(3000):
    sys.modules["many_%d" % number] = types.ModuleType("many")
print("ready", flush=True)
while True:
    for number in range(50):
        sys.modules["new_%d" % number] = types.ModuleType("new")
    for number in range(50):
        del sys.modules["new_%d" % number]
"""


def test_a_program_that_imports_meanwhile_takes_the_probe():
    """Its table of modules changes under whoever goes through it, at each switch of threads."""
    with victim(IMPORTING) as running:
        for _ in range(3):
            inject(running.pid, patience=30)
            detach(running.pid)
        assert running.poll() is None


def test_an_idle_probe_takes_itself_out():
    with victim(CALM) as running:
        before = threads(running.pid), descriptors(running.pid)
        inject(running.pid, patience=30, idle_seconds=0.5)
        assert socket_of(running.pid).exists()
        deadline, visitors = time.monotonic() + 60, 0
        while (
            left := (threads(running.pid), descriptors(running.pid))
        ) != before and time.monotonic() < deadline:
            visitors += sum(name.startswith("socket:") for name in left[1]) > 1
            time.sleep(0.05)
        if left != before and visitors:
            pytest.skip("agents of others on this machine look at it again and again: not idle")
        assert left == before
        assert not socket_of(running.pid).exists()


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
class TestAnotherUser:
    NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs")

    def test_root_injects_into_a_trainer_of_somebody_else(self):
        binary = readable_python()
        running = subprocess.Popen(
            [*self.NOBODY, binary, "-c", CALM], stdout=subprocess.PIPE, text=True, cwd="/"
        )
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            assert inject(running.pid, patience=30).method in ("ptrace", "pep768")
            folder = Path("/tmp/gpuscope-65534")
            assert folder.stat().st_uid == 65534
            assert not list(folder.glob("inject-*"))
            detach(running.pid)
        finally:
            running.kill()
            running.communicate()

    def test_somebody_else_is_refused_with_the_reason(self, tmp_path):
        with victim(CALM) as running:
            binary = readable_python()
            root = Path(tempfile.mkdtemp(prefix="gpuscope-test-"))
            root.chmod(0o755)
            shutil.copytree(Path(__file__).parents[2] / "gpuscope", root / "gpuscope")
            code = (
                f"import sys; sys.path.insert(0, {str(root)!r})\n"
                "from gpuscope.attach.attach_options import look\n"
                f"print(look({running.pid}).text())\n"
            )
            done = subprocess.run(
                [*self.NOBODY, binary, "-B", "-c", code], capture_output=True, text=True, cwd="/"
            )
            shutil.rmtree(root)
            assert done.returncode == 0, done.stderr
            assert "Training not touched" in done.stdout
            assert "you are uid 65534" in done.stdout
            assert f"sudo gpuscope attach {running.pid} --inject" in done.stdout


def readable_python() -> str:
    """A Python that other users can run: not one under root's home."""
    for name in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if os.path.exists(name) and not os.path.realpath(name).startswith("/root"):
            return name
    pytest.skip("no Python here that another user may run")


def test_a_hostile_place_is_refused(tmp_path):
    # There is a symlink, an open directory, or somebody else's, where the trainer's private
    # directory should be.
    with victim(CALM) as running:
        found = process(running.pid)
        place = InjectionDirectory(found)
        place.inside = "/tmp/" + tmp_path.name
        target = Path(place.inside)
        try:
            target.symlink_to("/etc")
            with pytest.raises(CannotInject), place:
                pass
            target.unlink()
            target.mkdir(mode=0o755)
            target.chmod(0o755)
            with pytest.raises(CannotInject, match="others can open it"), place:
                pass
        finally:
            target.unlink() if target.is_symlink() else target.rmdir()


def test_what_the_ptrace_way_does_not_fit_is_refused():
    with victim(CALM) as running:
        known = python(process(running.pid))
        for change, reason in (
            ({"machine": 183}, "not aarch64"),
            ({"musl": True}, "musl"),
            ({"free_threaded": True}, "free-threaded"),
            ({"add_pending_call": 0}, "does not export"),
            ({"version": (3, 7)}, "too old for the probe"),
            ({"version": (3, 14)}, "PEP 768 attach"),
        ):
            with pytest.raises(CannotInject, match=reason) as caught:
                check_ptrace(type(known)(**{**vars(known), **change}))
            assert caught.value.code == "unsupported"
        newer = type(known)(**{**vars(known), "version": (3, 16), "offsets": bytes(1024)})
        with pytest.raises(CannotInject, match="newer than this gpuscope supports"):
            inject_pep768.check(newer)


def test_the_stub_is_one_small_ascii_statement():
    text = inject_payload.stub("/tmp/gpuscope-1000/inject-0123456789abcdef.py")
    assert text.isascii()
    assert len(text) < 2048
    compile(text.replace("@PAGE@", "0x7f0000000000").replace("@MAPPED@", "0x10000"), "stub", "exec")
