"""``gpuscope export``: pages drawn from frames, and the real thing on a port and in a file."""

from __future__ import annotations

import math
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

pytest.importorskip(
    "prometheus_client", reason="needs the extra export: pip install prometheus-client"
)

from prometheus_client.parser import text_string_to_metric_families

from gpuscope.export import run, table
from gpuscope.export.page import Memory, Page, SeriesLimits, draw
from gpuscope.store.store import Store
from gpuscope.store.view import Capabilities, Link
from gpuscope.wire import frames as f
from tests.fakes import in_process, shim, wire
from tests.fakes.probe_client import TRAINING, environment, wait_for
from tests.fakes.program import python

LIVE = Link("live", "", 0.0)
Samples = dict[str, dict[tuple[str, ...], float]]


def scene(*more: f.Frame, ticks: int = 3) -> Store:
    """Two devices, two ranks of a job on them, and what else is said."""
    store = Store()
    store.add_source("k", "node-1")
    for frame in (
        wire.hello(),
        *wire.definitions(),
        *(wire.sample(q) for q in range(ticks)),
        *more,
    ):
        store.apply("k", frame, 1.0)
    store.set_link("k", LIVE)
    return store


def drawn(store: Store, memory: Memory | None = None, limits: SeriesLimits | None = None) -> Page:
    memory = memory or Memory()
    for host in store.view().hosts:
        memory.look(host)
    return draw(store.view(), memory, limits or SeriesLimits())


def parsed(text: str) -> Samples:
    """{sample name: {values of its labels that are set: value}}."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(f"{k}={v}" for k, v in sorted(sample.labels.items()) if v)
            assert labels not in found.setdefault(sample.name, {}), f"{sample.name}{labels} twice"
            found[sample.name][labels] = sample.value
    return found


class Still:
    """A source whose frames are here already."""

    key, label, badge = "k", "node-1", ""

    def __init__(self) -> None:
        self.taps: list[object] = []
        self.capabilities = Capabilities()

    async def run(self, sink: object, on_link: object) -> None:
        raise AssertionError("not followed")


def text_of(store: Store) -> str:
    exporter = run.Exporter(Still(), SeriesLimits())  # type: ignore[arg-type]
    exporter._view = store.view()
    exporter._memory.look(store.view().hosts[0])
    return exporter.text().decode()


RANK_0 = ("node-1", "run-1", "0", "", "")
RANK_1 = ("node-1", "run-1", "1", "", "")


# ── what a page holds ─────────────────────────────────────────────────────────────────────────────


def test_readings_are_in_base_units_with_the_labels_of_job_rank_and_card():
    samples = drawn(scene()).samples
    assert samples["gpuscope_train_steps_total"] == {RANK_0: 2, RANK_1: 2}
    assert samples["gpuscope_train_step_seconds"][RANK_0] == 0.25
    assert samples["gpuscope_torch_allocated_bytes"] == {
        (*RANK_0, "0", "GPU-a"): 62,
        (*RANK_1, "1", "GPU-b"): 62,
    }
    assert samples["gpuscope_torch_cached_bytes"][(*RANK_0, "0", "GPU-a")] == 20
    assert samples["gpuscope_gpu_utilization_ratio"] == {
        ("node-1", str(i), f"GPU-{x}"): 0.5 for i, x in enumerate("ab")
    }
    assert samples["gpuscope_train_process_resident_memory_bytes"][RANK_1] == 12
    assert samples["gpuscope_agent_up"] == {("node-1",): 1}


def test_the_parts_of_a_step_add_up_to_the_measured_step_and_not_to_the_median():
    parts = {
        "input_seconds": 0.03,
        "compute_seconds": 0.2,
        "optimizer_seconds": 0.05,
        "communication_seconds": 0.02,
    }
    trainer = wire.row(7, "t", step=3, step_seconds=0.25, step_seconds_mean=0.28, **parts)
    samples = drawn(scene(wire.sample(3, t=[trainer]))).samples
    told = samples["gpuscope_train_step_part_seconds"]
    assert samples["gpuscope_train_measured_step_seconds"][RANK_1] == pytest.approx(0.3)
    assert sum(told.values()) == pytest.approx(0.3)
    assert samples["gpuscope_train_step_seconds"][RANK_1] == 0.25
    assert samples["gpuscope_train_step_mean_seconds"][RANK_1] == 0.28
    assert RANK_0 not in samples["gpuscope_train_measured_step_seconds"]


def test_unknown_is_absent_and_never_zero():
    page = drawn(scene())
    assert "gpuscope_gpu_power_watts" not in page.samples
    assert "gpuscope_train_stalled" in page.samples
    assert "gpuscope_torch_ooms_total" not in page.samples
    assert "gpuscope_torch_reserved_part_bytes" not in page.samples
    lost = wire.sample(
        3,
        g=[wire.row(1, "g", used_bytes=None)],
        why=[[1, "used_bytes", f.LOST, "fell off the bus"]],
    )
    samples = drawn(scene(lost)).samples
    assert samples["gpuscope_gpu_up"] == {("node-1", "0", "GPU-a"): 0, ("node-1", "1", "GPU-b"): 1}
    assert set(samples["gpuscope_gpu_memory_used_bytes"]) == {("node-1", "1", "GPU-b")}


def test_what_no_number_can_be_is_left_out():
    page = Page()
    for value in (math.nan, math.inf, None, "12", f.Unknown("timeout", "late")):
        page.add(table.DEVICE_TOTAL, ("h", 0, "u"), value)
    assert not any(page.samples.values())


def test_what_has_ended_or_is_not_live_has_no_series():
    gone = f.Event(8, "gone", 110 * wire.SECOND)
    samples = drawn(scene(gone)).samples
    assert set(samples["gpuscope_train_steps_total"]) == {RANK_1}
    assert set(samples["gpuscope_probe_up"]) == {RANK_1}
    assert len(samples["gpuscope_torch_allocated_bytes"]) == 1
    store = scene()
    store.set_link("k", Link("stale", "no data for 9 s", 9.0))
    assert {name: dict(rows) for name, rows in drawn(store).samples.items() if rows} == {
        "gpuscope_agent_up": {("node-1",): 0}
    }


def test_a_probe_that_is_silent_is_down_and_its_last_words_are_not_repeated():
    others = {"t": [wire.row(7, "t", step=60, step_age_seconds=0.1)], "a": []}
    samples = drawn(scene(*(wire.sample(q, **others) for q in range(3, 40)))).samples
    assert samples["gpuscope_probe_up"] == {RANK_0: 0, RANK_1: 1}
    assert set(samples["gpuscope_train_steps_total"]) == {RANK_1}
    assert "gpuscope_torch_allocated_bytes" not in samples


def test_stalls_are_counted_once_each():
    store, memory = scene(), Memory()
    assert drawn(store, memory).samples["gpuscope_train_stalls_total"] == {RANK_0: 0, RANK_1: 0}
    for number in range(3):
        store.apply("k", f.Event(8, "stall", (105 + number) * wire.SECOND), 2.0)
        for _ in range(2):
            samples = drawn(store, memory).samples
        assert samples["gpuscope_train_stalls_total"] == {RANK_0: number + 1, RANK_1: 0}
    store.apply(
        "k",
        wire.sample(
            20, t=[wire.row(8, "t", step=2, step_age_seconds=9.0, stall_at="data.py:9 get")]
        ),
        2.0,
    )
    assert drawn(store, memory).samples["gpuscope_train_stalled"][RANK_0] == 1


def test_cardinality_is_bounded_and_what_is_left_out_is_counted():
    many = [
        f.Def(100 + n, trainer=f.TrainerDef(1000 + n, 5, script=f"/x/{n % 3}.py"))
        for n in range(50)
    ]
    rows = [wire.row(100 + n, "t", step=n) for n in range(50)]
    page = drawn(scene(*many, wire.sample(4, t=rows)), limits=SeriesLimits(devices=1, trainers=10))
    assert len(page.samples["gpuscope_probe_up"]) == 10
    assert len(page.samples["gpuscope_gpu_info"]) == 1
    left_out = {
        labels[1]: value for labels, value in page.samples["gpuscope_export_left_out"].items()
    }
    assert left_out == {"devices": 1, "trainers": 42, "allocators": 0}


def test_trainers_of_no_job_are_told_apart_by_their_pid():
    alone = [
        f.Def(100 + n, trainer=f.TrainerDef(1000 + n, 5, script="/x/train.py", pod="pod-7"))
        for n in range(2)
    ]
    page = drawn(
        scene(*alone, wire.sample(4, t=[wire.row(100 + n, "t", step=n) for n in range(2)]))
    )
    steps = page.samples["gpuscope_train_steps_total"]
    assert steps["node-1", "train.py", "", "1000", "pod-7"] == 0
    assert steps["node-1", "train.py", "", "1001", "pod-7"] == 1


def test_hostile_names_stay_inside_their_labels():
    evil = 'x"} 1\ngpuscope_up 9\n\\ \x1b[31m \u202e' + "y" * 5000
    job = f.Def(100, trainer=f.TrainerDef(1000, 5, script=evil, job=evil, rank=0, pod=evil))
    text = text_of(
        scene(
            job,
            f.Def(1, gpu=f.GpuDef("GPU-a", 0, name=evil)),
            wire.sample(4, t=[wire.row(100, "t", step=1)]),
        )
    )
    found = parsed(text)
    assert "gpuscope_up" not in found
    assert max(len(line) for line in text.splitlines()) < 1200
    assert set(found) <= set(table.METRICS)


def everything() -> str:
    """A page with every metric in it."""
    texts = {"stall_at": "data.py:9 get", "phase": "train"}
    full = {
        name: [wire.row(i, name, **{c: texts.get(c, 5) for c in f.COLUMNS[name]}) for i in ids]
        for name, ids in (("h", (0,)), ("g", (1, 2)), ("p", (3, 4)), ("t", (7, 8)), ("a", (9, 10)))
    }
    host = f.Def(
        0, host=f.HostDef(driver_version="580.1", cuda_driver_version="13.0", kernel="6.8")
    )
    return text_of(scene(host, wire.sample(4, **full)))


def test_every_metric_of_the_table_is_shown_and_named_as_prometheus_wants_it():
    text = everything()
    assert {name for name, rows in parsed(text).items() if rows} == set(table.METRICS)
    assert re.findall(r"^# TYPE (\S+)", text, re.M) == list(table.METRICS)
    for name, metric in table.METRICS.items():
        assert re.fullmatch(r"gpuscope_[a-z0-9_]+", name)
        assert not re.search("percent|_mhz|_ms|milli|_mib", name)
        assert metric.help.endswith(".")
    parts = [
        line for line in text.splitlines() if line.startswith("gpuscope_torch_reserved_part_bytes")
    ]
    assert len(parts) == 12


def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("needs promtool: apt-get install --no-install-recommends prometheus")
    return found


def test_promtool_has_nothing_to_say():
    checked = subprocess.run(
        [promtool(), "check", "metrics"], input=everything(), capture_output=True, text=True
    )
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


# ── the program ───────────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    """A port that nobody has.

    Not one that the kernel picks: until we listen it could give it to somebody else.
    """
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", random.randrange(10_000, max(first, 20_000))))
            return int(probe.getsockname()[1])


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpuscope", "export", *words]


@contextmanager
def exporting(*words: str, env: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def scrape(port: int) -> Samples:
    """What is served now; nothing where nobody serves. Not much more often than readings come."""
    time.sleep(0.1)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            return parsed(answer.read().decode())
    except urllib.error.URLError:
        return {}


def of(samples: Samples, name: str, label: str) -> float | None:
    return next((v for labels, v in samples.get(name, {}).items() if label in labels), None)


@pytest.mark.slow
def test_a_training_on_a_port_from_its_first_step_to_its_end():
    pytest.importorskip("torch")
    port = free_port()
    with exporting(
        "--listen", f"127.0.0.1:{port}", "--hz", "5", env=shim.environment(gpus=2)
    ) as process:
        assert process.stderr is not None
        assert (
            process.stderr.readline() == f"gpuscope: metrics at http://127.0.0.1:{port}/metrics\n"
        )
        wait_for(lambda: "gpuscope_gpu_memory_used_bytes" in scrape(port), 60, "the devices")
        samples = scrape(port)
        assert len(samples["gpuscope_gpu_info"]) == 2
        assert list(samples["gpuscope_driver_up"].values()) == [1]
        assert set(samples) <= set(table.METRICS)
        code = "import gpuscope; gpuscope.watch()\n" + TRAINING + "train()"
        more = {
            "KUBERNETES_SERVICE_HOST": "10.0.0.1",
            "HOSTNAME": "trainer-7f",
            "GPUSCOPE_BLACKBOX": "0",
        }
        trainer = subprocess.Popen([sys.executable, "-c", code], env=environment(**more))
        label = f"pid={trainer.pid}"
        try:
            wait_for(
                lambda: (of(scrape(port), "gpuscope_train_steps_total", label) or 0) > 3,
                90,
                "steps",
            )
            first = scrape(port)
            assert of(first, "gpuscope_probe_up", label) == 1
            labels = next(k for k in first["gpuscope_train_steps_total"] if label in k)
            assert "pod=trainer-7f" in labels
            before = of(first, "gpuscope_train_steps_total", label)
            wait_for(
                lambda: of(scrape(port), "gpuscope_train_steps_total", label) > before,
                60,
                "more steps",
            )
        finally:
            trainer.kill()
            trainer.wait()
        wait_for(
            lambda: not any(label in k for rows in scrape(port).values() for k in rows),
            60,
            "its series gone",
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stderr.read() == ""
        assert scrape(port) == {}


def refused(*words: str) -> str:
    done = in_process.command("export", *words)
    assert done.returncode == 3, done.stderr
    assert done.stdout == ""
    return done.stderr


def test_a_port_that_is_taken_is_said():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        text = refused("--listen", f"127.0.0.1:{port}")
    assert f"127.0.0.1:{port} is in use" in text
    assert f"ss -ltnp 'sport = :{port}'" in text


def test_other_machines_only_with_consent():
    for where in ("0.0.0.0:9400", "[::]:9400", "192.0.2.1:9400"):
        with pytest.raises(run.CannotExport, match=f"--listen {re.escape(where)} --allow-remote"):
            run.address(where, False)
        assert run.address(where, True)[1] == 9400
    assert run.address("[::1]:9400", False) == ("::1", 9400)
    assert run.address("localhost:80", False) == ("localhost", 80)
    for wrong in (
        "9400",
        ":9400",
        "localhost",
        "localhost:0",
        "localhost:70000",
        "localhost:x",
        "no such.host:1",
    ):
        with pytest.raises(run.CannotExport, match=r"gpuscope export --listen 127\.0\.0\.1:9400"):
            run.address(wrong, False)
    assert "other machines can reach" in refused("--listen", "0.0.0.0:9400")


def test_a_file_is_whole_readable_and_gone_at_the_end(tmp_path):
    path = tmp_path / "gpuscope.prom"
    with exporting(
        "--textfile", str(path), "--interval", "1", env=shim.environment(gpus=1)
    ) as process:
        wait_for(path.exists, 60, "the file")
        assert path.stat().st_mode & 0o777 == 0o644
        inode = path.stat().st_ino
        assert len(parsed(path.read_text())["gpuscope_gpu_info"]) == 1
        wait_for(lambda: path.stat().st_ino != inode, 60, "another file in its place")
        wait_for(
            lambda: os.listdir(tmp_path) == [path.name], 60, "the end of the one it was written to"
        )
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert os.listdir(tmp_path) == []


def test_no_other_file_is_opened_to_all_by_who_owns_the_directory(tmp_path, monkeypatch):
    """Its owner puts a link in the place of the file that is being written."""
    secret = tmp_path / "secret"
    secret.touch(0o600)
    open_it = os.fdopen

    def swap_and_open(descriptor, *more):
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        os.unlink(name)
        os.symlink(secret, name)
        return open_it(descriptor, *more)

    monkeypatch.setattr(os, "fdopen", swap_and_open)
    run.put(tmp_path / "gpuscope.prom", b"text")
    assert secret.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_is_said(tmp_path):
    assert "--textfile x.prom" in refused("--textfile", "x.txt")
    assert "start two" in refused("--textfile", "x.prom", "--listen", "127.0.0.1:1")
    assert "no such directory" in refused("--textfile", str(tmp_path / "not/there.prom"), "--once")


def test_without_prometheus_client_the_extra_is_named():
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "from gpuscope.cli.main import main; sys.exit(main(['export']))"
    )
    done = python("-c", code)
    assert done.returncode == 3
    assert "pip install prometheus-client" in done.stderr
