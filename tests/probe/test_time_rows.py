"""What a thread does is named after its stack: real torch, looked at while it runs."""

from __future__ import annotations

import opcode
import sys
import threading
import time
import types
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from gpuscope.probe.thread_frames import current_frames
from gpuscope.probe.time_rows import ROWS, _called, asks_for_truth, called_name, row_of

LOOKS = 60


def looked_at(body: Callable[[], Any], path: set[int] = frozenset(), phase: str = "") -> Counter:  # type: ignore[type-arg, assignment]
    """Count what a thread is seen to do that calls ``body`` again and again."""
    over = threading.Event()

    def again() -> None:
        while not over.is_set():
            body()

    thread = threading.Thread(target=again)
    thread.start()
    seen: Counter[str] = Counter()
    try:
        while sum(seen.values()) < LOOKS:
            time.sleep(0.002)
            frames = current_frames()
            frame = frames.get(thread.ident or 0)
            if frame is not None:
                seen[row_of(frame, path, phase).row] += 1
            del frame
            frames.clear()
    finally:
        over.set()
        thread.join()
    assert set(seen) <= set(ROWS)
    return seen


def mostly(body: Callable[[], Any], **more: Any) -> str:
    return looked_at(body, **more).most_common(1)[0][0]


WIDE = torch.randn(256, 1024)
MODEL = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(3)))


class Slow(Dataset):  # type: ignore[type-arg]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.002)
        return torch.zeros(4)


def save(tmp_path: Any) -> Callable[[], None]:
    tensor = torch.randn(500_000)
    return lambda: torch.save(tensor, tmp_path / "checkpoint.pt")


def stepping() -> Callable[[], Any]:
    optimizer = torch.optim.AdamW(MODEL.parameters(), foreach=False)
    for parameter in MODEL.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return optimizer.step


def closure() -> Callable[[], Any]:
    optimizer = torch.optim.SGD(MODEL.parameters(), lr=0.0)

    def forward() -> torch.Tensor:
        return MODEL(WIDE).square().mean()

    return lambda: optimizer.step(forward)


def validate() -> None:
    with torch.no_grad():
        MODEL(WIDE)


def crunch() -> int:
    return sum(range(20_000))


def test_a_forward_pass_is_seen_and_in_the_closure_of_a_step_too():
    assert mostly(lambda: MODEL(WIDE)) == "forward"
    assert mostly(closure()) == "forward"


def test_a_backward_pass_is_seen():
    loss = MODEL(WIDE).square().mean()
    assert mostly(lambda: loss.backward(retain_graph=True)) == "backward"


def test_a_step_of_the_optimizer_is_seen():
    assert mostly(stepping()) == "optimizer"


def test_a_loader_is_seen_and_the_line_that_loads():
    assert mostly(lambda: list(DataLoader(Slow(), batch_size=2))) == "input"


def test_a_checkpoint_is_seen(tmp_path):
    assert mostly(save(tmp_path)) == "checkpoint"


def test_a_validation_is_seen_by_its_name_only_beside_the_known_path_of_a_step():
    assert mostly(validate) == "forward", "no step has shown what the training loop is"
    assert mostly(validate, path={1}) == "validation"
    assert mostly(validate, path={id(validate.__code__)}) == "forward", "it is the training loop"
    assert mostly(lambda: MODEL(WIDE), phase="eval") == "validation"


def test_giving_cached_memory_back_is_seen(monkeypatch):
    """As on a GPU: the C function that gives it back takes a while."""
    monkeypatch.setattr(torch.cuda.memory, "is_initialized", lambda: True)
    monkeypatch.setattr(torch._C, "_cuda_emptyCache", lambda: sum(range(20_000)), raising=False)
    assert mostly(torch.cuda.empty_cache) == "release"


def test_own_code_is_other():
    assert mostly(crunch) == "other"


class Device:
    """Stands for a tensor: C methods that take a while, whose call is all that is to be seen."""

    item = staticmethod(time.sleep)
    to = staticmethod(time.sleep)


def test_a_read_and_a_copy_are_known_by_the_name_of_the_call():
    device = Device()

    def read() -> None:
        device.item(0.002)

    def copy() -> None:
        device.to(0.002)

    assert mostly(read) == "read"
    assert mostly(copy) == "copy"


@pytest.mark.parametrize("names", [1, 300], ids=["few names", "more names than fit into a byte"])
def test_the_name_of_a_call_is_read_from_its_instruction(names):
    lines = "\n".join(f"    if no: thing.name_{n}" for n in range(names))
    space: dict[str, Any] = {}
    exec(f"def function(thing, no=False):\n{lines}\n    return thing.wanted(1, 2)\n", space)
    seen = []

    class Thing:
        def wanted(self, *_: int) -> None:
            seen.append(called_name(sys._getframe(1)))

    space["function"](Thing())
    assert seen == ["wanted"]


def test_what_is_no_plain_call_has_no_name():
    seen = []

    class Thing:
        def __add__(self, other: object) -> None:
            seen.append(called_name(sys._getframe(1)))

    Thing() + 1
    assert seen == [None]


def name_at_each_call(source: str) -> list[str | None]:
    """The name that is found at each call in the body of a function."""
    space: dict[str, Any] = {}
    exec(f"def body(x, other, weight):\n    {source}\n", space)
    code = space["body"].__code__
    calls = [
        at
        for at in range(0, len(code.co_code), 2)
        if opcode.opname[code.co_code[at]] in ("CALL", "CALL_KW", "CALL_METHOD", "CALL_FUNCTION")
    ]
    return [_called(code, at) for at in calls]


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x.to(other.device)", ["to"]),
        ("x.to(other.device, non_blocking=other.fast)", ["to"]),
        ("weight.grad.norm().item()", ["norm", "item"]),
        ("float(x.sum())", ["sum", "float"]),
        ("int(x.a.b(1, other.c(2)))", ["c", "b", "int"]),
        ("x.cpu().numpy()", ["cpu", "numpy"]),
        ("x[other.item]()", [None]),
    ],
)
def test_what_is_called_is_told_from_its_arguments(source, names):
    assert name_at_each_call(source) == names


def test_a_branch_on_a_tensor_reads_it():
    """A look finds a thread there only while C code waits for the truth of a tensor."""

    def branch(tensor: torch.Tensor) -> None:
        if tensor < 0:
            raise AssertionError

    code = branch.__code__
    asks = [
        opcode.opname[code.co_code[at]]
        for at in range(0, len(code.co_code), 2)
        if asks_for_truth(types.SimpleNamespace(f_code=code, f_lasti=at))
    ]
    assert asks
    assert all(name.startswith(("POP_JUMP", "TO_BOOL", "JUMP_IF")) for name in asks)


def test_torchs_profiler_at_work_is_a_row_of_its_own():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for _ in range(50):
            MODEL(WIDE[:2])
    assert mostly(lambda: profiler.key_averages(group_by_stack_n=2)) == "profiler"
    assert mostly(stepping()) == "optimizer", "which tells a profiler of each step, too"
