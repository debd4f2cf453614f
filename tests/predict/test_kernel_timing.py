"""Kernels of inductor are timed with a buffer, and with copies of what they change."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from gpuscope.predict.tracing import kernel_timing  # noqa: E402
from gpuscope.predict.tracing.kernel_timing import Kernel, Product, search, sources  # noqa: E402
from gpuscope.predict.tracing.recorder import Recorder  # noqa: E402

FLUSHED, CHANGED = 60 << 20, 32 << 20
KERNEL = """
@triton_heuristics.pointwise(
    size_hints={{'x': 8388608}}, filename=__file__,
    triton_meta={{'signature': {{'in_out_ptr0': '*fp32', 'in_ptr0': '*fp32', 'xnumel': 'i32'}},
                 'device': DeviceProperties('cuda', 0, 132, 90)}},
    inductor_meta={{'mutated_arg_names': ['in_out_ptr0'], 'optimize_mem': {on_host},
                   'autotune_pointwise': {timed}, 'kernel_name': 'a_kernel'}},
    min_elem_per_thread=0
)
def a_kernel(in_out_ptr0, in_ptr0, xnumel, XBLOCK):
    pass
"""


def code(on_host: bool, timed: bool = True) -> str:
    return KERNEL.format(on_host=on_host, timed=timed)


@contextlib.contextmanager
def recorded_by(recorder: Recorder) -> Iterator[None]:
    mode = SimpleNamespace(recorder=recorder, muted=False, around={})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_timing, "recording", lambda: [mode])
        yield


def peaks(source: str, peak_before: int = 0, calls: int = 1) -> list[int]:
    """Run a kernel that changes 32 MiB; return the peaks in MiB, each time memory is free again."""
    recorder, changed = Recorder(), torch.empty(CHANGED // 4, device="meta")
    recorder.passing([peak_before], "before")
    first = len(recorder.trace.events)
    with recorded_by(recorder):
        for _ in range(calls):
            Kernel(source, FLUSHED).run(changed, changed, changed.numel())
    live, most, found = 0, 0, []
    for event in recorder.trace.events[first:]:
        size = recorder.trace.sizes[event if event >= 0 else ~event]
        live += size if event >= 0 else -size
        most = max(most, live)
        if not live:
            found.append(most >> 20)
            most = 0
    return found


def test_each_variant_is_timed_with_a_copy_of_what_the_kernel_changes():
    assert peaks(code(on_host=False)) == [92, 92]


def test_a_copy_that_would_raise_the_peak_is_made_on_the_host():
    """The buffer of the first variant raises the peak, so the copy for the second one fits."""
    assert peaks(code(on_host=True)) == [60, 92]
    assert peaks(code(on_host=True), peak_before=CHANGED) == [92, 92]


def test_a_kernel_with_one_variant_is_not_timed():
    assert peaks(code(on_host=True, timed=False)) == []


def test_the_same_kernel_in_two_graphs_is_timed_once():
    assert peaks(code(on_host=False), calls=2) == [92, 92]


def test_a_kernel_in_another_form_is_timed_without_copies():
    assert peaks("") == [60, 60]


def test_kernels_are_found_in_the_code_that_calls_them():
    text = f"poi_0 = async_compile.triton('poi_0', '''{code(True)}''', device_str='cuda')\nx = 1"
    assert sources(ast.parse(text)) == {"poi_0": code(True)}


def test_the_search_for_the_fastest_product_takes_its_operands_once_more():
    with torch._subclasses.FakeTensorMode():
        a, b, out = torch.empty(512, 1024), torch.empty(1024, 256), torch.empty(512, 256)
    recorder = Recorder()
    product = Product(torch.ops.aten.mm.default, [a, b], out)
    with recorded_by(recorder):
        search([product, product], [], FLUSHED)
    assert recorder.trace.sizes == [512 * 1024 * 4, 1024 * 256 * 4, 512 * 256 * 4, FLUSHED]
    assert recorder.live_bytes == 0
