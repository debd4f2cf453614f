"""Measure all views of a snapshot of a million trace entries against torch's own page.

Time and memory are measured in one run.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.snapshot import synthetic

pytestmark = pytest.mark.bench
ENTRIES = 1_000_000
RUNS = 5


@pytest.fixture(
    scope="module",
    params=[(False, 2.0), (True, 1.5)],
    ids=["as torch writes it", "all lists shared"],
)
def million(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, float]:
    """Make the file, and return it with its bar.

    torch writes a list of (shared) frames for every allocation. With one list for each stack, as
    another tool might write, torch's page has less to write again.
    """
    share, bar = request.param
    folder = tmp_path_factory.mktemp("million")
    return synthetic.write(
        synthetic.training(ENTRIES, share_frames=share, leak=50), folder / "a.pickle"
    ), bar


def run(words: list[str]) -> tuple[float, str]:
    """Return the seconds from the command to its end, and what it printed."""
    began = time.perf_counter()
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return time.perf_counter() - began, done.stdout


PLAIN = """
import pickle, sys
with open(sys.argv[1], "rb") as file: data = pickle.load(file)
print([line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0])
"""
OURS = """
import sys
from gpuscope.snapshot.reader import open_snapshot
with open_snapshot(sys.argv[1]) as reading:
    print(reading.summary.peak_rss_bytes, reading.summary.seconds["read"], reading.summary.seconds["lay_out"])
    assert reading.summary.devices[0].trace.entries >= 1_000_000
"""  # noqa: E501


def test_a_million_entries(
    report: Callable[..., None], million: tuple[Path, float], tmp_path: Path
) -> None:
    path, bar = million
    pytest.importorskip("torch", reason="its _memory_viz is what we are compared with")
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    viz = Path(spec.submodule_search_locations[0]) / "cuda" / "_memory_viz.py"
    torch_words = [
        sys.executable,
        str(viz),
        "trace_plot",
        str(path),
        "-o",
        str(tmp_path / "out.html"),
    ]
    our_words = [sys.executable, "-m", "gpuscope", "snapshot", str(path)]
    pairs = []
    for _ in range(RUNS):
        theirs, ours = run(torch_words)[0], run(our_words)[0]
        pairs.append((theirs, ours))
    os.unlink(tmp_path / "out.html")
    ratio = statistics.median(theirs / ours for theirs, ours in pairs)
    plain = int(run([sys.executable, "-c", PLAIN, str(path)])[1]) * 1024
    rss, read, lay_out = run([sys.executable, "-c", OURS, str(path)])[1].split()
    report(
        "snapshot of 1,000,000 entries, all views",
        file_mb=round(path.stat().st_size / 1e6, 1),
        torch_s=round(statistics.median(theirs for theirs, _ in pairs), 2),
        ours_s=round(statistics.median(ours for _, ours in pairs), 2),
        ratio=round(ratio, 2),
        read_s=round(float(read), 2),
        lay_out_s=round(float(lay_out), 2),
        plain_rss_mb=round(plain / 1e6),
        child_rss_mb=round(int(rss) / 1e6),
        rss_ratio=round(int(rss) / plain, 3),
    )
    assert ratio >= bar
    assert int(rss) <= plain * 1.05
