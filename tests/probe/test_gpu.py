"""The probe in real CUDA trainings. Run with ``pytest -m gpu tests/probe``."""

from __future__ import annotations

import re
import subprocess
import time

import pytest

from tests.fakes.probe_client import TRAINING, Reader, sockets, trainer, wait_for

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

CUDA = TRAINING.replace("torch.nn.Linear(32, 4))", "torch.nn.Linear(32, 4)).cuda()").replace(
    "torch.randn(8, 16)", "torch.randn(8, 16, device='cuda')"
)
CONTEXT = "def context(): return torch.cuda.is_initialized(), torch._C._cuda_hasPrimaryContext(0)\n"
STATISTICS = {
    "allocated_bytes": "allocated_bytes.all.current",
    "reserved_bytes": "reserved_bytes.all.current",
    "active_bytes": "active_bytes.all.current",
    "inactive_split_bytes": "inactive_split_bytes.all.current",
    "requested_bytes": "requested_bytes.all.current",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "alloc_retries": "num_alloc_retries",
    "ooms": "num_ooms",
    "allocation_count": "allocation.all.current",
    "segment_count": "segment.all.current",
}


def lines(process, count):
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def test_a_cuda_training_is_seen_within_two_seconds_and_its_bytes_are_exact():
    # 4 MiB of parameters, so that this is more than rounding
    code = CUDA.replace(
        "Linear(16, 32)",
        "Linear(16, 32), torch.nn.Linear(32, 32768, bias=False), torch.nn.Linear(32768, 32)",
    )
    with trainer(
        code + "import gpuscope; gpuscope.watch(); step(); print('go', flush=True); train()"
    ) as process:
        assert lines(process, 1) == ["go"], process.stderr.read()
        begin = time.monotonic()
        reader = Reader(wait_for(lambda: sockets(process.pid))[0])
        entity = reader.until(lambda: reader.alloc(0))
        reader.until(lambda: reader.value("step") and reader.value("allocated_bytes", entity))
        assert time.monotonic() - begin < 2
        reader.until(lambda: reader.value("parameter_bytes", entity) is not None)
        parameters = (16 * 32 + 32 + 32 * 32768 + 32768 * 32 + 32 + 32 * 4 + 4) * 4
        assert reader.value("parameter_bytes", entity) == parameters
        assert reader.value("gradient_bytes", entity) == parameters
        assert (
            2 * parameters <= reader.value("optimizer_state_bytes", entity) <= 2 * parameters + 64
        )
        assert reader.value("allocated_bytes", entity) >= 4 * parameters
        assert reader.value("statistics_seconds", entity) < 0.05
        assert reader.trainer().cuda
        assert reader.trainer().backend == "native"
        assert reader.alloc(-1) is None, "a few step counters on the CPU are no row of their own"
        reader.close()


def test_statistics_are_torchs_own_and_peaks_are_untouched():
    code = f"""{CUDA}
import json, gpuscope
gpuscope.watch()
big = torch.empty(512 << 20, dtype=torch.uint8, device="cuda"); del big
for _ in range(5): step()
torch.cuda.synchronize()
before = torch.cuda.memory_stats(0)
print(json.dumps(before), flush=True)
sys.stdin.readline()
print(torch.cuda.memory_stats(0) == before, torch.cuda.max_memory_allocated() > 512 << 20, flush=True)
sys.stdin.readline()
"""  # noqa: E501
    import json

    with trainer(code) as process:
        truth = json.loads(lines(process, 1)[0] or process.stderr.read())
        reader = Reader(sockets(process.pid)[0])
        entity = reader.until(lambda: reader.alloc(0))
        reader.until(lambda: reader.samples >= 6)
        for column, key in STATISTICS.items():
            assert reader.value(column, entity) == truth[key], column
        process.stdin.write("\n")
        process.stdin.flush()
        assert lines(process, 1) == ["True True"]
        reader.close()


def test_the_uuid_is_nvmls():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)
    with trainer(
        CUDA + "import gpuscope; gpuscope.watch(); train()", CUDA_VISIBLE_DEVICES=uuids[-1]
    ) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        entity = reader.until(lambda: reader.alloc(0))
        assert reader.defs[entity].alloc.uuid == uuids[-1]
        reader.close()


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_reordered_devices_keep_their_identity_and_unused_ones_get_no_context():
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = re.findall(r"UUID: (GPU-[0-9a-f-]+)", listed)
    code = (
        CUDA + "import gpuscope; gpuscope.watch()\nfor _ in range(9): step()\n"
        "print('ready', flush=True)\n"
    )
    code += (
        "sys.stdin.readline(); print(torch._C._cuda_hasPrimaryContext(1), flush=True); "
        "sys.stdin.readline()"
    )
    with trainer(code, CUDA_VISIBLE_DEVICES="1,0", CUDA_DEVICE_ORDER="PCI_BUS_ID") as process:
        lines(process, 1)
        reader = Reader(sockets(process.pid)[0])
        entity = reader.until(lambda: reader.alloc(0))
        assert reader.defs[entity].alloc.uuid == uuids[1]
        reader.until(lambda: reader.samples > 8)
        assert reader.alloc(1) is None
        process.stdin.write("\n")
        process.stdin.flush()
        assert lines(process, 1) == ["False"]
        reader.close()


def test_no_context_before_cuda_is_initialised_and_noticed_when_it_is():
    code = f"""{TRAINING}{CONTEXT}
import gpuscope
gpuscope.watch(model)
for _ in range(5): step()
print("ready", flush=True)
sys.stdin.readline()
print(*context(), flush=True)
block = torch.ones(1 << 20, device="cuda")
sys.stdin.readline()
"""
    with trainer(code) as process:
        lines(process, 1)
        reader = Reader(sockets(process.pid)[0])
        reader.until(lambda: reader.samples >= 5)
        entity = reader.alloc(-1)
        assert reader.reasons[entity, "allocated_bytes"][0] == "not_initialised"
        assert reader.trainer().cuda is False
        process.stdin.write("\n")
        process.stdin.flush()
        assert lines(process, 1) == ["False False"]
        card = reader.until(lambda: reader.alloc(0))
        reader.until(lambda: reader.value("allocated_bytes", card) == 4 << 20)
        reader.until(lambda: reader.trainer().cuda)
        reader.close()


def test_armed_starts_when_cuda_is_initialised_without_any_step():
    code = f"""{TRAINING}
from gpuscope.probe import arm
arm("run")
torch.cuda.is_available(), torch.cuda.device_count()
print(sys._gpuscope_probe.server, flush=True)
torch.ones(1, device="cuda")
print(sys._gpuscope_probe.server is not None, flush=True)
"""
    with trainer(code) as process:
        assert lines(process, 2) == ["None", "True"], process.stderr.read()


def test_private_pools_of_cuda_graphs_are_counted():
    code = f"""{CUDA}
import gpuscope
gpuscope.watch()
step()
static = torch.randn(1 << 20, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    out = static * 2
pools = [s for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0)]
print(sum(s["total_size"] for s in pools), flush=True)
sys.stdin.readline()
"""
    with trainer(code) as process:
        (pools,) = lines(process, 1)
        reader = Reader(sockets(process.pid)[0])
        entity = reader.until(lambda: reader.alloc(0))
        # A torch whose statistics do not tell is asked by a walk over its segments, seconds after
        # the last step.
        reader.until(lambda: reader.value("private_pool_bytes", entity) is not None)
        assert reader.value("private_pool_bytes", entity) == int(pools) >= 4 << 20
        reader.close()


def test_fused_scaling_on_the_device_is_unknown_and_never_read():
    code = (
        CUDA.replace("foreach=True", "fused=True")
        + """
import gpuscope
gpuscope.watch()
scaler = torch.amp.GradScaler("cuda")
def scaled():
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(8, 16, device="cuda")).sum()).backward()
    scaler.step(optimizer); scaler.update()
end = time.monotonic() + 60
while time.monotonic() < end: scaled(); time.sleep(0.005)
"""
    )
    with trainer(code) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        reader.until(lambda: (reader.value("step") or 0) > 5)
        assert "device" in reader.reasons[1, "skipped_steps"][1]
        reader.close()


def test_the_async_allocator_says_what_it_does_not_know():
    with trainer(
        CUDA + "import gpuscope; gpuscope.watch(); train()",
        PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
    ) as process:
        reader = Reader(wait_for(lambda: sockets(process.pid), 60)[0])
        entity = reader.until(lambda: reader.alloc(0))
        reader.until(lambda: reader.value("allocated_bytes", entity))
        assert reader.trainer().backend == "cudaMallocAsync"
        assert reader.reasons[entity, "inactive_split_bytes"][0] == "not_supported"
        reader.close()


def test_a_compiled_model_is_counted():
    code = CUDA.replace("def step():", "model = torch.compile(model)\ndef step():")
    with trainer(
        code + "import gpuscope; gpuscope.watch(); step(); print('go', flush=True); train()"
    ) as process:
        assert lines(process, 1) == ["go"], process.stderr.read()
        reader = Reader(sockets(process.pid)[0])
        reader.until(lambda: (reader.value("step") or 0) > 5)
        reader.close()
