"""A compiled model keeps for the backward pass what torch's own partitioner keeps."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import fake_tensor  # noqa: E402

from gpuscope.predict.request import Request, Traced  # noqa: E402
from gpuscope.predict.tracing import (  # noqa: E402
    compiling,
    dynamo,
    inductor,
    kernel_timing,
    padding,
    steps,
)

from . import compiled_factories as factories  # noqa: E402

pytestmark = pytest.mark.slow
HERE = "tests.predict.compiled_factories"
DATA = Path(__file__).parents[1] / "data"
BATCH = 4


@pytest.fixture(scope="module")
def by_switch() -> Traced:
    """The GPT for an H200 with ``--compile``; inductor takes seconds to write its kernels."""
    return steps.trace(Request(f"{HERE}:gpt", batch=BATCH, compile=True, architecture="9.0"))


@pytest.fixture(scope="module")
def inside() -> Traced:
    """The same, compiled by the program."""
    return steps.trace(Request(f"{HERE}:gpt_compiled_inside", batch=BATCH, architecture="9.0"))


def kept_at_backward(traced: Traced) -> int:
    """Return the bytes that the first forward pass leaves behind."""
    trace, live, found = traced.trace, 0, {}
    places = {name: next(m.at for m in trace.marks if m.name == name) for name in _PHASES}
    for at, event in enumerate(trace.events):
        found.update({name: live for name, place in places.items() if place == at})
        live += trace.sizes[event] if event >= 0 else -trace.sizes[~event]
    return int(found["backward"] - found["forward"])


_PHASES = ("forward", "backward")


def kept_in_reality(model: torch.nn.Module, amp: str, compile_it: bool) -> int:
    """Return the bytes of the storages that the graph of a real training on the CPU keeps."""
    inputs = factories._inputs(model, BATCH, "cpu")
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage.nbytes()
        return tensor

    def run() -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=amp == "bf16"):
            return called(inputs)

    torch._dynamo.reset()
    called = torch.compile(model, backend="aot_eager_decomp_partition") if compile_it else model
    run().backward()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        run()
    return sum(kept.values())


@pytest.mark.parametrize("amp", ["off", "bf16"])
@pytest.mark.parametrize(("name", "kind"), [("gpt", factories.Gpt), ("images", factories.Images)])
def test_the_kept_activations_are_those_of_a_real_compiled_training(
    name: str, kind: type[torch.nn.Module], amp: str
) -> None:
    sizes = {}
    for compile_it in (False, True):
        request = Request(f"{HERE}:{name}", batch=BATCH, amp=amp, compile=compile_it, steps=1)
        traced = kept_at_backward(steps.trace(request, emulate=False))
        sizes[compile_it] = traced
        assert traced == pytest.approx(kept_in_reality(kind(), amp, compile_it), rel=0.002, abs=256)
    assert sizes[True] < sizes[False]


def test_normalised_rows_depend_on_their_inputs_in_a_compiled_graph() -> None:
    """If they did not, nothing before them would be kept, and all of it be computed again."""
    trace = steps.trace(Request(f"{HERE}:rows", batch=1024, compile=True, steps=1)).trace
    place = next(mark.at for mark in trace.marks if mark.name == "backward")
    live = set(trace.events[:place]) - {~event for event in trace.events[:place] if event < 0}
    rows = [
        block for block in live if block >= 0 and trace.sizes[block] == 1024 * 4 * factories.WIDTH
    ]
    assert len(rows) >= 5


def test_kernels_of_inductor_are_timed_before_their_first_run(by_switch: Traced) -> None:
    """Each time a buffer as large as the L2 cache of an H200 is filled, in the first step only."""
    trace = by_switch.trace
    second = next(mark.at for mark in trace.marks if mark.name == "step 2")
    places = [
        at
        for at, event in enumerate(trace.events)
        if event >= 0 and trace.owner(event).operation == kernel_timing.TIMED
    ]
    assert places
    assert max(places) < second
    assert max(trace.sizes[trace.events[at]] for at in places) == 60 << 20


def test_graphs_do_not_keep_the_inputs_that_they_were_compiled_with(inside: Traced) -> None:
    trace = inside.trace
    freed = {~event for event in trace.events if event < 0}
    inputs = [
        block
        for block, size in enumerate(trace.sizes)
        if size == BATCH * factories.TOKENS * 8 and trace.owner(block).operation == "randint"
    ]
    assert len(inputs) == Request("").steps
    assert freed.issuperset(inputs)


def test_a_model_compiled_in_the_program_is_as_one_compiled_by_a_switch(
    by_switch: Traced, inside: Traced
) -> None:
    assert kept_at_backward(inside) == pytest.approx(kept_at_backward(by_switch), rel=0.01)
    for traced in (by_switch, inside):
        (doubt,) = traced.doubts
        assert (doubt.code, doubt.text, doubt.percent) == (
            "compiled", compiling.TRACED, compiling.LOWERED_PERCENT,
        )  # fmt: skip


def test_convolutions_get_the_layout_and_the_buffers_that_inductor_chooses() -> None:
    """Inductor lays images out with channels last, which fewer copies and other buffers show."""
    request = Request(f"{HERE}:images", batch=BATCH, amp="bf16", compile=True, steps=1)
    lowered = steps.trace(request)
    assert [doubt.operation for doubt in lowered.doubts] == ["torch.compile"]
    operations = {owner.operation for owner in lowered.trace.owner_table}
    assert "empty_strided" in operations  # the code that inductor writes allocates so
    assert "contiguous" not in operations  # no kernel had to copy an operand


def test_graphs_that_inductor_cannot_lower_follow_simplified_rules(
    by_switch: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(inductor, "write", fails)
    traced = steps.trace(Request(f"{HERE}:gpt", batch=BATCH, compile=True, steps=1))
    assert {doubt.operation: doubt.percent for doubt in traced.doubts} == {
        "torch.compile": compiling.LOWERED_PERCENT, "inductor": compiling.PERCENT,
    }  # fmt: skip
    assert kept_at_backward(traced) == pytest.approx(kept_at_backward(by_switch), rel=0.01)


def test_graphs_that_are_captured_take_their_blocks_from_a_pool_of_their_own() -> None:
    request = Request(f"{HERE}:gpt_of_given_tokens", batch=BATCH, compile=True, cuda_graphs=True)
    traced = steps.trace(request)
    assert compiling.CAPTURED in traced.doubts
    trace = traced.trace
    assert set(trace.streams.values()) == {compiling.POOL}
    live = trace.live(len(trace.events))  # torch frees cuBLAS's workspaces around a capture
    assert "cublas" not in {trace.owner(block).operation for block in live}
    build = next(mark.at for mark in trace.marks if mark.name == "step 1")
    assert all(event not in trace.streams for event in trace.events[:build])
    step = next(mark.at for mark in trace.marks if mark.name == "step 3")
    assert any(event in trace.streams for event in trace.events[step:])

    second = next(mark.at for mark in trace.marks if mark.name == "step 2")
    as_large = [
        [
            event
            for event in trace.events[begin:end]
            if event in trace.streams and trace.sizes[event] == BATCH * factories.TOKENS * 8
        ]
        for begin, end in ((build, second), (second, step))
    ]
    assert len(as_large[1]) == len(as_large[0]) + 1  # the copy of the tokens


def test_what_cannot_be_one_graph_is_compiled_in_parts() -> None:
    """Data decides what the model calls, but the loss after it is a graph."""
    request = Request(f"{HERE}:broken_before_the_loss", batch=BATCH, compile=True)
    traced = steps.trace(request)
    assert {doubt.operation for doubt in traced.doubts} >= {"item", "torch.compile"}
    assert "empty_strided" in {owner.operation for owner in traced.trace.owner_table}


def as_large(traced: Traced, size: int, phase: str) -> int:
    """Return how many blocks of a size the last step makes in a phase."""
    trace = traced.trace
    marks = [(mark.at, mark.name) for mark in trace.marks]
    place = max(at for at, (_, name) in enumerate(marks) if name == phase)
    begin = marks[place][0]
    end = marks[place + 1][0] if place + 1 < len(marks) else len(trace.events)
    return sum(event >= 0 and trace.sizes[event] == size for event in trace.events[begin:end])


def test_a_call_of_a_logger_breaks_the_graph(by_switch: Traced) -> None:
    """So the logits outlive their graph, and their gradient takes a block of its own."""
    logits = BATCH * factories.TOKENS * factories.WORDS * 4
    broken = steps.trace(Request(f"{HERE}:gpt_that_logs", batch=BATCH, compile=True))
    assert as_large(broken, logits, "forward") == as_large(by_switch, logits, "forward") == 1
    assert as_large(broken, logits, "backward") == as_large(by_switch, logits, "backward") + 1
    assert [doubt.operation for doubt in broken.doubts] == ["torch.compile"]


@pytest.mark.parametrize(("amp", "pads"), [("bf16", True), ("off", False)])
def test_products_with_odd_sides_are_padded_where_tensor_cores_multiply(
    amp: str, pads: bool
) -> None:
    """A row of logits is as long as a multiple of eight words, as on an H200."""
    rows = 4096
    traced = steps.trace(Request(f"{HERE}:odd_words", batch=rows, amp=amp, compile=True, steps=1))
    wide = as_large(traced, rows * 20_008 * 2, "forward")
    assert bool(wide) == pads
    assert (padding.TRIED in {owner.operation for owner in traced.trace.owner_table}) == pads


@pytest.mark.parametrize(("kind", "agrees"), [("bfloat16", 1.0), ("float16", 1.0), ("tf32", 0.88)])
def test_the_estimate_pads_what_an_h200_padded(kind: str, agrees: float) -> None:
    """The copies are those of ``bench/predict/measure_padding.py``."""
    known = json.loads((DATA / "padding-h200.json").read_text())
    dtype = torch.float32 if kind == "tf32" else getattr(torch, kind)
    rows = known["float32 tf32" if kind == "tf32" else kind]
    right = []
    for name, copied in (
        ("outputs", {1: False}),
        ("of weights", {0: False}),
        ("of inputs", {1: True} if kind == "tf32" else {}),
    ):
        for *sides, pads in rows[name]:
            gain = padding.Product(tuple(sides), 1, dtype).gain(copied, padding.speeds_of((9, 0)))
            right.append((gain > padding.GAIN) == bool(pads))
    assert sum(right) >= agrees * len(right)
    assert {bool(row[-1]) for part in rows.values() for row in part} == {False, True}


def test_a_value_that_is_read_lies_between_two_graphs() -> None:
    """The first graph makes the largest value apart from its rows, and the second one divides."""
    traced = steps.trace(Request(f"{HERE}:scaled", batch=1024, compile=True))
    assert {doubt.operation for doubt in traced.doubts} == {"item", "torch.compile"}
    assert {owner.operation for owner in traced.trace.owner_table} >= {"empty_strided"}
    operations = {traced.trace.owner(event).operation for event in last_step(traced)}
    assert not operations & {"amax", "relu", "div"}


def last_step(traced: Traced) -> list[int]:
    """Return the blocks that the last step makes until its optimizer begins."""
    trace = traced.trace
    begin, end = (
        max(mark.at for mark in trace.marks if mark.name == name)
        for name in ("forward", "optimizer")
    )
    return [event for event in trace.events[begin:end] if event >= 0]


@pytest.mark.parametrize("name", ["compiled_blocks", "compiled_function", "compiled_around_ddp"])
def test_what_a_program_compiles_itself_is_compiled(name: str) -> None:
    """Blocks inside of checkpoints, a function that asks for a GPU, and a DDP model."""
    traced = steps.trace(Request(f"{HERE}:{name}", batch=1024, steps=2))
    doubts = {doubt.operation for doubt in traced.doubts if doubt.code == "compiled"}
    assert doubts == {"torch.compile"}
    operations = {traced.trace.owner(event).operation for event in last_step(traced)}
    assert "empty_strided" in operations
    assert not operations & {"native_layer_norm", "gelu", "relu", "rsqrt"}


def test_layers_beyond_torch_s_limit_of_graphs_run_as_they_are_written() -> None:
    traced = steps.trace(Request(f"{HERE}:numbered_layers", batch=1024, steps=1))
    operations = [traced.trace.owner(event).operation for event in last_step(traced)]
    assert operations.count("relu") == 10 - torch._dynamo.config.recompile_limit


def test_a_part_that_dynamo_fails_at_runs_as_it_is_written(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", fails)
    traced = steps.trace(Request(f"{HERE}:rows", batch=64, compile=True, steps=1))
    assert "graph break" in {doubt.operation for doubt in traced.doubts}
    assert "relu" in {owner.operation for owner in traced.trace.owner_table}
    assert "NotImplementedError" not in "".join(capfd.readouterr())


def test_nothing_of_a_compiled_training_is_left_behind(by_switch: Traced) -> None:
    from torch._dynamo import convert_frame, symbolic_convert, utils
    from torch._subclasses import FakeTensorMode

    assert torch._subclasses.FakeTensorMode is FakeTensorMode is fake_tensor.FakeTensorMode
    for owner, name in (
        (convert_frame, "_compile"), (symbolic_convert, "SymbolicTorchFunctionState"),
        (utils, "run_node"), (torch, "set_autocast_enabled"),
    ):  # fmt: skip
        assert (
            getattr(owner, name).__module__ is None
            or "gpuscope" not in getattr(owner, name).__module__
        )
    assert not dynamo.running()
    model = factories.Rows()
    seen: list[int] = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> object:
        seen.append(len(graph.graph.nodes))
        return graph.forward

    torch.compile(model, backend=backend)(torch.randn(4, factories.WIDTH)).backward()
    assert len(seen) == 1
    assert model.layers[0][1].weight.grad is not None


def test_a_search_times_reductions_along_both_axes_with_arguments_of_their_own() -> None:
    """It begins with half of the rows a part, so the sums of the parts take the most."""
    request = Request(f"{HERE}:rows", batch=1 << 17, compile=True, max_autotune=True, steps=1)
    trace = steps.trace(request).trace
    sought = [
        size
        for block, size in enumerate(trace.sizes)
        if trace.owner(block).operation == kernel_timing.CHOSEN
    ]
    rows, sums = (1 << 17) * factories.WIDTH * 4, factories.WIDTH * 4
    assert sums * (1 << 17) // 32 in sought
    assert sums * (1 << 17) // 128 in sought
    assert sought.count(rows) >= 6


def test_a_convolution_over_positions_that_do_not_lie_together_is_lowered() -> None:
    """A torch with CUDA would ask the driver for the copy, which no GPU is there for."""
    request = Request(f"{HERE}:positions", batch=8, compile=True, steps=1)
    assert not [one for one in steps.trace(request).doubts if one.operation == "inductor"]
