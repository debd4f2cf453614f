"""Ranks under torchrun's agent end together and leave nothing behind.

They end with a summary or with the name of the one that died.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.lab import elastic, metrics
from gpuscope.lab.config import LabConfig
from gpuscope.lab.rank_output import Relay
from tests.fakes.forked_scripts import free_port
from tests.fakes.forking import Forked, forking_python, script
from tests.fakes.waiting import alive, until

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
CONFIG = LabConfig(model="mlp-tiny", device="cpu", parallel="ddp", nproc=2)


class Agent:
    """The worker process of a run in two ranks, and the ranks that it starts.

    The worker is a fork that finds torch imported, and so are ranks that ``python`` starts.
    """

    def __init__(self, python: str, config: LabConfig, *words: str, **environ: str):
        code = f"import sys\nsys.executable = {python!r}\n"
        code += script("gpuscope.lab.worker", "--config", config.to_json(), *words)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
        self.process: Any = Forked(code, environ, cwd=ROOT, text=False)
        self.records: list[Any] = []

    def until_step(self) -> None:
        """Returns after the first record of a step."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.records.append(metrics.decode(line))
            if isinstance(self.records[-1], metrics.Step):
                return
        raise AssertionError(self.process.communicate()[1])

    def ranks(self) -> list[int]:
        """The pids of the ranks, by rank."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                environ = (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            rank = next((word for word in environ if word.startswith(b"RANK=")), None)
            if parent == self.process.pid and rank is not None:
                found[int(rank[5:])] = int(folder.name)
        return [found[rank] for rank in sorted(found)]

    def end(self, seconds: float = 30) -> tuple[int, Any, str]:
        """Exit code, last record and stderr."""
        out, errors = self.process.communicate(timeout=seconds)
        self.records += [metrics.decode(line) for line in out.splitlines()]
        return self.process.returncode, self.records[-1], errors.decode()


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that runs ranks in forks."""
    return forking_python(tmp_path_factory.mktemp("python"))


@pytest.fixture
def start(forks: str) -> Iterator[Any]:
    started: list[Agent] = []

    def begin(
        *words: str, config: LabConfig = CONFIG, python: str = forks, **environ: str
    ) -> Agent:
        started.append(Agent(python, config, *words, **environ))
        return started[-1]

    yield begin
    for agent in started:
        agent.process.kill()
        agent.process.communicate()


@pytest.mark.slow
def test_a_killed_rank_ends_the_run_and_is_named(start: Any, tmp_path: Path) -> None:
    agent = start(TMPDIR=str(tmp_path))
    agent.until_step()
    ranks = agent.ranks()
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    code, last, errors = agent.end()
    assert code == 2
    assert isinstance(last, metrics.RunFailure), errors
    assert f"Rank 1 (pid {ranks[1]}) ended with signal SIGKILL" in last.what
    assert "killed it" in last.why
    assert "gpuscope lab --model mlp-tiny" in last.next
    assert last.summary["steps"] >= 1
    assert last.summary["error"]["what"] == last.what
    assert not any(alive(pid) for pid in ranks)
    assert not [
        path for path in tmp_path.iterdir() if path.name.startswith(("ranks", "torchelastic"))
    ]


@pytest.mark.slow
def test_at_the_end_of_stdin_all_ranks_stop_at_the_same_step_with_a_summary(start: Any) -> None:
    """At the end of stdin the agent sends itself SIGTERM, as ``LabRun.stop`` does."""
    config = CONFIG.changed("accumulate", 2).changed("parallel", "fsdp")
    agent = start("--stop-on-eof", config=config)
    agent.until_step()
    ranks = agent.ranks()
    agent.process.stdin.close()
    agent.process.stdin = None
    code, last, errors = agent.end()
    assert code == 0, errors
    assert isinstance(last, metrics.RunEnded)
    assert last.summary["world_size"] == 2
    assert [rank["rank"] for rank in last.summary["ranks"]] == [0, 1]
    assert last.summary["steps"] >= 1
    assert "Traceback" not in errors
    assert not any(alive(pid) for pid in ranks)


@pytest.mark.slow
def test_ranks_die_with_a_killed_agent(start: Any) -> None:
    agent = start(python=sys.executable)
    agent.until_step()
    ranks = agent.ranks()
    agent.process.kill()
    until(lambda: not any(alive(pid) for pid in ranks), seconds=10)


FAULT = """
import os
if os.environ.get("RANK") == "1":
    from gpuscope.lab.training import Training
    whole = Training.step

    def step(self, *arguments):
        if self.taken == 3:
            raise ValueError('sample 17 has no label')
        return whole(self, *arguments)

    Training.step = step
"""


@pytest.mark.slow
def test_the_rank_that_fails_is_named_not_those_that_wait_for_it(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(FAULT)
    agent = start(PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    code, last, errors = agent.end(60)
    assert code == 2
    assert isinstance(last, metrics.RunFailure), errors
    assert last.what.startswith("Rank 1 (pid ")
    assert "ended with exit code 2" in last.what
    assert "sample 17 has no label" in last.why
    assert "[rank 1]" in errors


@pytest.mark.slow
def test_too_many_ranks_are_refused_before_any_starts(start: Any) -> None:
    agent = start(config=CONFIG.changed("nproc", 900))
    code, last, _ = agent.end()
    assert code == 2
    assert "900 processes" in last.what
    assert "--nproc" in last.next


@pytest.mark.slow
def test_two_agents_of_a_rendezvous_train_together(forks: str, tmp_path: Path) -> None:
    """Two machines as far as torchrun knows: an agent each, one rank under each."""
    config = LabConfig(model="mlp-tiny", device="cpu", parallel="ddp", steps=8)
    words = [
        "--nnodes",
        "2",
        "--nproc-per-node",
        "1",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        f"localhost:{free_port()}",
        "--rdzv-id",
        "lab",
        "--local-addr",
        "localhost",
        "-m",
        "gpuscope.lab.worker",
        "--config",
        config.to_json(),
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "PYTHON_EXEC": forks}
    torchrun = script("torch.distributed.run", *words)
    agents = [Forked(torchrun, environ, cwd=tmp_path, text=False) for _ in range(2)]
    try:
        told = [agent.communicate(timeout=90) for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], told
    records = [metrics.decode(line) for out, _ in told for line in out.splitlines()]
    ends = [record for record in records if isinstance(record, metrics.RunEnded)]
    assert len(ends) == 1
    assert (ends[0].summary["world_size"], ends[0].summary["steps"]) == (2, 8)
    started = [record for record in records if isinstance(record, metrics.Started)]
    assert [record.warnings for record in started] == [[]]


# ── whose fault it was ────────────────────────────────────────────────────────────────────────────


@dataclasses.dataclass
class Died:
    pid: int
    exitcode: int


class Told:
    """A relay that has heard ``failures`` and last lines."""

    def __init__(
        self,
        failures: dict[int, tuple[float, metrics.RunFailure]],
        lines: dict[int, str] | None = None,
    ):
        self.failures = {rank: failure for rank, (_, failure) in failures.items()}
        self.failed_at = {rank: at for rank, (at, _) in failures.items()}
        self.step = 12
        self._lines = lines or {}

    def last_line(self, rank: int) -> str:
        return self._lines.get(rank, "")


def said(why: str, at: float = 0.0, **summary: Any) -> tuple[float, metrics.RunFailure]:
    return at, metrics.RunFailure("It ended at step 12.", why, "again", summary)


def explained(relay: Told, **codes: int) -> metrics.RunFailure:
    failures = {int(rank[1:]): Died(100 + int(rank[1:]), code) for rank, code in codes.items()}
    return elastic.explain(CONFIG, relay, failures, len(codes))  # type: ignore[arg-type]


def test_a_signal_outdoes_what_the_others_say_about_it() -> None:
    found = explained(Told({0: said("Connection closed by peer", steps=12)}), r0=2, r1=-11)
    assert found.what == "Rank 1 (pid 101) ended with signal SIGSEGV."
    assert found.summary == {
        "steps": 12,
        "error": {"what": found.what, "why": found.why, "next": found.next},
    }


def test_an_error_of_its_own_outdoes_one_about_a_peer_though_it_is_heard_later() -> None:
    relay = Told(
        {
            0: said("Connection reset by peer", 1.0),
            1: said("CUDA out of memory", 2.0),
            2: said("timed out"),
        }
    )
    assert explained(relay, r0=2, r1=2, r2=2).what.startswith(
        "Rank 1 (pid 101) ended with exit code 2"
    )


def test_the_first_of_two_that_failed_alike_is_named() -> None:
    assert (
        "Rank 1"
        in explained(
            Told({0: said("a", 5.0), 1: (4.0, metrics.RunFailure("b", "c", "d"))}), r0=2, r1=2
        ).what
    )


def test_what_all_ranks_refuse_alike_is_told_once() -> None:
    refused = metrics.RunFailure("It does not fit.", "too big", "smaller")
    assert explained(Told({0: (1.0, refused), 1: (0.5, refused)}), r0=2, r1=2) == refused


def test_a_silent_end_is_told_with_the_last_line_and_the_step() -> None:
    found = explained(Told({}, {0: "RuntimeError: no kernel image"}), r0=1)
    assert "no kernel image" in found.why
    assert "step 12" in found.why
    assert "--headless" in found.next


# ── the relay ─────────────────────────────────────────────────────────────────────────────────────


def test_the_relay_passes_rank_0_on_and_logs_the_rest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = io.BytesIO()
    relay = Relay(str(tmp_path), 2, out)
    step = metrics.encode(metrics.Step(3, 1.0, None, None))
    ended = metrics.encode(metrics.RunEnded({"steps": 3}))
    failure = metrics.encode(metrics.RunFailure("a", "b", "c"))
    for name, data in (
        ("0.out", step[:10]),
        ("0.out", step[10:] + b"stray print\n" + ended),
        ("1.out", step + failure),
        ("1.err", b"x" * 9000 + b"\n\nlast words"),
        ("0.err", b"\xff\n"),
    ):
        with open(tmp_path / name, "wb") as pipe:
            pipe.write(data)
    relay.finish()
    assert out.getvalue() == step
    assert json.loads(relay.ended or b"")["summary"] == {"steps": 3}
    assert relay.failures == {1: metrics.RunFailure("a", "b", "c")}
    assert relay.step == 3
    assert relay.last_line(1) == "last words"
    errors = capfd.readouterr().err.splitlines()
    assert "[rank 0] stray print" in errors
    assert "[rank 1] last words" in errors
    assert max(map(len, errors)) < 4100
