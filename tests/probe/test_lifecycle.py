"""Start, fork, two copies, no safe place: the probe over the life of real processes."""

from __future__ import annotations

import os

import pytest

from tests.fakes.probe_client import (
    PLACE_APART,
    TRAINING,
    Reader,
    lines_of_ours,
    sockets,
    trainer,
    wait_for,
)

pytest.importorskip("torch")

ARMED = TRAINING + "from gpuscope.probe import arm; arm('run')\n"
STATE = """
import os, threading
from tests.fakes.descriptors import open_files
def state():
    ours = {path[8:-1] for path in open_files()}
    rows = [line.split() for line in open("/proc/net/unix") if "gpuscope-" in line]
    return threading.active_count(), sum(row[6] in ours and row[3] == "00010000" for row in rows)
"""
"""state() is (threads, listening sockets of a probe). Whoever watches may be connected: that is not
ours to count.
"""


def output(code: str, fork: bool = True, **more: str | None) -> str:
    with trainer(code, fork=fork, **more) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert lines_of_ours(errors) == []
    return str(out)


def test_armed_opens_nothing_before_the_first_step():
    out = output(
        f"{ARMED}{STATE}\nfrom gpuscope.probe.rendezvous import bind\n"
        "print(state()); step(); print(state())"
    )
    assert out == "(1, 0)\n(2, 1)\n"


def test_armed_starts_when_cuda_is_initialised():
    code = f"""{TRAINING}{STATE}
torch.version.cuda = "13.0"  # a build with CUDA, as far as the queue of its lazy initialisation goes
from gpuscope.probe import arm
arm("run")
print(state())
for call, _ in torch.cuda._queued_calls[-1:]: call()
print(state())
"""  # noqa: E501
    assert output(code) == "(1, 0)\n(2, 1)\n"


def test_inference_on_a_cpu_opens_nothing_until_somebody_attaches():
    out = output(
        f"{ARMED}{STATE}\n"
        "for _ in range(20): model(torch.ones(2, 16))\n"
        "with torch.no_grad():\n"
        "    for _ in range(20): model.eval()(torch.ones(2, 16))\n"
        "print(state())\n"
        "from gpuscope.probe import injected\n"  # what an attach calls
        "print(injected.begin(lambda: None, 0.0) or state())\n"
        "import sys; print(sys._gpuscope_probe.idle_seconds)"
    )
    assert out == "(1, 0)\n(2, 1)\nNone\n", "and it stays, as gpuscope run was asked to"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "fork"),
    [
        ("import gpuscope; gpuscope.watch()\n" + TRAINING, False),
        (TRAINING + "import gpuscope; gpuscope.watch()\n", True),
    ],
    ids=["before", "after"],
)
def test_watch_before_and_after_torch(first, fork):
    with trainer(first + "train()", fork=fork) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        reader.until(lambda: (reader.value("step") or 0) > 3, 60)
        reader.close()


def test_watch_never_imports_torch():
    assert (
        output(
            "import sys, gpuscope; gpuscope.watch(); gpuscope.watch(); print('torch' in "
            "sys.modules)",
            fork=False,
        )
        == "False\n"
    )


@pytest.mark.slow
def test_two_copies_of_the_package_make_one_probe(tmp_path):
    """The installed package and the shipped zip, in either order."""
    from gpuscope.attach.bundle import probe_zip_bytes

    (tmp_path / "probe.zip").write_bytes(probe_zip_bytes())
    both = [
        "import _gpuscope_probe.probe as zipped; zipped.arm('run')",
        "import gpuscope; gpuscope.watch(model)",
    ]
    for order in (both, both[::-1]):
        code = (
            f"{TRAINING}{STATE}\nsys.path.insert(0, {str(tmp_path / 'probe.zip')!r})\n"
            + "\n".join(order)
        )
        assert (
            output(code + "\nstep(); print(state(), sys._gpuscope_probe.steps.total)")
            == "(2, 1) 1\n"
        )


def test_a_forked_child_drops_everything_and_starts_its_own_when_it_trains():
    code = f"""{TRAINING}{STATE}
import gpuscope, warnings
warnings.simplefilter("ignore")
gpuscope.watch()
for _ in range(5): step()
pid = os.fork()
if pid == 0:
    first = state()
    os.read(0, 1)
    print("idle", first, flush=True)
    os.read(0, 1)
    step()
    print("trains", state(), sys._gpuscope_probe.steps.total, flush=True)
    os.read(0, 1)
    os._exit(0)
print(pid, flush=True)
train()
"""
    with trainer(code, fork=True) as process:
        child = int(process.stdout.readline())
        try:
            (mine,) = sockets(process.pid)
            reader = Reader(mine)
            reader.until(lambda: reader.samples)
            assert sockets(child) == []
            process.stdin.write("x")
            process.stdin.flush()
            assert process.stdout.readline() == "idle (1, 0)\n"
            process.stdin.write("x")
            process.stdin.flush()
            assert process.stdout.readline() == "trains (2, 1) 1\n"
            (own,) = sockets(child)
            childs = Reader(own)
            childs.until(lambda: childs.value("step") == 1)
            assert childs.trainer().pid == child
            samples = reader.samples
            reader.until(lambda: reader.samples > samples)
            reader.close()
            childs.close()
        finally:
            os.kill(child, 9)
            for path in sockets(child):
                path.unlink()


def test_a_forked_child_frees_nothing_of_its_parent():
    """It may hold an event of CUDA, and torch ends a child that destroys one."""
    code = f"""{TRAINING}
import gc, gpuscope, os, warnings
warnings.simplefilter("ignore")
gpuscope.watch()
for _ in range(5): step()
class Event:
    def __del__(self):
        print("freed in", "the parent" if os.getpid() == parent else "a child", flush=True)
probe, parent = sys._gpuscope_probe, os.getpid()
hooks = probe.hooks
for holder in (probe.steps, probe.ledger, probe.gauges, hooks.passes, hooks.split, hooks.loading):
    holder.event = Event()
if os.fork() == 0:
    gc.collect()
    print("a child lives", flush=True)
    os._exit(0)
os.wait()
hooks.passes.event = None
"""
    assert output(code).splitlines()[:2] == ["a child lives", "freed in the parent"]


def test_a_multiprocessing_child_that_trains_cleans_up_after_itself():
    """Forked children of multiprocessing end without atexit."""
    code = f"""{TRAINING}
import gpuscope, multiprocessing, os, warnings
warnings.simplefilter("ignore")
gpuscope.watch()
def child():
    step()
    from gpuscope.probe.rendezvous import directory
    print(any(n.startswith(str(os.getpid()) + "-") for n in os.listdir(directory())), os.getpid(), flush=True)
p = multiprocessing.get_context("fork").Process(target=child)
p.start(); p.join()
print(p.exitcode)
"""  # noqa: E501
    seen, pid, code_ = output(code).split()
    assert (seen, code_) == ("True", "0")
    assert sockets(int(pid)) == []


def test_dataloader_workers_open_nothing():
    code = f"""{TRAINING}{STATE}
import gpuscope, torch.utils.data
gpuscope.watch()
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        probes = sum(thread.name == "gpuscope-probe" for thread in threading.enumerate())
        return torch.tensor([probes, state()[1], os.getpid()])
for _ in range(3): step()
rows = torch.cat(list(torch.utils.data.DataLoader(Data(), num_workers=2, batch_size=2))).tolist()
step()
from gpuscope.probe.rendezvous import directory
pids = {{row[2] for row in rows}}
print(len(pids), {{tuple(row[:2]) for row in rows}}, sys._gpuscope_probe.steps.loader_seen)
print(sum(int(name.split("-")[0]) in pids for name in os.listdir(directory()) if name.endswith(".sock")))
"""  # noqa: E501
    assert output(code) == "2 {(0, 0)} True\n0\n"


def test_no_safe_place_leaves_the_training_alone(tmp_path):
    code = f"""{TRAINING}
from gpuscope.probe import rendezvous
import gpuscope, os, threading
rendezvous.BASE = {str(tmp_path)!r}
os.symlink("/etc", rendezvous.directory())
gpuscope.watch()
for _ in range(3): step()
print(threading.active_count(), sys._gpuscope_probe.problem)
"""
    out = output(code)
    assert out.startswith("1 ")
    assert "symlink" in out
    again = code.replace("os.symlink", "os.path.lexists(rendezvous.directory()) or os.symlink")
    with trainer(again, fork=True, GPUSCOPE_DEBUG="1") as process:
        assert "symlink" in process.communicate(timeout=120)[1]


def test_a_strange_optimizer_is_stepped_all_the_same():
    code = f"""{TRAINING}
import gpuscope
gpuscope.watch()
class Strange(torch.optim.SGD):
    @property
    def found_inf(self):
        if sys._getframe(1).f_globals["__name__"].startswith("gpuscope"): raise ValueError("no")
strange = Strange(model.parameters(), lr=0.1)
weight = model[0].weight.clone()
model(torch.ones(1, 16)).sum().backward()
strange.step()
print(bool((model[0].weight != weight).any()))
"""
    assert output(code) == "True\n"


def test_gpuscope_0_turns_watch_into_nothing():
    code = (
        f"{TRAINING}import gpuscope\ngpuscope.watch(model)\n"
        "step(); print(hasattr(sys, '_gpuscope_probe'))"
    )
    assert output(code, GPUSCOPE="0") == "False\n"


def test_watch_with_things_that_are_no_models_does_not_raise():
    assert (
        output(
            f"{TRAINING}import gpuscope\ngpuscope.watch(model=3, optimizer=[None, 'x'])\n"
            "step(); print('on')"
        )
        == "on\n"
    )


@pytest.mark.slow
def test_the_exit_is_not_held_up():
    code = (
        TRAINING + "import atexit; atexit.register(lambda: print(time.monotonic() - begin < 0.9))\n"
    )
    assert (
        output(
            code + "import gpuscope; gpuscope.watch(); step(); begin = time.monotonic()", fork=False
        )
        == "True\n"
    )


@pytest.mark.slow
def test_a_trainer_that_closes_all_descriptors_keeps_its_own_and_is_seen_again():
    # The numbers of ours then belong to files of the trainer: none of them may be read, accepted
    # from, or closed.
    code = f"""{PLACE_APART}{TRAINING}
import gpuscope, socket
gpuscope.watch()
train(0.1)
sys.stdin.readline()
os.closerange(3, 4096)
own = [socket.socket(socket.AF_UNIX) for _ in range(8)]
for number, listener in enumerate(own):
    listener.bind(f"\\0gpuscope-test-{{os.getpid()}}-{{number}}")
    listener.listen()
friends = [socket.socket(socket.AF_UNIX) for _ in own]
for friend, listener in zip(friends, own):
    friend.connect(listener.getsockname())
print("closed", flush=True)
used = time.process_time()
sys.stdin.readline()
print(time.process_time() - used < 0.5)
for listener in own:
    listener.settimeout(5)
    listener.accept()[0].send(b"x")
print([friend.recv(1) for friend in friends] == [b"x"] * 8)
""".replace("import sys", "import os, sys", 1)
    with trainer(code, fork=True) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        inode = sockets(process.pid)[0].stat().st_ino
        process.stdin.write("close\n")
        process.stdin.flush()
        assert process.stdout.readline() == "closed\n", process.stderr.read()
        wait_for(lambda: (found := sockets(process.pid)) and found[0].stat().st_ino != inode)
        again = Reader(sockets(process.pid)[0])
        again.until(lambda: again.samples)
        out, err = process.communicate("go\n", timeout=30)
        assert (out, process.returncode) == ("True\nTrue\n", 0), err
        assert lines_of_ours(err) == []
        reader.close()
        again.close()
