"""What only speaks of errors has had none: documents, settings, and such lines within a log."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.doctor.messages import examine
from gpuscope.doctor.messages.prose import kind_of_document
from gpuscope.exit_status import ExitStatus

ROOT = Path(__file__).parent.parent.parent
STEPS = [f"step {i}/200 loss {2 + 1 / (i + 1):.3f}" for i in range(0, 201, 10)]
MARKDOWN = """# Alerts of the trainer

- **lost**: an alert when the GPU is lost, see [the settings](settings.md)
- **memory**: the trainer writes a record of an out-of-memory error to `out/`

A job that ignores SIGTERM gets a SIGKILL after ten seconds. CUDA is needed.
"""
SETTINGS = """[alerts]
lost = true  # when a GPU is lost, hangs or fails
memory = 0.95

[trainer]
on_end = "SIGKILL"
cuda = true
"""
PROSE = """The trainer ends its workers with a SIGKILL when they do not answer in time.
When a GPU is lost, the supervisor takes it out of the pool and goes on without it.
The mapping may raise a SIGBUS in a worker that reads behind the end of its file.
No batch is repeated after an out-of-memory error, because the sampler has moved on.
"""


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("notes.md", MARKDOWN, "Markdown"),
        ("notes", MARKDOWN, "Markdown"),
        ("alerts.toml", SETTINGS, "a settings file"),
        ("alerts", SETTINGS, "a settings file"),
        ("alerts.yaml", "lost: true  # when a GPU is lost\ncuda: true\n", "a settings file"),
        ("notes.txt", PROSE, "prose"),
    ],
)
def test_a_document_is_told_from_a_log(capsys, tmp_path, name, text, kind):
    path = tmp_path / name
    path.write_text(text)
    assert cli.main(["doctor", str(path)]) == ExitStatus.UNCHECKED
    out = " ".join(capsys.readouterr().out.split())
    assert f"{name}: this does not look like a log: it reads as {kind}" in out
    assert "Nothing was examined." in out


def test_the_documents_of_this_project_have_not_failed(capsys):
    for name in ("README.md", "docs/settings.md", "pyproject.toml", "LICENSE"):
        assert cli.main(["doctor", str(ROOT / name)]) == ExitStatus.UNCHECKED, name
        assert "does not look like a log" in " ".join(capsys.readouterr().out.split()), name


@pytest.mark.parametrize(
    "error",
    [
        "Traceback (most recent call last):\n"
        '  File "train.py", line 7, in <module>\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "[4711.5] NVRM: Xid (PCI:0000:17:00): 79, pid=88, GPU has fallen off the bus.",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=81.0",
        "UserWarning:\n  The GPU of this machine is too old. It is of CUDA capability 3.0.\n"
        "THCudaCheck FAIL error=48 : no kernel image is available for execution on the device",
    ],
)
def test_a_document_with_a_real_error_is_read_as_a_log(capsys, tmp_path, error):
    path = tmp_path / "issue.md"
    path.write_text(f"{MARKDOWN}\n```\n{error}\n```\n")
    assert kind_of_document(path.read_text().splitlines(), path.name) == ""
    assert kind_of_document([*PROSE.splitlines(), *error.splitlines()], "notes") == ""
    cli.main(["doctor", str(path), "--json"])
    assert "does not look like a log" not in capsys.readouterr().out
    assert examine(path)[0]


def test_the_symptom_is_judged_though_the_file_is_no_log(capsys, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(MARKDOWN)
    cli.main(["doctor", str(path), "--symptom", "loss is nan in fp16"])
    out = capsys.readouterr().out
    assert "does not look" in out
    assert "bf16" in out


@pytest.mark.parametrize(
    "text",
    [
        "lost = true  # when a GPU is lost, hangs or fails",
        "alerts: fallen off the bus, uncorrectable ECC errors",
        "a record of an out-of-memory error is written to out/",
        "on_timeout: SIGKILL",
        "handlers: SIGTERM, SIGBUS",
        "memory.events: low 0 high 0 max 0 oom 0 oom_kill 0",
    ],
)
def test_a_setting_in_a_log_is_no_failure(text):
    found, _ = examine([text, *STEPS])
    assert [one for one in found if one.confidence != "prior"] == []


@pytest.mark.parametrize(
    ("text", "pitfall"),
    [
        ("Unable to determine the device handle for GPU 0000:17:00.0: GPU is lost.", "gpu-health"),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu-health"),
        ("2026-01-02 03:04:05 ERROR health: the GPU has a fault, gpu is lost", "gpu-health"),
        ("MemoryError", "host-memory-limit"),
        ("worker 3 was killed by SIGKILL", "host-memory-limit"),
        ("subprocess.CalledProcessError: died with <Signals.SIGKILL: 9>.", "host-memory-limit"),
        ("Out of memory: Killed process 88 (python)", "host-memory-limit"),
        ("Signal 7 (SIGBUS) received by PID 77", "shm-size"),
    ],
)
def test_the_message_itself_is_one(text, pitfall):
    found, _ = examine([*STEPS, text])
    assert (found[0].pitfall, found[0].confidence) == (pitfall, "likely")


def test_the_users_own_words_need_no_form_of_a_message():
    assert examine((), symptom="the gpu is lost after an hour")[0][0].pitfall == "gpu-health"


def test_what_programs_print_in_sentences_is_a_log(tmp_path, capsys):
    path = tmp_path / "slurm-81.out"
    path.write_text(
        "".join(f"srun: node{i}: task {i} of the job has ended at once\n" for i in "1234")
    )
    cli.main(["doctor", str(path)])
    assert "does not look like a log" not in capsys.readouterr().out


def test_the_first_sentences_of_a_training_are_a_log(tmp_path, capsys):
    path = tmp_path / "train.log"
    path.write_text(
        "Loading the dataset from disk into the host's memory. Please wait a moment.\n"
        "Starting the training of the model with torch on one GPU. Press Ctrl-C to stop.\n"
        "The model has been compiled for the device and is ready for its first step.\n"
        "step 1 loss 2.30\n"
    )
    assert cli.main(["doctor", str(path)]) == ExitStatus.OK
    assert "does not look like a log" not in capsys.readouterr().out


def test_messages_without_full_stops_are_a_log():
    said = [f"moving layer {name} of the model to the device that is free" for name in "abcdef"]
    assert kind_of_document(said, "notes") == ""
    assert kind_of_document([line + "." for line in said], "notes") == "prose"


def test_a_document_that_names_ranks_is_no_dead_job(tmp_path, capsys):
    first, second = tmp_path / "ranks.md", tmp_path / "more.md"
    for path in (first, second):
        path.write_text(f"{MARKDOWN}\n- `[rank0]: RuntimeError` is a line of [rank 0](ranks.md)\n")
    for names in ([first], [first, second]):
        assert cli.main(["doctor", *map(str, names)]) == ExitStatus.UNCHECKED
        out = " ".join(capsys.readouterr().out.split())
        assert out.count("does not look like a log") == len(names)
        assert "Nothing was examined." in out


def piped(text):
    return io.TextIOWrapper(io.BufferedReader(io.BytesIO(text.encode())))


def test_sentences_that_are_pasted_may_be_about_a_failure(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", piped(PROSE))
    cli.main(["doctor", "-"])
    assert "does not look like a log" not in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", piped(MARKDOWN))
    assert cli.main(["doctor", "-"]) == ExitStatus.UNCHECKED
    assert "does not look like a log" in capsys.readouterr().out
