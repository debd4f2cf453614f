"""Torch's modules that name the frames of a history are imported at a good moment.

It is never beside an import of the trainer.
"""

from __future__ import annotations

import pytest

from tests.fakes.probe_client import environment
from tests.fakes.program import python

pytest.importorskip("torch")
CODE = """
import sys, threading, types
import torch
from gpuscope.probe import segments, symbols
from gpuscope.probe.long_requests import Refusal

# A module that takes its time: another thread stands inside its import.
inside, leave = threading.Event(), threading.Event()
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "slow_module":
            inside.set()
            leave.wait(30)
sys.meta_path.insert(0, Slow())
def importing():
    try: import slow_module
    except ImportError: pass

# The allocator of a process that records a history: like the real one, it looks for torch._inductor.
def listed(*_):
    hasattr(torch, "_inductor")
    return {"segments": []}
torch._C._cuda_memorySnapshot = listed
torch._C._cuda_memoryStats = lambda device: {name: {"all": {"current": 0}}
    for name in ("reserved_bytes", "active_bytes", "active")}
torch._C._cuda_isHistoryEnabled = lambda: True
torch._C._cuda_isCurrentStreamCapturing = lambda: False
walk = segments.Segments()
walk.tick([0], None, set())
print("walked:", "torch._inductor" in sys.modules, walk.of(0)["workspace_bytes"].text)

thread = threading.Thread(target=importing)
thread.start()
inside.wait()
try: symbols.load()
except Refusal as refusal: print("refused:", refusal.code, "torch._inductor" in sys.modules)
leave.set()
thread.join()
symbols.load()
print("loaded:", symbols.loaded())
walk._next = 0.0
walk.tick([0], None, set())
print("then:", walk.of(0)["workspace_bytes"].text)
"""  # noqa: E501


@pytest.mark.slow
def test_frames_are_named_only_once_torch_has_its_modules_and_never_beside_an_import_of_the_trainer():  # noqa: E501
    done = python("-c", CODE, env=environment())
    assert done.stdout.splitlines() == [
        "walked: False a history is recorded, and listing segments would make torch import "
        "modules here",
        "refused: busy False",
        "loaded: True",
        "then: distinguished from temporary blocks by a second walk over the segments",
    ], done.stderr


BARE = """
import sys, torch
from gpuscope.probe import segments
block = torch.empty(1 << 20, device="cuda")
walk = segments.Segments()
walk.tick([0], None, set())
print(walk.of(0)["private_pool_idle_bytes"], "torch._inductor" in sys.modules)
"""


@pytest.mark.gpu
def test_a_walk_where_no_history_was_ever_recorded_makes_torch_import_nothing():
    done = python("-c", BARE, env=environment())
    assert done.stdout == "0 False\n", done.stderr
