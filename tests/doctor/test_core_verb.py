"""``gpuscope doctor`` works as it is typed.

The tests see documents, exit codes, list, explanations, the bundle, and what it loads.
"""

from __future__ import annotations

import argparse
import getpass
import json
import os
import random
import socket
import subprocess
import sys
import zipfile
from types import SimpleNamespace
from typing import Any

import pytest

from gpuscope.cli.commands.doctor import bundle as doctor_bundle
from gpuscope.cli.commands.doctor import targets as doctor_targets
from gpuscope.cli.commands.doctor import verb as doctor_verb
from gpuscope.cli.main import perform
from gpuscope.doctor import explain, messages, table
from gpuscope.doctor import report as reports
from gpuscope.doctor.finding import Evidence, Finding, Fix, Report
from gpuscope.tui.app.palette_entries import of_pitfalls, score
from tests.fakes.cases import each
from tests.fakes.in_process import command
from tests.fakes.program import python

MIXED = (
    "RuntimeError: Expected all tensors to be on the same device, but found at least two "
    "devices, cuda:3 and cpu!\n"
)


def run(capsys, *words):
    parser = argparse.ArgumentParser()
    doctor_verb.add_arguments(parser)
    code = perform(
        doctor_verb.run, parser.parse_args([str(word) for word in words]), "gpuscope doctor"
    )
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def found(monkeypatch):
    """Sets what examining finds."""

    def put(*findings, **rest):
        report = Report(findings=findings, **{"examined": ("log",), **rest})
        monkeypatch.setattr(doctor_targets, "examine", lambda *_: report)

    return put


def finding(severity="problem", text="3 of 4", **rest):
    return Finding(
        pitfall="no-grad-eval",
        cause="test.cause",
        title="It is so.",
        severity=severity,
        confidence="definite",
        evidence=(Evidence(text, "log:7"),),
        **rest,
    )


@pytest.mark.parametrize(
    ("severity", "words", "code"),
    [
        ("problem", (), 2),
        ("warning", (), 1),
        ("warning", ("--fail-on", "problem"), 0),
        ("problem", ("--fail-on", "never"), 0),
    ],
)
def test_the_exit_code_is_that_of_the_document(capsys, found, severity, words, code):
    found(finding(severity))
    got, out, _ = run(capsys, "--json", *words)
    assert got == code == json.loads(out)["exit_code"]
    assert run(capsys, *words)[1].splitlines()[-1].endswith(f"Exit code {code}.")


def test_nothing_wrong_is_0_and_nothing_examined_is_3(capsys, found):
    found()
    assert run(capsys)[0] == 0
    found(examined=(), problems=("It cannot be read.",))
    code, out, _ = run(capsys, "--json")
    assert code == 3
    assert json.loads(out)["findings"] == []


def test_a_broken_table_is_said_and_no_traceback(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(table, "FILE", tmp_path / "none.toml")
    table.load.cache_clear()
    try:
        code, _, err = run(capsys, "--list")
    finally:
        monkeypatch.undo()
        table.load.cache_clear()
    assert code == 3
    assert "none.toml cannot be read" in err


def test_list_and_explain(capsys):
    code, out, _ = run(capsys, "--list")
    assert code == 0
    for row in table.load().values():
        assert any(line.startswith(row.id + " ") for line in out.splitlines())
        code, explained, _ = run(capsys, "--explain", row.id)
        assert code == 0
        for text in (row.now, row.not_when, row.cost):
            assert text in " ".join(explained.split())
        for fix in row.fixes:
            for text in (*fix.code.splitlines(), fix.environment, fix.command):
                assert text in explained


def test_explain_takes_the_words_that_the_palette_takes(capsys):
    code, out, _ = run(capsys, "--explain", "oom")
    assert code == 0
    assert out.startswith("Pitfalls with the words: oom")
    names = {line.split(" ")[0] for line in out.splitlines()}
    assert {"reduce-batch-size", "expandable-segments"} <= names
    assert "gpuscope doctor --explain ID" in out
    listed = json.loads(run(capsys, "--explain", "oom", "--json")[1])["pitfalls"]
    assert len(listed) < len(table.load())
    assert all("oom" in json.dumps(row).casefold() for row in listed)
    _, alone, _ = run(capsys, "--explain", "fragmentation reserved pieces")
    assert "expandable-segments  Fragmentation" in alone
    opened: Any = SimpleNamespace(open=print)
    entries = {entry.title: entry for entry in of_pitfalls(opened)}
    for row in explain.matching(table.load().values(), "oom"):
        assert score(entries[row.title], "oom"), row.id


def test_list_and_explain_as_json(capsys):
    listed = json.loads(run(capsys, "--list", "--json")[1])["pitfalls"]
    assert [row["id"] for row in listed] == [*table.load()]
    one = json.loads(run(capsys, "--explain", "hang-in-collective", "--json")[1])
    assert one in listed
    assert one["verify"] is None
    assert one["fixes"][1]["before"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--explain", "hang-in-loadr"), "Did you mean: hang-in-loader"),
        (("--explain", "\x1b[31m"), "no such pitfall: \\x1b[31m."),
        (("--explain", ""), "no such pitfall"),
        (("--list", "log"), "take no other arguments"),
        (("--list", "--explain", "pin-memory"), "take no other arguments"),
        (("--list", "--symptom", "it is slow"), "take no other arguments"),
        (("--symptom", " "), "--symptom takes words"),
    ],
)
def test_usage_errors_name_what_there_is(capsys, words, says):
    code, out, err = run(capsys, *words)
    assert (code, out) == (64, "")
    assert says in err
    assert "\x1b" not in err


# ── a symptom in words ────────────────────────────────────────────────────────────────────────────


def test_a_symptom_alone_is_judged_without_looking_at_this_machine(capsys):
    code, out, _ = run(capsys, "--json", "--symptom", "loss is nan after 200 steps in fp16")
    document = json.loads(out)
    first = document["findings"][0]
    assert (first["pitfall"], first["severity"], code) == ("bf16-instead-of-fp16", "warning", 1)
    assert first["evidence"][0]["source"] == "symptom"
    assert document["examined"] == ["the symptom"]


def test_words_that_name_nothing_known_are_said_to_do_so(capsys):
    code, out, _ = run(capsys, "--json", "--symptom", "the kettle whistles")
    document = json.loads(out)
    assert (code, document["findings"], document["examined"]) == (3, [], [])
    assert document["problems"][0]["reason"].startswith("The symptom: these words name no failure")


@each("words", messages.ADVISED)
def test_every_word_of_the_advice_is_understood(words):
    found = messages.of_symptom(words)
    assert found.findings
    assert not found.problems


@each("words", ("slow", "it is slow", "training is slow", "An epoch takes forever"))
def test_plain_slowness_names_its_usual_causes_and_how_to_measure_it(words):
    found = messages.of_symptom(words)
    first = reports.finish(found, table.load()).findings[0]
    assert (first.pitfall, "worker processes" in first.fixes[0].title) == ("num-workers", True)
    assert {one.confidence for one in found.findings} == {"prior"}
    assert [one for one in found.abstained if "Measure it: gpuscope why" in one.missing]


@each(
    "words, pitfall",
    (
        ("hung", "hang-in-collective"),
        ("it is frozen", "hang-in-collective"),
        ("grows", "detach-loss-accumulation"),
        ("it keeps growing", "detach-loss-accumulation"),
    ),
)
def test_a_word_or_two_are_enough(words, pitfall):
    found = messages.of_symptom(words)
    assert reports.finish(found, table.load()).findings[0].pitfall == pitfall


@each(
    "words, pitfall",
    (
        ("second GPU is slower than the first", "rank-straggler"),
        ("rank 3 is always slower than the others", "rank-straggler"),
        ("one of the gpus lags behind", "rank-straggler"),
        ("training is slower on the gpu than on the cpu", "too-small-workload"),
        ("the gpu is slower than my cpu", "too-small-workload"),
        ("slower after some hours", "slower-since"),
        ("it gets slower and slower", "slower-since"),
        ("steps slow down over time", "slower-since"),
        ("slower since this morning", "slower-since"),
    ),
)
def test_what_it_is_slower_than_decides_the_first_cause(words, pitfall):
    found = messages.of_symptom(words)
    assert reports.finish(found, table.load()).findings[0].pitfall == pitfall


def test_plain_slowness_is_asked_last():
    told = messages.of_symptom("slow, and the loss is nan")
    assert "bf16-instead-of-fp16" in {one.pitfall for one in told.findings}
    assert "slow.plain" not in {one.cause for one in told.findings}
    refused = "RuntimeError: CUDA out of memory."
    assert messages.examine([refused], symptom="slow") == messages.examine([refused])


def test_a_log_that_only_says_slow_gives_no_findings():
    assert messages.examine(["step 40: slow, it takes forever"]) == ((), ())


def test_a_symptom_beside_a_log_and_a_script(capsys, tmp_path):
    log, script = tmp_path / "a.log", tmp_path / "train.py"
    log.write_text("RuntimeError: CUDA out of memory.\n")
    script.write_text("import torch\n")
    words = ("--json", "--symptom", "it happens in the first validation")
    document = json.loads(run(capsys, *words, log, script)[1])
    assert document["examined"] == ["a.log", "the symptom", str(script)]
    assert document["findings"][0]["pitfall"] == "no-grad-eval"
    document = json.loads(run(capsys, "--json", "--symptom", "the loss is nan in fp16", script)[1])
    assert document["examined"] == [str(script), "the symptom"]
    assert document["findings"][0]["pitfall"] == "bf16-instead-of-fp16"


# ── the bundle ────────────────────────────────────────────────────────────────────────────────────


def bundle(path):
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_bundle_holds_the_report_and_versions_and_no_names(
    capsys, found, tmp_path, monkeypatch
):
    user, host = "zaphod", "heartofgold"
    monkeypatch.setattr(getpass, "getuser", lambda: user)
    monkeypatch.setattr(socket, "gethostname", lambda: f"{host}.example.org")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("TORCH_HOME", f"/home/{user}/weights")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-12345678-aaaa-bbbb-cccc-1234567890ab")
    monkeypatch.setenv("SECRET_TOKEN", "hunter2")
    text = (
        f"/home/{user}/secret/train.py:88 on {host} by {user}@10.1.2.3, /dev/shm 64 MiB, 12.5 GiB "
        "left, otherhost:71:90 [0] NCCL WARN"
    )
    fix = Fix(title="Do", command=f"python /home/{user}/train.py")
    found(
        finding(text=text, where=f"/home/{user}/train.py:88", fixes=(fix,)),
        problems=(f"/home/{user}/x: no.",),
    )
    path = tmp_path / "out.zip"
    code, out, err = run(capsys, "--json", "--bundle", path, "-")
    assert code == 2
    # the report itself is not redacted
    assert json.loads(out)["findings"][0]["evidence"][0]["text"] == text
    assert "out.zip" in err
    held = bundle(path)
    assert held.keys() == {"README.txt", "report.json", "environment.json"}
    for name, content in held.items():
        for secret in (
            user,
            host,
            "otherhost",
            "10.1.2.3",
            "hunter2",
            "/home",
            "secret/",
            "1234567890ab",
        ):
            assert secret not in content, (name, secret)
    evidence = json.loads(held["report.json"])["findings"][0]["evidence"][0]["text"]
    assert "/dev/shm 64 MiB" in evidence
    assert "12.5 GiB left" in evidence
    environment = json.loads(held["environment.json"])
    assert environment["variables"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert environment["python"].startswith("3.")
    assert environment["packages"]["nvidia-ml-py"]
    assert "pytest" not in environment["packages"]


def test_fixes_of_the_table_stay_readable_in_the_bundle(capsys, found, tmp_path):
    row = table.load()["kill-zombie-process"]
    found(
        Finding(
            pitfall=row.id, cause="c", title="T.", severity="info", confidence="likely", evidence=()
        )
    )
    run(capsys, "--bundle", tmp_path / "b.zip", "-")
    fixes = json.loads(bundle(tmp_path / "b.zip")["report.json"])["findings"][0]["fixes"]
    assert [fix["command"] for fix in fixes] == [fix.command for fix in row.fixes]


@pytest.mark.slow
def test_a_bundle_is_bounded(capsys, found, tmp_path):
    fixes = (Fix(title="t", code="loss = model(x)\n" * 250),) * 6
    found(
        *(
            finding(text=os.urandom(290).hex(), where=str(number), fixes=fixes)
            for number in range(200)
        )
    )
    run(capsys, "--json", "--bundle", tmp_path / "b.zip", "-")
    text = bundle(tmp_path / "b.zip")["report.json"]
    assert len(text) <= doctor_bundle.MAX_PART_BYTES
    held = json.loads(text)
    assert len(held["findings"]) + held["findings_left_out"] == 200
    assert held["findings"]


@pytest.mark.parametrize("name", ["there", "no/such/folder"])
def test_a_bundle_that_cannot_be_written_is_said_and_nothing_is_replaced(
    capsys, found, tmp_path, name
):
    (tmp_path / "there").write_text("mine")
    found()
    code, out, _ = run(capsys, "--json", "--bundle", tmp_path / name, "-")
    assert code == 3
    assert "was not written" in json.loads(out)["problems"][0]["reason"]
    assert (tmp_path / "there").read_text() == "mine"


# ── a process of its own ──────────────────────────────────────────────────────────────────────────

LOADED = """
import sys
from gpuscope.cli.main import main
code = main(["doctor", "--json", "-"])
names = {name.partition(".")[0] for name in sys.modules}
sys.stderr.write(f"{code} {sorted(names & {'torch', 'textual', 'rich', 'pynvml', 'plotext', 'msgspec', 'asyncio'})}")
"""  # noqa: E501


def test_a_log_is_examined_without_torch_screen_or_driver():
    done = python("-c", LOADED, input=MIXED)
    assert done.stderr.split(" ", 1)[1] == "[]"
    document = json.loads(done.stdout)
    assert document["findings"][0]["pitfall"] in ("move-inputs-to-device", "move-model-to-device")
    assert done.stderr.split()[0] == str(document["exit_code"])


@pytest.mark.parametrize("content", [b"", random.Random(0).randbytes(5000), b"\xff" * 100])
def test_bad_input_ends_with_3_and_a_document(content):
    done = command("doctor", "--json", "-", stdin=content)
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 3
    assert document["problems"][0]["reason"].startswith("standard input: ")
    assert done.stderr == ""


def test_a_terminal_without_our_signs_gets_others(tmp_path):
    env = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-m", "gpuscope", "doctor", "--explain", "mixed-precision"]
    done = subprocess.run(words, capture_output=True, env=env, timeout=60)
    assert done.returncode == 0
    assert b"  helps" not in done.stdout
    done.stdout.decode("ascii")
