"""Every measure of a claim really runs, with tiny models: on the CPU here, on GPUs with ``pytest -m gpu``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.forking import Forked, script

torch = pytest.importorskip("torch")

from gpuscope.lab.claim_measures import compiling, devices, precision  # noqa: E402
from gpuscope.lab.claim_measures.bench import Bench, Loop, in_turn  # noqa: E402
from gpuscope.lab.claim_measures.sides import Side  # noqa: E402
from gpuscope.lab.claim_table import BY_ID, CLAIMS  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")
REPEATS = 3
COMPILED = ("compile-warmup", "compile-speed", "compile-fullgraph")


class Program:
    """A measure in its own process group."""

    def __init__(self, measure: str, device: str, claims: list[str], repeats: int = REPEATS):
        words = ["--claims", ",".join(claims), "--device", device, "--repeats", str(repeats), "--tiny", "--stop-on-eof"]
        module = f"gpuscope.lab.claim_measures.{measure}"
        self.claims = claims
        self.folder = tempfile.TemporaryDirectory(prefix="gpuscope-test-", ignore_cleanup_errors=True)
        self.stderr = tempfile.NamedTemporaryFile("w+")  # noqa: SIM115
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": self.folder.name}
        self.process: Any
        if device == "cpu":
            there = f"import os; os.dup2(os.open({self.stderr.name!r}, os.O_WRONLY | os.O_APPEND), 2)\n"
            self.process = Forked(there + script(module, *words), environ, cwd=ROOT, session=True)
        else:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=self.stderr, text=True, cwd=ROOT, env=environ, start_new_session=True,
            )  # fmt: skip
        assert self.process.stdin
        assert self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        for stream in (self.stdin, self.stdout, self.stderr):
            stream.close()
        self.folder.cleanup()

    def measured(self) -> dict[str, dict[str, list[Any]]]:
        """Claim → figure → values, all of whose events were good ones."""
        found: dict[str, dict[str, list[Any]]] = {}
        current = ""
        for event in map(json.loads, self.stdout):
            if event["event"] == "begin":
                current = event["claim"]
                found[current] = {}
            elif event["event"] == "value":
                found[current].setdefault(event["figure"], []).append(event["value"])
            else:
                assert event["event"] in ("end", "note", "configuration"), (event, self._said())
        assert self.process.wait(20) == 0, self._said()
        assert list(found) == self.claims
        return found

    def _said(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read()[-3000:]


@pytest.fixture
def start() -> Iterator[Callable[..., Program]]:
    programs: list[Program] = []

    def begin(*arguments: Any, **options: Any) -> Program:
        programs.append(Program(*arguments, **options))
        return programs[-1]

    yield begin
    for program in programs:
        program.close()


def check(found: dict[str, dict[str, list[Any]]], device: str, gpus: int = 1, repeats: int = REPEATS) -> None:
    """Every figure that this device can have is there, with numbers in every repeat."""
    for name, figures in found.items():
        for figure in BY_ID[name].figures:
            if device not in figure.devices or figure.gpus > gpus:
                continue
            if name in ("tiny-model", "gradscaler-underflow") and figure.key in ("crossing", "remaining"):
                continue  # nothing crosses, nothing is lost in models as small as these
            if figure.key == "max-autotune":
                continue
            values = figures[figure.series]
            assert 2 <= len(values) <= repeats, (name, figure.key)
            assert all(isinstance(value, (int, float)) for value in values), (name, figure.key, values)
            if figure.kind == "ratio":
                assert min(values) > 0


GROUPS = {
    measure: [claim.id for claim in CLAIMS if claim.measure == measure]
    for measure in dict.fromkeys(claim.measure for claim in CLAIMS)
}
ON_CPU = [
    (measure, [name for name in names if "cpu" in BY_ID[name].configuration and name not in COMPILED])
    for measure, names in GROUPS.items()
]


@pytest.mark.parametrize(("measure", "claims"), [pair for pair in ON_CPU if pair[1]], ids=lambda value: str(value)[:40])
def test_on_a_cpu(start: Callable[..., Program], measure: str, claims: list[str]) -> None:
    found = start(measure, "cpu", claims, 2).measured()
    check(found, "cpu", repeats=2)
    if measure == "memory":
        assert max(found["accumulation-equivalence"]["gradients"]) < 1e-5


def test_the_loss_of_gradients_without_a_scaler_is_seen() -> None:
    exact = [torch.tensor([1.0, 0.0, 1e-9, 2.0])]
    assert precision._lost(exact, [gradient.half().float() for gradient in exact]) == pytest.approx(1 / 3)


def test_a_graph_break_is_refused_and_a_compiler_found_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiling._refuses_a_break(CPU)
    from torch._inductor import config

    monkeypatch.delenv("CXX", raising=False)
    from torch._inductor import cpp_builder

    cpp_builder.cpp_compiler_search.cache_clear()
    try:
        # By torch's own patch: what monkeypatch puts back would no longer exist for torch.
        with (
            config.patch({"cpp.cxx": ("/nonexistent/compiler",)}),
            pytest.raises(compiling.Cannot, match="C\\+\\+ comp"),
        ):
            compiling._check(Bench("", CPU, lambda _: None))
    finally:
        cpp_builder.cpp_compiler_search.cache_clear()


def test_the_break_even_step() -> None:
    # 9.9 s more for the first step, 0.05 s less for each later one
    assert compiling.break_even(10.0, 0.1, 0.05) == pytest.approx(1 + 9.9 / 0.05)
    assert "never" in str(compiling.break_even(10.0, 0.1, 0.1))


def test_the_width_where_the_gpu_overtakes() -> None:
    assert devices.crossing((16, 64, 256), (0.1, 0.5, 2.0)) == pytest.approx(128)
    assert devices.crossing((16, 64, 256), (0.1, 0.2, 0.5)) is None
    assert devices.crossing((16, 64, 256), (2.0, 3.0, 4.0)) is None
    assert devices.crossing((16, 64, 256, 1024), (0.5, 2.0, 0.5, 2.0)) == pytest.approx(512)


def test_sides_are_measured_in_turn_and_the_order_turns_round() -> None:
    order: list[str] = []
    bench = Bench("", CPU, lambda _: None, repeats=4, seconds=30, tiny=True)
    sides = {name: ((lambda name=name: order.append(name) or time.sleep(0.03)), CPU) for name in "ab"}
    found = []
    for took in in_turn(bench, sides):
        found.append(took)
        if len(found) == 1:
            order.clear()
    assert "".join(order) == "baabba"
    assert all(0.03 <= took[name] < 1 for took in found for name in "ab")


def test_no_repeat_begins_after_the_time_but_the_least_are_made() -> None:
    bench = Bench("", CPU, lambda _: None, repeats=50, seconds=0.0)
    assert len(list(bench.repeats())) == 3
    bench = Bench("", CPU, lambda _: None, repeats=6, seconds=0.2)
    with bench.apart():
        time.sleep(0.25)
    assert len(list(bench.repeats())) == 6
    bench = Bench("", CPU, lambda _: None, repeats=2, seconds=60.0)
    assert len(list(bench.repeats())) == 2


def test_a_loop_trains_and_its_pool_begins_again() -> None:
    loop = Loop("mlp-small", CPU, batch=16)
    first = [float(loop.step()) for _ in range(60)]
    assert sum(first[-5:]) < 0.8 * sum(first[:5])
    loop.keep_one_step()
    again = [loop.next_batch()[0] for _ in range(3)]
    assert torch.equal(again[0], again[2])


class Doubling:
    """What a side can be asked in these tests."""

    def __init__(self, start: int):
        if start < 0:
            raise ValueError("no such start")
        self.value = start

    def __call__(self, more: int) -> int:
        if more < 0:
            os._exit(3)
        self.value = 2 * self.value + more
        return self.value


def test_a_side_answers_fails_and_dies() -> None:
    good, bad = Side(Doubling, 1), Side(Doubling, -1)
    try:
        good.ready()
        assert [good.ask(1), good.ask(2)] == [3, 8]
        with pytest.raises(RuntimeError, match="ValueError: no such start"):
            bad.ready()
        with pytest.raises(RuntimeError, match="ended with code 3"):
            good.ask(-1)
    finally:
        good.close()
        bad.close()


def test_the_ranks_end_with_whoever_started_them(start: Callable[..., Program]) -> None:
    program = start("parallel", "cpu", ["ddp-scaling"], repeats=100)
    assert json.loads(program.stdout.readline())["event"] == "begin"
    ranks = _children(program.process.pid)
    assert len(ranks) == 2
    program.stdin.close()  # as when this test's process were gone
    assert program.process.wait(10) == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while any(map(_alive, ranks)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(map(_alive, ranks))


def test_a_rank_that_dies_ends_the_measure_with_its_number(start: Callable[..., Program]) -> None:
    program = start("parallel", "cpu", ["ddp-scaling"], repeats=100)
    assert json.loads(program.stdout.readline())["event"] == "begin"
    numbers = {int(_environ(pid)["RANK"]): pid for pid in _children(program.process.pid)}
    os.kill(numbers[1], signal.SIGKILL)
    events = [json.loads(line) for line in program.stdout]
    assert program.process.wait(20) == 1
    failures = [event["reason"] for event in events if event["event"] == "failed"]
    assert any(reason.startswith("rank 1 ended with exit code -9") for reason in failures), failures


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _environ(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# ── on a GPU ──────────────────────────────────────────────────────────────────────────────────────────────────────────

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
ON_ONE_GPU = [name for name in GROUPS if name not in ("parallel", "parallel_cpu")]


@pytest.fixture(scope="module")
def on_gpu() -> Iterator[dict[str, Program]]:
    """All at once: what they measure is not looked at here, and starting takes the longest."""
    programs = {measure: Program(measure, "cuda", GROUPS[measure], 2) for measure in ON_ONE_GPU}
    yield programs
    for program in programs.values():
        program.close()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("measure", ON_ONE_GPU)
def test_on_a_gpu(on_gpu: dict[str, Program], measure: str) -> None:
    check(on_gpu[measure].measured(), "cuda", repeats=2)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs 2 CUDA devices")
def test_on_several_gpus(start: Callable[..., Program]) -> None:
    check(start("parallel", "cuda", GROUPS["parallel"]).measured(), "cuda", torch.cuda.device_count())
