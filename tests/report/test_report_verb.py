"""``gpuscope report`` turns files into a page with the figures of the verbs and screens."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import stat
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.wire.recording import RecordingReader, RecordingWriter
from tests.recordings import REDACTED, SHIPPED
from tests.report import made_up
from tests.report.test_page import Reader

ROOT = Path(__file__).parents[2]
STALL = REDACTED / "h200x2-stall.gsr"


def reported(*words: str | Path) -> tuple[int, str, str]:
    """The exit code, the page, and its text."""
    out = Path("page.html")
    code = cli.main(["report", *map(str, words), "-o", str(out), "--force"])
    page = out.read_text() if out.exists() else ""
    text = " ".join("".join(f" {one}" for one in Reader(page).texts).split())
    return code, page, text


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_recording_says_what_happened_with_sources_and_times(capsys):
    code, page, text = reported(STALL)
    assert code == 0
    assert len(page) < 150_000
    for said in (
        "1 problem, 1 warning in h200x2-stall.gsr.",
        "ended without an error message at 16:00:21",
        "Hang: rank 1 is stuck",
        "a step, as a mean over 2 ranks",
        "used (= nvidia-smi) 5.52 GiB",
        "Load of the GPUs",
        "driver 580.159.04",
        "NVML · lowest to highest of each",
    ):
        assert said in text, said
    assert capsys.readouterr().err.startswith("page.html: ")


def test_ranks_that_step_together_have_one_step_as_on_the_screens():
    """Their readings are of two moments; where a rank hangs, the difference is one of the ranks."""
    _, _, text = reported(SHIPPED / "h200x2-ddp.gsr")
    table = text[text.index("95th percentile") :]
    assert re.findall(r"rank (\d) \S+ \d+ ([\d,]+) ", table) == [("0", "345"), ("1", "345")]
    assert "ddp_train.py 2 runs 345 " in text


def test_a_hang_is_told_where_the_trainings_and_where_their_times_are():
    _, _, text = reported(SHIPPED / "h200x2-stall.gsr")
    assert "stall_train.py 2 stalled" in text
    assert "Where the time goes: stall_train.py, rank 1, pid 6037 Stalled for " in text
    assert "Where the time goes: ddp_train.py, rank 1, pid 5958 98 %" in text
    assert "likely, ddp_train.py, rank 0, GPU 0, pid 5957" in text
    assert "killed by SIGTERM at 23:17:18 196 76.4 ms 1.6 %" in text, "its input, as everywhere"
    assert "The times below are the mean of its last 32 steps." in text
    assert "step 23.9 ms" in text, "without the hang"
    assert "57 %" not in text, "two samples before the hang tell no share"


def test_the_figures_are_those_of_the_doctor(capsys):
    _, _, text = reported(STALL)
    capsys.readouterr()
    cli.main(["doctor", str(STALL), "--json"])
    document = json.loads(capsys.readouterr().out)
    for finding in document["findings"]:
        assert finding["title"] in text
        for row in finding["evidence"]:
            assert " ".join(row["text"].split()) in text


def test_a_document_of_the_doctor_is_a_chapter(capsys):
    cli.main(["doctor", str(STALL), "--json"])
    Path("doctor.json").write_text(capsys.readouterr().out)
    code, page, text = reported("doctor.json", STALL)
    assert code == 0
    assert page.count("<article") == 2
    assert text.count("Hang: rank 1 is stuck") == 2
    assert re.search('href="#c2"', page)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (b"some text", "nothing about a PyTorch training"),
        ((ROOT / "README.md").read_bytes(), "Next: gpuscope doctor on what the training printed"),
        (b'{"a": 1}', "no report can be made of this document"),
        (b'{"a": ', "it is no JSON document"),
        (b"[" * 100_000, "it is no JSON document"),
        (b'{"k":"recording","v":1}\n', "no report can be made of it"),
    ],
)
def test_what_is_no_result_is_refused(content, says, capsys):
    Path("odd").write_bytes(content)
    assert reported("odd")[0] == 3
    error = capsys.readouterr().err
    assert says in error
    assert error.count("Next: ") == 1
    assert not Path("page.html").exists()


def test_a_missing_file_and_a_bad_place_are_said(capsys):
    assert reported("missing.gsr")[0] == 3
    assert "there is no file missing.gsr\nNext: check the path" in capsys.readouterr().err
    assert cli.main(["report", str(STALL), "-o", "no/page.html"]) == 64
    assert cli.main(["report", str(STALL), "-o", "."]) == 64
    Path("h200x2-stall.html").write_text("mine")
    assert cli.main(["report", str(STALL)]) == 64
    assert "--force" in capsys.readouterr().err
    assert Path("h200x2-stall.html").read_text() == "mine"


def test_a_device_is_written_to_and_stays_one(capsys):
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 1 << 20)
    assert cli.main(["report", str(STALL), "-o", "pipe"]) == 0
    assert os.read(reader, 15) == b"<!doctype html>"
    os.close(reader)
    assert stat.S_ISFIFO(os.stat("pipe").st_mode)
    assert cli.main(["report", str(STALL), "-o", "/dev/full"]) == 3
    assert "/dev/full cannot be written: No space left on device" in capsys.readouterr().err


def test_a_cut_recording_is_reported_with_what_is_missing(capsys):
    Path("cut.gsr").write_bytes(STALL.read_bytes()[:-4000])
    code, _, text = reported("cut.gsr")
    assert code == 1
    assert "Only a part of the file could be read" in text
    assert "Load of the GPUs" in text


def test_a_redacted_page_names_no_host_script_user_or_path(capsys):
    made_up.recording(
        Path("named.gsr"), 10.0, script="/home/ada/secret_model.py", host="node-17.cluster"
    )
    _, _, plain = reported("named.gsr")
    assert "secret_model.py" in plain
    assert "node-17.cluster" in plain
    _, page, text = reported("named.gsr", "--redact")
    for name in ("secret_model", "ada", "node-17", "ann"):
        assert not re.search(rf"\b{name}\b", page), name
    assert "Host host-1" in text
    assert "NVIDIA H100 80GB HBM3" in text


def test_the_environment_has_no_names_though_the_rest_has(capsys):
    made_up.recording(Path("named.gsr"), 10.0, gpus=4)
    _, _, text = reported("named.gsr")
    environment = text.rpartition("Environment")[2]
    assert "4 × NVIDIA H100 80GB HBM3, 80.0 GiB, compute capability 9.0" in environment
    assert "expandable_segments:True" in environment
    for name in ("node-1", "ann", "train.py", "GPU-"):
        assert name not in environment
    assert "train.py" in text


def test_a_job_with_its_time_is_told_as_why_tells_it(capsys):
    made_up.recording(Path("run.gsr"), 130.0)
    code, _, text = reported("run.gsr")
    assert code == 0
    capsys.readouterr()
    cli.main(["why", "run.gsr"])
    sentence = " ".join(capsys.readouterr().out.split()).partition("input wait")[0]
    assert sentence.partition(": ")[2] in text
    assert "data.py:12 __getitem__" in text
    assert "Every rank of train.py" in text


def test_each_host_of_a_recording_is_a_chapter(capsys):
    lines: list[tuple[str, float, bytes]] = []
    for name in ("node-1", "node-2"):
        made_up.recording(Path(f"{name}.gsr"), 10.0, host=name)
        lines += [(name, one.rx, one.line) for one in RecordingReader(f"{name}.gsr").lines()]
    with RecordingWriter("both.gsr") as writer:
        for one in sorted(lines, key=lambda line: line[1]):
            writer.write(*one)
    code, page, text = reported("both.gsr")
    assert code == 0
    assert page.count("<article") == 2
    for name in ("node-1", "node-2"):
        assert f"both.gsr: {name}" in text
    assert text.count("Load of the GPUs") == 2
    assert page.count("<h2>Findings</h2>") == 1


def test_standard_output_gets_the_page_in_utf_8(capfdbinary):
    assert cli.main(["report", str(STALL), "-o", "-"]) == 0
    out = capfdbinary.readouterr().out
    assert out.startswith(b"<!doctype html>")
    assert out.endswith(b"</html>\n")
    assert "−".encode() in out


def test_a_document_may_come_on_standard_input(capsys, monkeypatch):
    cli.main(["doctor", str(STALL), "--json"])
    document = io.TextIOWrapper(io.BytesIO(capsys.readouterr().out.encode()))
    monkeypatch.setattr("sys.stdin", document)
    assert cli.main(["report", "-"]) == 0
    assert "Hang: rank 1 is stuck" in Path("report.html").read_text()


def test_a_folder_that_cannot_be_written_is_said(capsys, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device", "page.html")

    monkeypatch.setattr("gpuscope.process.atomic_file.write", full)
    assert cli.main(["report", str(STALL)]) == 3
    assert "cannot be written: No space left on device" in capsys.readouterr().err


def test_a_log_and_a_folder_are_examined_as_by_the_doctor(capsys):
    Path("scripts").mkdir()
    Path("scripts/train.py").write_text(
        "import torch\nfrom torch.utils.data import DataLoader\n"
        "loader = DataLoader(data)\nfor x in loader:\n    x.cuda()\n"
    )
    Path("job.log").write_text(
        'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
        "capacity of 79.11 GiB of which 1.00 GiB is free.\n"
    )
    code, page, text = reported("job.log", "scripts")
    assert code == 0
    assert page.count("<article") == 2
    assert "2.00 GiB" in text
    assert "gpuscope doctor --explain" in text
