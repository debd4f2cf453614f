"""Messages that are not about device memory each name their cause.

They do so in their surroundings and with their rank.
"""

from __future__ import annotations

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.messages import examine, tables, weights
from gpuscope.doctor.order import rank
from tests.fakes.cases import each

from . import message_templates as say

DEFINITE = (
    ("AttributeError: 'Sequential' object has no attribute 'module'", "use-module-attr"),
    (
        "RuntimeError: indices should be either on cpu or on the same device as the indexed "
        "tensor (cuda:1)",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) "
        "should be the same",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: module must have its parameters and buffers on device cuda:2 "
        "(device_ids[0]) but found one of them on device: cpu",
        "move-model-to-device",
    ),
    (
        "AttributeError: 'DistributedDataParallel' object has no attribute 'encoder'",
        "use-module-attr",
    ),
    (
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting "
        "a new one.",
        "find-unused-parameters",
    ),
    (
        "RuntimeError: Expected to mark a variable ready only once.",
        "ddp-static-graph-or-nonreentrant",
    ),
    (
        "ValueError: Error initializing torch.distributed using env:// rendezvous: environment "
        "variable MASTER_ADDR expected, but not set",
        "init-process-group-env",
    ),
    (
        "ncclInvalidUsage\nDuplicate GPU detected : rank 5 and rank 4 both on CUDA device 1b000",
        "set-device-per-rank",
    ),
    ("AssertionError: Torch not compiled with CUDA enabled", "wrong-torch-build-cpu-only"),
    (
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "wrong-torch-build-arch",
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11020).",
        "driver-cuda-mismatch",
    ),
    ("RuntimeError: CUDA error: invalid device ordinal", "visible-devices"),
    (
        "RuntimeError: unscale_() has already been called on this optimizer since the last "
        "update().",
        "grad-scaler-unscale-order",
    ),
    (
        "AssertionError: No inf checks were recorded for this optimizer.",
        "grad-scaler-unscale-order",
    ),
    (
        "RuntimeError: Trying to backward through the graph a second time (or directly access "
        "saved tensors)",
        "retain-graph",
    ),
    (
        "torch._dynamo hit config.recompile_limit (8)\n   function: 'step' (a.py:3)\n"
        "   last reason: 0/0: size",
        "dynamic-shapes-recompile",
    ),
    ("torch._dynamo hit config.cache_size_limit (64)", "dynamic-shapes-recompile"),
    (
        "RuntimeError: Attempting to deserialize object on a CUDA device but "
        "torch.cuda.is_available() is False.",
        "load-checkpoint-map-location-cpu",
    ),
    (
        "Indexing.cu:99: block: [3,0,0], thread: [7,0,0] Assertion `srcIndex < srcSelectDimSize` "
        "failed.",
        "bad-index-or-label",
    ),
)

LIKELY = (
    (
        "RuntimeError: Input type (c10::Half) and bias type (float) should be the same",
        "cast-to-model-dtype",
    ),
    (
        "RuntimeError: Tensor on device cuda:0 is not on the expected device cpu!",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: arguments are located on different GPUs at generic/Blas.cu:88",
        "buffers-not-registered",
    ),
    ("StopIteration: Caught StopIteration in replica 1 on device 1.", "upgrade-library"),
    (
        "RuntimeError: value cannot be converted to type at::Half without overflow: -1e+20",
        "cast-to-model-dtype",
    ),
    ("RuntimeError: Detected mismatch between collectives on ranks.", "distributed-sampler"),
    ("/var/run.sh: line 12:  4242 Killed                  python train.py", "host-memory-limit"),
    (
        "slurmstepd: error: Job 5 exceeded job memory limit (900 > 800), being killed",
        "host-memory-limit",
    ),
    ("HIP error: invalid device function", "wrong-torch-build-arch"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-health"),
    (
        "RuntimeError: cuDNN version incompatibility: PyTorch was compiled against (8, 7, 0)",
        "driver-cuda-mismatch",
    ),
    (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456",
        "compile-mode",
    ),
    (
        "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) "
        "should be the same",
        "move-model-to-device",
    ),
    (
        "RuntimeError: Input type (torch.cuda.HalfTensor) and weight type "
        "(torch.cuda.FloatTensor) should be the same",
        "cast-to-model-dtype",
    ),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:0 and cpu!",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:3 and cuda:0!",
        "buffers-not-registered",
    ),
    (
        "RuntimeError: Expected object of backend CUDA but got backend CPU for argument #3 'index'",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: mat1 and mat2 must have the same dtype, but got BFloat16 and Float",
        "cast-to-model-dtype",
    ),
    ("RuntimeError: DataLoader worker (pid 311) is killed by signal: Killed.", "host-memory-limit"),
    ("RuntimeError: DataLoader worker (pid 311) is killed by signal: Bus error.", "shm-size"),
    (
        "RuntimeError: unable to open shared memory object </torch_9_8> in read-write mode",
        "shm-size",
    ),
    ("RuntimeError: Pin memory thread exited unexpectedly", "pin-memory"),
    ("RuntimeError: DataLoader worker (pid(s) 12, 13) exited unexpectedly", "num-workers"),
    ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0", "host-memory-limit"),
    ("  exitcode  : -9 (pid: 909)\n  Signal 9 (SIGKILL) received by PID 909", "host-memory-limit"),
    (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:80] DefaultCPUAllocator: can't allocate "
        "memory: you tried to allocate 4096000 bytes.",
        "host-memory-limit",
    ),
    (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete",
        "host-memory-limit",
    ),
    ("RuntimeError: No CUDA GPUs are available", "visible-devices"),
    ("ValueError: Attempting to unscale FP16 gradients.", "cast-to-model-dtype"),
    (
        "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution",
        "reduce-batch-size",
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: a.cpp:1, unhandled cuda error\n"
        "Last error:\nCuda failure 'out of memory'",
        "empty-cache",
    ),
    ("RuntimeError: Graph break from `Tensor.item()`", "compile-graph-break"),
    (
        "UserWarning: This DataLoader will create 32 worker processes in total. Our suggested max "
        "number of worker in current system is 4",
        "num-workers",
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization`",
        "reduce-seq-length-or-resolution",
    ),
    ("RuntimeError: Failed to clone() tensor with name layers.0.weight on rank 1.", "fsdp-or-zero"),
    (
        "W: Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 0.5",
        "bf16-instead-of-fp16",
    ),
)


def short(text: str) -> str:
    return text[:60]


def top(text: str):
    return rank(examine(text.split("\n"))[0])[0]


@each(("text", "pitfall"), DEFINITE)
def test_what_the_text_decides(text, pitfall):
    one = top(text)
    assert (one.pitfall, one.confidence) == (pitfall, "definite")


@each(("text", "pitfall"), LIKELY)
def test_what_the_text_speaks_for(text, pitfall):
    one = top(text)
    assert (one.pitfall, one.confidence) == (pitfall, "likely")


@each("text", [text for text, _ in (*DEFINITE, *LIKELY)])
def test_wrapping_and_prefixes_change_nothing(text):
    plain = [one.pitfall for one in examine(text.split("\n"))[0]]
    told = say.prefixed(say.hard(text.replace("\n", " "), 50), "[rank7]: ")
    findings = examine(told.split("\n"))[0]
    assert [one.pitfall for one in findings] == plain
    assert findings[0].where == "rank 7"


def test_every_name_is_in_the_table():
    """Also of the causes that the samples above do not reach."""
    rows = table.load()
    used = {(one.pitfall, rule.cause) for rule in tables.rules() for one in rule.options}
    for symptom in tables.symptoms((*tables.DESCRIBED, *tables.PLAIN, *tables.PRINTED)):
        used |= {(one.pitfall, symptom.cause) for one in symptom.votes}
    for rule in tables.figure_rules().values():
        used |= {(one.pitfall, one.cause or rule.cause or rule.id) for one in rule.votes}
    assert {one.pitfall for one in tables.abstentions().values()} <= set(rows)
    weighed = set(weights.BASE) | {
        pitfall for shift in weights.SHIFTS.values() for pitfall in shift
    }
    used |= {(pitfall, weights.CAUSES.get(pitfall, f"oom.{pitfall}")) for pitfall in weighed}
    assert {pitfall for pitfall, _ in used} <= set(rows)
    assert {
        (pitfall, cause) for pitfall, cause in used if cause not in rows[pitfall].causes
    } == set()
    assert {"reduce-batch-size", "shm-size", "retain-graph", "set-to-none"} <= {
        pitfall for pitfall, _ in used
    }
    assert weighed <= set(weights.TITLES)


def test_several_messages_of_one_log():
    told = (
        "DataLoader worker (pid 311) is killed by signal: Killed.\n" * 3
        + "AssertionError: Torch not compiled with CUDA enabled\n"
    )
    found = [one.pitfall for one in rank(examine(told.split("\n"))[0])]
    assert found[0] == "wrong-torch-build-cpu-only"
    assert "host-memory-limit" in found


@pytest.mark.parametrize(
    "text",
    [
        "GPU utilization is only 9% while the dataloader takes most of the time",
        "memory grows from step to step, total_loss is accumulated with the graph",
        "on resume the checkpoint is loaded by torch.load and memory doubles",
    ],
)
def test_a_description_is_never_definite(text):
    findings = examine((), symptom=text)[0]
    assert findings
    assert all(one.confidence != "definite" and one.severity != "problem" for one in findings)


def test_evidence_says_where():
    told = "a\nb\nc\nAssertionError: Torch not compiled with CUDA enabled\n"
    one = examine(told.split("\n"), "run.log")[0][0]
    assert one.evidence[0].source == "run.log:4"
    assert "not compiled with CUDA" in one.evidence[0].text


def test_a_line_that_only_says_killed():
    assert top("step 3\nKilled\n$").pitfall == "host-memory-limit"
    assert examine(["2 workers killed the queue and went on"])[0] == ()
