"""Every generation of the out-of-memory message is read to the same bytes.

The arithmetic names the cause.
"""

from __future__ import annotations

import html

import pytest

from gpuscope.doctor.messages import examine, oom, reading
from gpuscope.doctor.messages.text import Log
from gpuscope.doctor.order import rank
from tests.fakes.cases import each

from . import message_templates as say
from .message_templates import GIB, MIB

FULL = {
    "asked": 98 * MIB,
    "total": 22 * GIB,
    "held": 20 * GIB,
    "free": 37 * MIB,
    "spare": 300 * MIB,
}
OLD = ("1.0", "1.4", "1.10")
NEW = ("2.1", "2.2", "2.3", "2.5", "2.10", "2.12")


DISGUISES = {
    "cut": lambda text: say.hard(text, 60),
    "wrapped": lambda text: say.soft(text, 47),
    "rank": lambda text: say.prefixed(say.soft(text, 70), "[rank3]: "),
    "vllm": lambda text: say.prefixed(say.soft(text, 70), "(VllmWorkerProcess pid=40404) "),
    "time": lambda text: say.prefixed(say.hard(text, 70), "2026-04-05 06:07:08,910 "),
    "ansi": lambda text: say.prefixed(say.hard(text, 70), "\x1b[36m(train pid=31)\x1b[0m "),
    "html": lambda text: html.escape(text),
    "twice html": lambda text: html.escape(html.escape(text)),
    "tags": lambda text: f"<pre>{text}</pre>",
}


def records(text: str) -> list[oom.OutOfMemory]:
    return oom.find(Log(reading.read(text.split("\n")), "log"))


def record(text: str) -> oom.OutOfMemory:
    found = records(text)
    assert len(found) == 1
    return found[0]


def names(text: str) -> list[str]:
    return [one.pitfall for one in rank(examine(text.split("\n"))[0])]


def first(text: str):
    return rank(examine(text.split("\n"))[0])[0]


def near(value: int | None, wanted: int) -> bool:
    """The message rounds to two places."""
    return value is not None and abs(value - wanted) <= 0.006 * GIB


@pytest.mark.parametrize("form", OLD + NEW)
def test_numbers(form):
    one = record(say.oom(form, **FULL))
    assert (one.backend, one.device) == ("cuda", "2")
    for name, wanted in (
        ("requested", "asked"),
        ("capacity", "total"),
        ("allocated", "held"),
        ("free", "free"),
        ("unallocated", "spare"),
    ):
        assert near(getattr(one, f"{name}_bytes"), FULL[wanted]), name
    assert near(one.reserved_bytes, FULL["held"] + FULL["spare"])
    assert one.complete


def test_clauses():
    one = record(
        say.oom(
            "2.3",
            **FULL,
            own=21 * GIB,
            others=((4711, 700 * MIB), (4712, 800 * MIB)),
            pools=64 * MIB,
            allowed=21 * GIB,
        )
    )
    assert one.others == (("4711", 700 * MIB), ("4712", 800 * MIB))
    assert (one.process_bytes, one.private_pool_bytes, one.allowed_bytes) == (
        21 * GIB,
        64 * MIB,
        21 * GIB,
    )
    assert near(one.non_torch_bytes, 21 * GIB - 20 * GIB - 300 * MIB)


def test_what_is_not_said_is_unknown():
    one = record(say.oom("2.5", **FULL))
    assert one.process_bytes is None
    assert one.non_torch_bytes is None
    assert one.allowed_bytes is None
    assert record("RuntimeError: CUDA error: out of memory").requested_bytes is None


def test_not_available_is_unknown():
    text = say.oom("2.5", **FULL, own=1 << 64)
    assert "17179869184.00 GiB" in text
    assert record(text).process_bytes is None


@each(
    ("form", "disguise"),
    [
        *((form, "cut") for form in OLD + NEW),
        *((form, one) for form in (OLD[0], NEW[-1]) for one in list(DISGUISES)[1:]),
    ],
)
def test_same_numbers_in_any_wrapping(form, disguise):
    plain = record(say.oom(form, **FULL))
    told = record(DISGUISES[disguise](say.oom(form, **FULL)))
    for name in (
        "requested_bytes",
        "capacity_bytes",
        "allocated_bytes",
        "free_bytes",
        "unallocated_bytes",
        "device",
    ):
        assert getattr(told, name) == getattr(plain, name), name


def test_rank_of_the_prefix():
    assert "rank 3" in first(say.prefixed(say.oom("2.5", **FULL), "[rank3]: ")).where


def test_other_backends():
    assert record(say.oom("2.5", **FULL, backend="HIP")).backend == "hip"
    assert record(say.oom("2.5", **FULL, backend="XPU")).backend == "xpu"
    mps = record(
        "RuntimeError: MPS backend out of memory (MPS allocated: 11.25 GiB, other allocations: "
        "2.50 GiB, max allowed: 13.60 GiB). Tried to allocate 256.00 MiB on private pool. Use "
        "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit."
    )
    assert (mps.backend, mps.allocated_bytes, mps.other_allocations_bytes) == (
        "mps",
        int(11.25 * GIB),
        int(2.5 * GIB),
    )
    assert mps.requested_bytes == 256 * MIB
    cpu = record(
        "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 123456789 bytes. Error code 12 (Cannot allocate "
        "memory)"
    )
    assert (cpu.backend, cpu.requested_bytes) == ("cpu", 123456789)
    pooled = record(
        "Allocation on device 1 would exceed allowed memory. (out of memory)\n"
        "Currently allocated     : 9.50 GiB\n"
        "Requested               : 128.00 MiB\nDevice limit            : 11.75 GiB\n"
        "Free (according to CUDA): 0 bytes\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB"
    )
    assert (pooled.device, pooled.allocated_bytes, pooled.free_bytes, pooled.allowed_bytes) == (
        "1",
        int(9.5 * GIB),
        0,
        None,
    )


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: cuda runtime error (2) : out of memory at "
        "/build/aten/src/THC/THCStorage.cu:77",
        "THCudaCheck FAIL file=/build/THCStorage.cu line=77 error=2 : out of memory",
        "RuntimeError: CUDA error: out of memory",
        "torch.AcceleratorError: CUDA error: out of memory",
        "torch.cuda.OutOfMemoryError",
        "RuntimeError: UR error UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY",
    ],
)
def test_without_numbers_nothing_is_sure(text):
    assert record(text).form == "bare"
    findings, abstained = examine([text])
    assert findings
    assert {one.confidence for one in findings} == {"prior"}
    assert any(one.pitfall == "other-process-holds-gpu" for one in abstained)


@pytest.mark.parametrize("form", OLD + NEW)
def test_a_tensor_larger_than_the_device(form):
    told = say.oom(
        form, asked=90 * GIB, total=15 * GIB, held=3 * GIB, free=11 * GIB, spare=200 * MIB
    )
    assert first(told).pitfall == "reduce-seq-length-or-resolution"
    assert "flash-attention-sdpa" in names(told)[:3]


@pytest.mark.parametrize("form", NEW)
def test_own_limit(form):
    told = say.oom(
        form,
        asked=64 * MIB,
        total=80 * GIB,
        held=3 * GIB,
        free=70 * GIB,
        spare=10 * MIB,
        allowed=3 * GIB,
    )
    one = first(told)
    assert (one.pitfall, one.confidence) == ("memory-fraction-cap", "definite")


@pytest.mark.parametrize("form", ["1.4", "1.10", *NEW])
def test_another_process(form):
    told = say.oom(
        form, asked=20 * MIB, total=24 * GIB, held=8 * GIB, free=10 * MIB, spare=100 * MIB
    )
    assert first(told).pitfall == "other-process-holds-gpu"
    assert "reduce-batch-size" in names(told)


def test_named_process():
    told = say.oom(
        "2.5",
        asked=2 * GIB,
        total=24 * GIB,
        held=17 * GIB,
        free=90 * MIB,
        spare=100 * MIB,
        own=18 * GIB,
        others=((77, 6 * GIB),),
    )
    one = first(told)
    assert one.pitfall == "other-process-holds-gpu"
    assert "process 77 6.00 GiB" in " ".join(evidence.text for evidence in one.evidence)


def test_a_container_names_the_job_itself():
    told = say.oom(
        "2.5",
        asked=2 * GIB,
        total=80 * GIB,
        held=76 * GIB,
        free=1 * GIB,
        spare=1 * GIB,
        others=((9, 79 * GIB),),
    )
    assert first(told).pitfall == "reduce-batch-size"


@pytest.mark.parametrize(
    ("form", "pitfall"),
    [("1.10", "max-split-size"), ("2.2", "expandable-segments"), ("2.12", "expandable-segments")],
)
def test_fragmentation_in_its_strict_form(form, pitfall):
    told = say.oom(
        form, asked=1 * GIB, total=24 * GIB, held=18 * GIB, free=100 * MIB, spare=5 * GIB
    )
    one = first(told)
    assert (one.pitfall, one.confidence) == (pitfall, "definite")


def test_the_hint_alone_is_no_fragmentation():
    for form in NEW:
        found = examine([say.oom(form, **FULL)])[0]
        assert not [
            one
            for one in found
            if one.pitfall == "expandable-segments" and one.confidence != "prior"
        ]


@pytest.mark.parametrize(
    ("form", "asked", "likely"),
    [
        ("2.5", 2 * GIB, True),
        ("2.5", 5 * GIB, False),  # more than is unallocated
        ("2.5", 512 * MIB, False),  # the next of many small ones would fail
        ("1.10", 2 * GIB, False),  # has no expandable segments
    ],
)
def test_as_much_unallocated_as_was_asked_for_is_likely_fragmentation(form, asked, likely):
    told = say.oom(
        form, asked=asked, total=140 * GIB, held=134 * GIB, free=255 * MIB, spare=4 * GIB
    )
    one = first(told)
    wanted = "expandable-segments" if likely else "reduce-batch-size"
    assert (one.pitfall, one.confidence) == (wanted, "likely")


def test_idle_graph_pools_are_no_fragmentation():
    told = say.oom(
        "2.3",
        asked=1 * GIB,
        total=24 * GIB,
        held=17 * GIB,
        free=100 * MIB,
        spare=5 * GIB,
        pools=5 * GIB,
    )
    assert first(told).pitfall == "compile-mode"


@pytest.mark.parametrize(
    ("frames", "pitfall"),
    [
        ((("/w/run.py", 9, "validate_epoch", "scores = net(batch)"),), "no-grad-eval"),
        (
            (
                ("/w/run.py", 9, "main", "opt.step()"),
                ("/v/torch/optim/adam.py", 5, "step", "state['exp_avg'] = zeros(p)"),
            ),
            "optimizer-state",
        ),
        (
            (
                ("/w/run.py", 9, "main", "state = torch.load(path)"),
                ("/v/torch/serialization.py", 5, "restore_location", "f()"),
            ),
            "load-checkpoint-map-location-cpu",
        ),
        (
            (
                (
                    "/v/torch/nn/parallel/scatter_gather.py",
                    5,
                    "gather",
                    "return gather_map(outputs)",
                ),
            ),
            "dp-imbalance-gpu0",
        ),
        ((("/v/torch/distributed/fsdp/_state.py", 5, "_all_gather", "x"),), "fsdp-or-zero"),
    ],
)
def test_the_phase_ranks_the_ways_out(frames, pitfall):
    told = say.traceback(*frames) + say.oom("2.5", **FULL)
    assert first(told).pitfall == pitfall
    assert "reduce-batch-size" in names(told)


def test_under_no_grad_it_is_not_advised():
    told = say.traceback(
        ("/v/torch/utils/_contextlib.py", 3, "decorate_context", "return func(*args, **kwargs)"),
        ("/w/run.py", 9, "predict", "y = net(picture)"),
    ) + say.oom("2.5", **FULL)
    assert "no-grad-eval" not in names(told)


def test_growth_in_the_log():
    told = (
        "\n".join(f"step {i} loss 0.5 gpu mem {6 + i * 0.2:.2f} GiB" for i in range(60))
        + "\n"
        + say.oom("2.5", **FULL)
    )
    assert set(names(told)[:2]) == {"detach-loss-accumulation", "memory-leak-in-user-list"}
    flat = (
        "\n".join(f"step {i} loss 0.5 gpu mem 19.90 GiB" for i in range(60))
        + "\n"
        + say.oom("2.5", **FULL)
    )
    assert names(flat)[0] == "reduce-batch-size"


def test_a_priori_is_never_a_problem():
    for form in OLD + NEW:
        for one in examine([say.oom(form, **FULL)])[0]:
            assert one.confidence != "prior" or one.severity == "info"
            assert one.evidence
