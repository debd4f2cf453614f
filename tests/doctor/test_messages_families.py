"""Families of messages are known in the wordings of torch's versions and its neighbours'.

Symptoms and the order of priors are here too.
"""

from __future__ import annotations

import pytest

from gpuscope.doctor.messages import examine
from gpuscope.doctor.order import rank
from tests.fakes.cases import each

from . import message_templates as say
from .message_templates import GIB, MIB

TWO = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, "
)
ARGUMENT = "(when checking argument for argument {} in method wrapper_{})"
ONE = (
    "RuntimeError: Expected all tensors to be on the same device, but got {} is on {}, "
    "different from other tensors "
)
TYPES = (
    "RuntimeError: expected mat1 and mat2 to have the same dtype, but got: c10::Half != "
    "c10::BFloat16"
)

MESSAGES = (
    # torch's check names the argument at fault last: it is on the second device, what came before
    # on the first.
    (TWO + "cuda:3 and cpu! " + ARGUMENT.format("mat1", "addmm"), "move-inputs-to-device"),
    (TWO + "cpu and cuda:3! " + ARGUMENT.format("mat1", "addmm"), "move-model-to-device"),
    (
        TWO + "cuda:3 and cpu! " + ARGUMENT.format("weight", "CUDA__cudnn_convolution"),
        "move-model-to-device",
    ),
    (
        TWO + "cpu and cuda:3! " + ARGUMENT.format("weight", "CUDA__cudnn_convolution"),
        "move-inputs-to-device",
    ),
    (
        TWO + "cuda:3 and cpu! " + ARGUMENT.format("index", "CUDA__index_select"),
        "move-inputs-to-device",
    ),
    (TWO + "xpu:1 and cpu! " + ARGUMENT.format("mat2", "XPU_addmm"), "move-model-to-device"),
    (
        TWO + "cuda:2 and cuda:5! " + ARGUMENT.format("weight", "CUDA__native_layer_norm"),
        "buffers-not-registered",
    ),
    (
        ONE.format("mat1", "cpu") + "on cuda:1 " + ARGUMENT.format("mat1", "addmm"),
        "move-inputs-to-device",
    ),
    (
        ONE.format("mat2", "cpu") + "on cuda:1 " + ARGUMENT.format("mat2", "addmm"),
        "move-model-to-device",
    ),
    (
        ONE.format("mat1", "cuda:1") + "on cpu " + ARGUMENT.format("mat1", "addmm"),
        "move-model-to-device",
    ),
    (
        "RuntimeError: Expected object of backend CPU but got backend CUDA for argument #3 'input'",
        "move-model-to-device",
    ),
    (
        "RuntimeError: Input and hidden tensors are not at the same device, found input tensor at "
        "cuda:1 and hidden tensor at cpu",
        "move-inputs-to-device",
    ),
    (
        "RuntimeError: Input and parameter tensors are not at the same device, found input tensor "
        "at cuda:1 and parameter tensor at cpu",
        "move-model-to-device",
    ),
    (
        "RuntimeError: Placeholder storage has not been allocated on MPS device!",
        "move-inputs-to-device",
    ),
    (
        "ValueError: Pointer argument (at 2) cannot be accessed from Triton (cpu tensor?)",
        "move-inputs-to-device",
    ),
    ("RuntimeError: Broadcast function not implemented for CPU tensors", "move-model-to-device"),
    ("RuntimeError: Class values must be smaller than num_classes.", "bad-index-or-label"),
    (
        "RuntimeError: Error(s) in loading state_dict:\n"
        '\tMissing key(s) in state_dict: "module.stem.weight".',
        "use-module-attr",
    ),
    (
        "AttributeError: 'FullyShardedDataParallel' object has no attribute 'heads'",
        "use-module-attr",
    ),
    # the host
    (
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Segmentation fault.",
        "num-workers",
    ),
    ("ERROR: Unexpected segmentation fault encountered in worker.", "num-workers"),
    (
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Terminated.",
        "host-memory-limit",
    ),
    ("  exitcode  : -7 (pid: 77)\n  Signal 7 (SIGBUS) received by PID 77", "shm-size"),
    ("subprocess.py launch: return code = -7", "shm-size"),
    ("OSError: [Errno 28] No space left on device: '/dev/shm/torch_77'", "shm-size"),
    (
        "RuntimeError: An attempt has been made to start a new process before the current process "
        "has finished its bootstrapping phase.",
        "main-guard",
    ),
    ("RuntimeError: DataLoader timed out after 77 seconds", "num-workers"),
    (
        "OSError: [WinError 1455] The paging file is too small for this operation to complete. "
        'Error loading "C:\\x.dll"',
        "num-workers",
    ),
    (
        "RuntimeError: [enforce fail at posix_memalign] . posix_memalign(&data, gAlignment, "
        "nbytes) == 0. 12 vs 0",
        "host-memory-limit",
    ),
    # builds and libraries
    ("nvcc fatal   : Unsupported gpu architecture 'compute_77'", "wrong-torch-build-arch"),
    (
        "rocBLAS error: Cannot read TensileLibrary.dat: no such file for GPU arch : gfx777",
        "wrong-torch-build-arch",
    ),
    ("MIOpen Error: /src/hipoc.cpp:77: Code object build failed", "driver-cuda-mismatch"),
    ("Memory access fault by GPU node-7 on address 0x77. Reason: Unknown.", "driver-cuda-mismatch"),
    ("RuntimeError: FlashAttention only supports Ampere GPUs or newer.", "flash-attention-sdpa"),
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.",
        "cast-to-model-dtype",
    ),
    ("RuntimeError: Triton Error [CUDA]: out of memory", "reduce-batch-size"),
    # several devices
    (
        "RuntimeError: It looks like your LightningModule has parameters that were not used in "
        "producing the loss returned by training_step.",
        "find-unused-parameters",
    ),
)

SYMPTOMS = (
    ("the program has ended but nvidia-smi still shows its memory as used", "kill-zombie-process"),
    ("every rank also takes memory on the first GPU", "set-device-per-rank"),
    (
        "GPU utilisation fluctuates between 0 and 95 percent, the CPU is busy reading pictures",
        "num-workers",
    ),
    (
        "a matrix product seems to take 0.1 ms whatever its size, the time shows up where the "
        "result is printed",
        "synchronize-timing",
    ),
    ("memory of the host grows with every epoch until the machine swaps", "host-memory-limit"),
    ("the pin-memory thread of the loader ends with an exception", "pin-memory"),
    (
        "out of memory while the shards of an FSDP model are gathered for its checkpoint",
        "fsdp-or-zero",
    ),
    ("runs out of memory since the trainer was upgraded, with any batch", "gradient-checkpointing"),
)


def short(text: str) -> str:
    return text[-60:]


def found(text: str):
    return rank(examine(text.split("\n"))[0])


def names(text: str) -> list[str]:
    return [one.pitfall for one in found(text)]


def named(symptom: str) -> list[str]:
    return [one.pitfall for one in rank(examine((), symptom=symptom)[0])]


@each(("text", "pitfall"), MESSAGES)
def test_the_message_speaks_for(text, pitfall):
    assert names(text)[0] == pitfall


@pytest.mark.parametrize("text", [text for text, _ in MESSAGES[::5]], ids=short)
def test_the_message_in_a_long_log(text):
    """Past the size that is kept whole the message is found by a handful of words."""
    filler = "step of the run, all as it was before, nothing to see\n" * 6_000
    assert names(filler + text + "\n" + filler) == names(text)


@pytest.mark.parametrize(("text", "pitfall"), SYMPTOMS, ids=short)
def test_the_symptom_speaks_for(text, pitfall):
    assert pitfall in named(text)[:2]


@pytest.mark.parametrize(
    "text",
    [
        "Memory usage is fine and every device answers",
        "saved checkpoint with 77 keys, module.py is unchanged",
        "worker 7 finished, code = -70",
        "dataset kept in /data/torch_7, no space problems",
        "use a smaller tile to avoid OOM",
        "OOM: 0 since the start, OOM score 700, OOM-safe loader, ROOM 7",
    ],
)
def test_what_is_no_failure(text):
    assert names(text) == []


def test_a_hang_that_is_only_told_of_is_one_of_three():
    told = named("the run on two GPUs freezes and prints nothing")
    assert told == ["hang-in-collective", "hang-in-loader", "hang-alone"]


@pytest.mark.parametrize("text", [text for text, _ in SYMPTOMS], ids=short)
@pytest.mark.parametrize("marker", ["symptom: ", "Symptom:\n", "step 3\nsymptom: "])
def test_no_marker_in_a_log_makes_it_a_description(text, marker):
    assert examine((marker + text).split("\n")) == examine(
        (marker.replace("ymptom", "ummary") + text).split("\n")
    )


def test_the_word_alone_in_a_log_is_a_refusal_of_which_only_the_circumstances_are_known():
    said = examine(
        ["engine ready, gpu_memory_utilization 0.93", "worker 3 went OOM, 7 requests dropped"]
    )[0]
    assert said[0].pitfall == "reduce-seq-length-or-resolution"
    assert {(one.confidence, one.severity) for one in said} == {("prior", "info")}
    assert said[0].evidence[0].text == "worker 3 went OOM, 7 requests dropped"
    assert said[0].evidence[0].source == "log:2"


def test_a_message_of_its_own_counts_for_more_than_the_word():
    message = "RuntimeError: CUDA error: out of memory"
    assert names(f"{message}\nrank 0: OOM, giving up") == names(f"{message}\nrank 0: giving up")


def test_words_beside_a_log_are_circumstances_of_its_message():
    log = ["RuntimeError: CUDA out of memory."]
    alone = rank(examine(log)[0])
    told = rank(examine(log, symptom="it happens in the first validation")[0])
    assert (alone[0].pitfall, alone[0].confidence) == ("reduce-batch-size", "prior")
    assert (told[0].pitfall, told[0].confidence, told[0].evidence[0].source) == (
        "no-grad-eval",
        "likely",
        "log:1",
    )


def test_several_causes_come_with_their_alternatives():
    """The message does not say which; the usual cures follow one another."""
    text = TWO + "cuda:3 and cpu!"
    assert names(text)[:1] == ["move-inputs-to-device"]
    assert {"move-model-to-device", "buffers-not-registered", "upgrade-library"} <= set(names(text))


def test_priors_stand_in_the_order_of_their_weights():
    """Whatever severity the rule of each has: it says how bad, not how probable."""
    text = "torch.cuda.OutOfMemoryError: CUDA out of memory.\nsymptom-free line\n"
    findings = found(text)
    assert len(findings) > 4
    assert {one.confidence for one in findings} == {"prior"}
    assert [one.pitfall for one in findings][:1] == ["reduce-batch-size"]


def test_data_parallel_under_bf16():
    frames = say.traceback(
        ("/v/torch/nn/parallel/data_parallel.py", 7, "parallel_apply", "return parallel_apply(x)")
    )
    told = names(frames + TYPES)
    assert told[0] == "autocast-inside-forward"
    assert {"ddp-instead-of-dp", "cast-to-model-dtype"} == set(told[1:3])
    assert names(TYPES)[0] == "cast-to-model-dtype"


def test_kept_predictions():
    frames = say.traceback(("/w/a.py", 7, "validate", "all_logits.append(net(x))"))
    full = say.oom(
        "2.5", asked=98 * MIB, total=22 * GIB, held=20 * GIB, free=37 * MIB, spare=300 * MIB
    )
    assert set(names(frames + full)[:2]) == {
        "image-validation-full-set-on-gpu",
        "memory-leak-in-user-list",
    }


def test_refused_with_memory_free():
    told = say.oom(
        "2.5", asked=20 * MIB, total=24 * GIB, held=2 * GIB, free=21 * GIB, spare=100 * MIB
    )
    assert {"host-memory-limit", "driver-cuda-mismatch"} <= set(names(told)[:3])


def test_the_share_of_one_request():
    """The share of one request decides between causes.

    What one request is of the device speaks for the batch first, and then for the tensor's shape.
    """
    numbers = {"total": 24 * GIB, "free": 10 * MIB, "spare": 90 * MIB}
    small = say.oom("2.5", asked=64 * MIB, held=23 * GIB, **numbers)
    large = say.oom("2.5", asked=11 * GIB, held=23 * GIB, **numbers)
    assert names(small)[0] == "reduce-batch-size"
    assert names(large)[0] == "reduce-seq-length-or-resolution"


def test_mps_asks_for_much_of_what_is_allowed():
    told = (
        "RuntimeError: MPS backend out of memory (MPS allocated: 7.00 GiB, other allocations: 1.00 "
        "GiB, max allowed: 9.00 GiB). Tried to allocate {} on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit."
    )
    assert names(told.format("4.00 GiB"))[0] == "reduce-seq-length-or-resolution"
    assert names(told.format("40.00 MiB"))[0] == "mps-watermark-ratio"


def test_states_of_the_optimizer_on_another_device():
    frames = say.traceback(("/v/torch/optim/adam.py", 7, "step", "exp_avg.lerp_(grad, 1 - beta1)"))
    assert names(frames + TWO + "cuda:0 and cpu!")[0] == "move-model-to-device"


def test_a_table_of_devices_counts_for_more_than_the_word():
    table = ["| 30%  40C  P2  90W / 350W | 20000MiB / 24000MiB | 0%  Default |"]
    assert names("\n".join([*table, "the next start is OOM"])) == names(table[0])
