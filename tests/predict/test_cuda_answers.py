"""A traced program may ask CUDA whatever trainers ask.

It is answered, and the driver is never reached.
"""

from __future__ import annotations

import pytest

from gpuscope.predict.child import Tracer
from gpuscope.predict.request import Request
from tests.fakes import forking, probe_client

pytestmark = pytest.mark.slow

pytest.importorskip("torch")
NO_DRIVER = """
import torch

def no_device():  # one for each name, since torch's compiler tells functions apart
    def asked(*_, **__):
        raise RuntimeError("CUDA error: no CUDA-capable device is detected")
    return asked

# As a build with CUDA is on a machine without a device: built, and every question reaches a driver that is not there.
torch.backends.cuda.is_built = lambda: True
for name in dir(torch._C):
    if name.startswith("_cuda_"):
        setattr(torch._C, name, no_device())
for name in ("is_current_stream_capturing", "mem_get_info", "get_device_properties", "synchronize", "current_stream",
             "initial_seed", "memory_stats", "Stream", "Event"):
    setattr(torch.cuda, name, no_device())
from gpuscope.predict.request import Request
from gpuscope.predict.tracing import steps

for options in ({"optimizer": "adamw"}, {"optimizer": "adamw", "amp": "fp16", "fused": True}, {"optimizer": "sgd"}):
    traced = steps.trace(Request("tests.predict.asking_factories:everything", batch=2, **options))
    print(len(traced.trace.events), sorted({doubt.code for doubt in traced.doubts}))
"""  # noqa: E501


def test_a_build_with_cuda_and_no_device_is_never_asked():
    environ = probe_client.environment(CUDA_VISIBLE_DEVICES="")
    done = forking.completed(NO_DRIVER, environ, seconds=200)
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 3
    assert all("device_memory" in line for line in done.stdout.splitlines())


def test_what_a_program_reads_of_the_device_is_told_with_a_doubt():
    with Tracer() as tracer:
        traced = tracer.trace(Request("tests.predict.asking_factories:everything", batch=2))
        plain = tracer.trace(Request("tests.predict.asking_factories:accelerated", batch=2))
    doubts = {doubt.operation for doubt in traced.doubts if doubt.code == "device_memory"}
    assert doubts == {"torch.cuda.mem_get_info", "torch.cuda.get_device_properties"}
    # Its tensors are on the device: the weights of 64 × 64 with gradients and momentum, and not on
    # the host.
    owners = traced.trace.owner_table
    for one in (traced, plain):
        held = sum(
            size
            for size, owner in zip(one.trace.sizes, one.trace.owners, strict=True)
            if one.trace.owner_table[owner].category == "parameter"
        )
        assert held == 64 * 64 * 4 + 64 * 4, owners


@pytest.mark.parametrize(
    ("architecture", "found"),
    [((8, 6), (84, 1536)), ((9, 0), (132, 2048)), ((10, 0), (148, 2048)), ((12, 1), (132, 2048))],
)
def test_a_program_is_told_the_multiprocessors_that_kernels_count_on(architecture, found):
    from gpuscope.predict.tracing.cuda_answers import answers

    device = answers(architecture, lambda: 0, lambda doubt: None)["get_device_properties"]()
    assert (device.multi_processor_count, device.max_threads_per_multi_processor) == found
