"""Asking where the threads stand stops no trainer, whatever garbage it has."""

from __future__ import annotations

from tests.fakes.program import python

GARBAGE = """
import gc, threading
from gpuscope.probe.thread_frames import current_frames

class Holder:
    pass

def garbage():
    one = Holder()
    one.itself, one.local = one, threading.local()
    one.local.x = 1

def wait(here):
    here.set()
    leave.wait()

leave = threading.Event()
for _ in range(4):
    here = threading.Event()
    threading.Thread(target=wait, args=(here,), daemon=True).start()
    here.wait()
gc.disable()
gc.set_threshold(1)
for _ in range(1000):
    garbage()
spare = [{} for _ in range(50)]
del spare  # the dictionary that is returned is one of these, so that the first new object is a frame
gc.enable()
print(len(current_frames()), gc.isenabled(), flush=True)
leave.set()
"""  # noqa: E501


def test_a_collection_that_is_due_waits_until_the_frames_are_there():
    # Python 3.11 waited for ever for a lock of its own, in a trainer with garbage that held a
    # ``threading.local``.
    done = python("-c", GARBAGE)
    assert (done.stdout, done.stderr) == ("5 True\n", "")


def test_where_the_trainer_collects_by_itself_it_stays_so():
    code = GARBAGE.replace("gc.enable()\n", "")
    done = python("-c", code)
    assert (done.stdout, done.stderr) == ("5 False\n", "")
