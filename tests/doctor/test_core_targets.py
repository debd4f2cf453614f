"""What a target is taken for, by its content, and what is said of one that cannot be examined."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from gpuscope.cli.commands.doctor import targets as doctor_targets
from gpuscope.doctor.finding import Report

ROOT = Path(__file__).parent.parent.parent
LOG = "step 7: loss 2.125\nRuntimeError: 0.25 ≠ 4\n"
NOISE = random.Random(0).randbytes(20_000)
"""The same for every process of a test run, which has to find the same tests."""


def whole(stream):
    return b"".join(iter(lambda: stream.read(7), b""))


class Asked(list):
    """What the examiners were asked, in order: their module, and what it was given."""

    def put(self, monkeypatch):
        def examiner(name, module, function="examine", last=None):
            def examine(*words, **options):
                given = tuple(
                    whole(word) if hasattr(word, "read") else word for word in words[:last]
                )
                self.append((name, *given, *options.values()))
                return Report(examined=(name,))

            monkeypatch.setattr(f"{module}.{function}", examine, raising=False)

        examiner("text", "gpuscope.doctor.messages", "report", last=2)
        examiner("script", "gpuscope.doctor.script", "report")
        examiner("postmortem", "gpuscope.doctor.postmortem")
        examiner("live", "gpuscope.cli.commands.doctor.live")
        examiner("environment", "gpuscope.cli.commands.doctor.environment")
        examiner("left", "gpuscope.cli.commands.doctor.left")
        return self


@pytest.fixture
def asked(monkeypatch):
    return Asked().put(monkeypatch)


def examine(*targets, torch=False):
    return doctor_targets.examine([str(target) for target in targets], torch, 5.0)


def refusal(*targets):
    report = examine(*targets)
    assert report.examined == ()
    (problem,) = report.problems
    assert problem.endswith((".", "doctor", ".py"))
    return problem


def give_standard_input(monkeypatch, content: bytes):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))


def test_without_a_target_the_environment_the_trainers_and_the_dead(asked):
    assert examine(torch=True).examined == ("environment", "live", "left")
    assert asked == [("environment", True, 5.0), ("live", None, 5.0), ("left",)]


def test_torch_is_asked_beside_a_target_too(asked, tmp_path):
    (tmp_path / "log").write_text(LOG)
    examine(tmp_path / "log", torch=True)
    assert [row[0] for row in asked] == ["text", "environment"]


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(LOG.encode(), id="plain"),
        pytest.param(gzip.compress(LOG.encode()), id="gzip"),
        pytest.param(LOG.encode("utf-16"), id="UTF-16"),
        pytest.param(gzip.compress(LOG.encode("utf-16")), id="UTF-16 in gzip"),
    ],
)
def test_a_text_is_text_however_it_is_packed(asked, tmp_path, content, monkeypatch):
    path = tmp_path / "train.out"
    path.write_bytes(content)
    give_standard_input(monkeypatch, content)
    assert examine(path, "-", path).examined == ("text", "text")
    assert asked == [("text", LOG.encode(), "train.out"), ("text", LOG.encode(), "log")]


def test_a_text_with_colours_and_other_alphabets_is_text(asked, tmp_path):
    content = ("\x1b[31mошибка\x1b[0m\r 50%|█████\r\n" * 50).encode() + "Größe".encode("latin-1")
    (tmp_path / "log").write_bytes(content)
    examine(tmp_path / "log")
    assert asked == [("text", content, "log")]


def test_a_pipe_by_name_is_read(asked, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(LOG,))
    writer.start()
    examine(pipe)
    writer.join()
    assert asked == [("text", LOG.encode(), "pipe")]


def test_scripts_and_folders(asked, tmp_path):
    script, bare = tmp_path / "train.py", tmp_path / "train"
    script.write_text("import torch\n")
    bare.write_text("#!/usr/bin/env python3\nimport torch\n")
    examine(script, bare, tmp_path)
    assert asked == [("script", [str(path)]) for path in (script, bare, tmp_path)]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("demos/snapshots/fragmented.pickle.gz", "snapshot"),
        ("tests/data/recordings/h200x2-ddp.gsr", "recording"),
    ],
)
def test_what_a_trainer_left_is_known_by_its_content(asked, tmp_path, source, kind):
    path = tmp_path / "renamed.txt"
    shutil.copy(ROOT / source, path)
    examine(path)
    assert asked == [("postmortem", path, kind)]


def test_an_unpacked_snapshot_and_a_black_box(asked, tmp_path):
    from gpuscope.wire import boxes

    snapshot, box, second = (tmp_path / name for name in ("a", "b", "c"))
    snapshot.write_bytes(pickle.dumps({"segments": []}, 2))
    header = boxes.header(1, b"{}")
    box.write_bytes(header.ljust(boxes.SLOTS_OFFSET, b"\0"))
    second.write_bytes(gzip.compress(bytes(boxes.HEADER_BYTES) + header))
    examine(snapshot, box, second)
    assert [row[2] for row in asked] == ["snapshot", "box", "box"]


def test_a_number_is_a_process_unless_it_is_a_file(asked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examine("4711")
    Path("4711").write_text(LOG)
    examine("4711")
    assert asked == [("live", 4711, 5.0), ("text", LOG.encode(), "4711")]


@pytest.mark.parametrize("number", ["0", "99999999", "9" * 500])
def test_a_number_that_no_process_has(asked, number):
    assert "no process can have this pid" in refusal(number)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it is empty"),
        (NOISE, "unknown binary file"),
        (b"\x7fELF\x02\x01\x01" + bytes(100), "unknown binary file"),
        (b"PK\x03\x04" + bytes(100), "torch.save()"),
        (gzip.compress(b"", mtime=0), "empty gzip"),
        (b"\x1f\x8b" + b"x" * 50, "empty gzip"),
        (gzip.compress(NOISE, mtime=0), "unknown binary file"),
    ],
)
def test_what_cannot_be_examined_is_named_with_its_reason(
    asked, tmp_path, monkeypatch, content, says
):
    path = tmp_path / "odd"
    path.write_bytes(content)
    assert refusal(path).startswith("odd: ")
    assert says in refusal(path)
    give_standard_input(monkeypatch, content)
    assert says in refusal("-")
    assert asked == []


@pytest.mark.parametrize(
    "source", ["demos/snapshots/fragmented.pickle.gz", "tests/data/recordings/h200x2-ddp.gsr"]
)
def test_files_that_have_to_be_sought_are_not_for_standard_input(asked, monkeypatch, source):
    give_standard_input(monkeypatch, (ROOT / source).read_bytes())
    assert "write it to a file" in refusal("-")


def test_a_notebook_names_the_way_to_a_script(asked, tmp_path):
    (tmp_path / "run.ipynb").write_text("{}")
    assert "jupyter nbconvert --to script run.ipynb" in refusal(tmp_path / "run.ipynb")


def test_what_is_not_there_or_elsewhere(asked, tmp_path):
    assert "there is no file" in refusal(tmp_path / "gone")
    assert "ssh me@node gpuscope doctor" in refusal("me@node")
    assert "\x1b" not in refusal(tmp_path / "\x1b[31m")
    assert "cannot be examined" in refusal("nul\0byte")
    assert "File name too long" in refusal("x" * 5000)


def test_one_that_fails_hides_nothing_of_the_others(asked, tmp_path, monkeypatch):
    def broken(*words):
        raise KeyError("\x1b[31m")

    monkeypatch.setattr("gpuscope.doctor.script.report", broken)
    (tmp_path / "a.py").write_text("")
    (tmp_path / "log").write_text(LOG)
    report = examine(tmp_path / "gone", tmp_path / "a.py", tmp_path / "log")
    assert report.examined == ("text",)
    assert len(report.problems) == 2
    assert "a.py: the check failed (KeyError: " in report.problems[1]
    assert "\x1b" not in report.problems[1]


def test_an_examiner_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "gpuscope.doctor.postmortem", None)
    assert "is missing" in refusal(ROOT / "demos/snapshots/fragmented.pickle.gz")


def test_of_a_damaged_log_what_is_whole_is_examined(asked, tmp_path):
    content = (LOG * 5000).encode() + os.urandom(200_000).hex().encode()
    (tmp_path / "log.gz").write_bytes(gzip.compress(content)[:-3000])
    report = examine(tmp_path / "log.gz")
    ((_, text, _),) = asked
    assert content.startswith(text)
    assert len(text) > len(content) - 100_000
    assert report.problems == (
        "log.gz: was only partly read (Compressed file ended before the end-of-stream marker was "
        "reached).",
    )


def found_in(tmp_path, text):
    path = tmp_path / "a.log"
    path.write_text(text)
    return examine(path)


def test_a_log_that_says_nothing_of_training_is_not_called_healthy(tmp_path):
    report = found_in(
        tmp_path, "2031-03-02 INFO com.example.Main - request 17 served in 4 ms\n" * 300
    )
    assert report.examined == ()
    assert "nothing about a PyTorch training" in report.problems[0]


def test_a_log_of_a_healthy_training_is_fine(tmp_path):
    report = found_in(
        tmp_path, "".join(f"epoch 3 step {n} loss {2 / (n + 1):.4f}\n" for n in range(300))
    )
    assert report == Report(examined=("a.log",))


def test_a_log_is_examined_for_real(tmp_path):
    error = (
        "RuntimeError: Expected all tensors to be on the same device, but found at least two "
        "devices, cuda:5 and cpu!"
    )
    report = found_in(tmp_path, f"epoch 3 step 8 loss 0.5\n{error}\n")
    assert report.examined == ("a.log",)
    assert {"move-inputs-to-device", "move-model-to-device"} & {
        one.pitfall for one in report.findings
    }
    assert report.problems == ()


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_word_is_no_target(asked):
    assert "an empty word" in refusal("")
    assert asked == []


def test_a_pipe_that_nobody_writes_into_is_refused(asked, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    report = doctor_targets.examine([str(tmp_path / "pipe")], False, 0.3)
    assert report.problems == ("pipe: a pipe that no writer opened within 300 ms.",)


def test_a_pipe_whose_writer_takes_its_time_is_waited_for(asked, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    opened = os.open(pipe, os.O_RDWR)

    def slowly():
        time.sleep(0.1)  # ten times what a writer may take to open it
        os.write(opened, LOG.encode())
        os.close(opened)

    writer = threading.Thread(target=slowly)
    writer.start()
    report = doctor_targets.examine([str(pipe)], False, 0.01)
    writer.join()
    assert report.problems == ()
    assert asked == [("text", LOG.encode(), "pipe")]


def test_what_was_read_while_looking_for_a_writer_is_not_lost():
    with tempfile.TemporaryFile() as file:
        file.write(b"bcdef")
        file.seek(0)
        begun = io.BufferedReader(doctor_targets._Begun(b"a", io.FileIO(os.dup(file.fileno()))))
        assert begun.read() == b"abcdef"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda place: (place / "x").symlink_to(place / "nowhere"), "leads to a file that is not"),
        (lambda place: (place / "x").symlink_to(place / "x"), "symbolic links"),
        (lambda place: socket.socket(socket.AF_UNIX).bind(str(place / "x")), "cannot be read"),
        (
            lambda place: ((place / "x").touch(), os.truncate(place / "x", 3 << 30)),
            "unknown binary file",
        ),
        (lambda place: (place / "x").symlink_to("/dev/zero"), "it is a device, not a file"),
        (lambda place: (place / "x").mkdir(), "no Python file in it"),
        (lambda place: (place / "x").write_bytes(b"\x1f\x8b\x08"), "gzip"),
        (
            lambda place: (place / "x").write_text(
                "panic: index out of range\ngoroutine 1 [running]:\n"
            ),
            "PyTorch",
        ),
    ],
    ids=["broken-link", "loop", "socket", "sparse", "device", "folder", "cut-gzip", "go"],
)
def test_what_is_no_target_is_refused_with_the_reason(tmp_path, make, said):
    make(tmp_path)
    report = examine(tmp_path / "x")
    (problem,) = report.problems
    assert said in problem
    assert "x" in problem
    assert report.findings == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("print(1)\n", "does not mention torch"),
        ("import torch\ndef f(:\n", "not valid Python"),
    ],
)
def test_a_script_that_is_not_checked_is_no_healthy_one(tmp_path, text, said):
    (tmp_path / "train.py").write_text(text)
    (problem,) = examine(tmp_path / "train.py").problems
    assert said in problem


def test_of_a_script_it_is_said_how_to_see_it_run(tmp_path):
    script = tmp_path / "my train.py"
    script.write_text("import torch\nprint(torch.__version__)\n")
    (open_question,) = examine(script).abstained
    assert f"gpuscope run '{script}' starts it" in open_question.missing
    assert "gpuscope why" in open_question.missing
    for text in ("import os\n", "import torch\ndef\n"):
        script.write_text(text)
        report = examine(script)
        assert (report.abstained, len(report.problems)) == ((), 1), "what no run would tell"
    (tmp_path / "log").write_text(LOG)
    assert examine(tmp_path / "log").abstained == ()


def test_of_a_process_without_a_probe_the_log_that_it_writes_is_read(tmp_path, monkeypatch):
    none = Report(problems=("There is no probe in it.",))
    monkeypatch.setattr("gpuscope.cli.commands.doctor.live.examine", lambda *_: none)
    log = tmp_path / "train.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sys, time\n"
                "for step in range(90):\n"
                "    print('step', step, 'loss', 2.5 if step < 30 else 'nan', flush=True)\n"
                "time.sleep(600)",
            ],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        while "step 89" not in log.read_text():
            time.sleep(0.05)
        report = doctor_targets.examine([str(process.pid)], False, 5.0)
    finally:
        process.kill()
        process.wait()
    assert {one.pitfall for one in report.findings if one.severity == "problem"} == {"not-finite"}
    assert report.examined == ("train.log",)
    assert report.problems == none.problems
