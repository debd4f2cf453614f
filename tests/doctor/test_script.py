"""The static checks: each on a small source that commits the mistake and on one that does not."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest

from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding, Report
from gpuscope.doctor.report import exit_code
from gpuscope.doctor.script import examine, report
from gpuscope.doctor.script.source import SourceFile
from tests.fakes.cases import each
from tests.fakes.program import python

from .gym_fixes import applied
from .script_cases import CASES, HEAD, LOOP, MODEL

DEMOS = Path(__file__).parents[2] / "demos" / "pitfalls"
HERE = Path(__file__).parent
SCRIPTS = sorted(
    [*DEMOS.glob("*.py"), *(HERE / "standard").glob("*.py"), *(HERE / "healthy").glob("*.py")]
)


def check(tmp_path: Path, source: str, name: str = "train.py") -> Report:
    path = tmp_path / name
    path.write_text(source)
    return report([str(path)])


def found(tmp_path: Path, source: str) -> dict[str, Finding]:
    """cause (without "script.") → finding of a source that begins with HEAD."""
    seen = check(tmp_path, HEAD + source)
    assert not seen.problems
    return {finding.cause.removeprefix("script."): finding for finding in seen.findings}


@each("name", CASES)
def test_check(name: str, tmp_path: Path) -> None:
    cause, mistake, correct = CASES[name]
    finding = found(tmp_path, mistake)[cause]
    file, _, line = finding.where.rpartition(":")
    assert file.endswith("train.py")
    assert 0 < int(line) <= (HEAD + mistake).count("\n")
    assert finding.evidence[0].source == finding.where
    assert finding.fixes
    assert cause not in found(tmp_path, correct)


def told(code: str) -> str:
    """The syntax tree of some lines, as text; of the head of a block too."""
    return ast.dump(ast.parse(code + " ..." if code.endswith(":") else code))


@each("name", CASES)
def test_fix_applied(name: str, tmp_path: Path) -> None:
    """The fix in place of what it replaces: still Python, and the mistake is gone."""
    cause, mistake, _ = CASES[name]
    finding = found(tmp_path, mistake)[cause]
    if not finding.fixes[0].code:
        # to be done by hand: something is to be moved elsewhere
        assert finding.fixes[0].title.endswith(".")
        return
    seen = check(tmp_path, applied(HEAD + mistake, finding))
    assert not seen.problems
    assert cause not in {one.cause.removeprefix("script.") for one in seen.findings}


@each("path", SCRIPTS)
def test_each_fix_of_a_whole_script_is_python_and_changes_something(path: Path) -> None:
    source = path.read_text()
    for finding in report([str(path)]).findings:
        (fix,) = finding.fixes
        if not fix.code:
            assert fix.title.endswith(".")
            continue
        assert "…" not in fix.before + fix.code
        assert told(fix.code) != (fix.before and told(fix.before))
        changed = applied(source, finding)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_the_usual_scripts_are_told_what_they_should(tmp_path: Path) -> None:
    """The usual scripts are told what they should.

    They are of three frameworks' documented style: what the framework does by itself is nobody's
    mistake.
    """
    said = {
        path.stem: sorted(one.cause.removeprefix("script.") for one in report([str(path)]).findings)
        for path in SCRIPTS
        if path.parent.name == "standard"
    }
    assert said == {
        "accelerate_no_trainer": [],
        "hf_trainer": [],
        "lightning_module": ["load-without-map-location", "no-loader-workers"],
        "pytorch_example": [
            "benchmark-with-seed",
            "dataparallel",
            "load-without-map-location",
            "loss-kept",
            "memory-not-pinned",
            "no-loader-workers",
        ],
    }


def test_ids_are_in_the_table(tmp_path: Path) -> None:
    known = set(table.load())
    used = {
        finding.pitfall
        for _, mistake, _ in CASES.values()
        for finding in found(tmp_path, mistake).values()
    }
    assert len(used) >= 20
    assert used <= known


# What the demonstration scripts must be found for: script → pitfall.
VISIBLE = {
    "accumulation_not_divided": "loss-not-divided",
    "convolution_speed": "cudnn-benchmark-on",
    "dataparallel_autocast": "autocast-inside-forward",
    "dataparallel_gil": "ddp-instead-of-dp",
    "dataparallel_odd_batch": "dp-batch-multiple",
    "dataparallel_on_cpu": "dp-on-cpu",
    "ddp_no_process_group": "init-process-group-env",
    "ddp_no_sampler": "distributed-sampler",
    "deprecated_cuda_amp": "deprecated-amp",
    "empty_cache_live_tensors": "memory-leak-in-user-list",
    "first_compiled_step": "compile-warmup",
    "fp16_underflow": "bf16-instead-of-fp16",
    "inputs_on_wrong_gpu": "move-inputs-to-device",
    "mixed_devices": "move-inputs-to-device",
    "model_left_on_cpu": "move-model-to-device",
    "not_reproducible": "deterministic",
    "out_of_memory": "no-grad-eval",
    "slow_input": "num-workers",
    "timing_without_synchronize": "synchronize-timing",
    "wrapped_model_attribute": "use-module-attr",
    "wrong_backend": "wrong-backend",
}


def test_every_visible_pitfall_is_listed() -> None:
    """Every visible pitfall is listed.

    index.toml says which pitfalls a script shows; there is no reader of TOML before 3.11, so it is
    read by its own plain form.
    """
    entries = (DEMOS / "index.toml").read_text().split("[[pitfall]]")[1:]
    said = {
        entry.split('faulty = "')[1].split(".py")[0]
        for entry in entries
        if '"script"' in entry.split("evidence = ")[1].split("\n")[0]
    }
    assert said == set(VISIBLE)


@each("name", VISIBLE)
def test_pitfall_pair(name: str) -> None:
    findings, _, problems = examine([str(DEMOS / f"{name}.py"), str(DEMOS / f"{name}_cured.py")])
    assert not problems
    assert VISIBLE[name] in {
        finding.pitfall for finding in findings if f"{name}.py:" in finding.where
    }
    assert [
        finding
        for finding in findings
        if "_cured.py" in finding.where and finding.severity != "info"
    ] == []


def test_old_names_that_still_work_do_not_fail_a_check(tmp_path: Path) -> None:
    seen = check(tmp_path, HEAD + "with torch.cuda.amp.autocast():\n    pass\n")
    assert [finding.cause for finding in seen.findings] == ["script.old-amp"]
    assert exit_code(seen) == 0


def test_suppress_comments(tmp_path: Path) -> None:
    source = HEAD + MODEL + "total = 0\n" + LOOP + "    total += loss  # gpuscope: ignore{}\n"
    for comment, left in (
        ("", 0),
        ("[detach-loss-accumulation]", 0),
        ("[x, detach-loss-accumulation]", 0),
        ("[x]", 1),
    ):
        assert len(check(tmp_path, source.format(comment)).findings) == left, comment
    whole = "# gpuscope: ignore-file[detach-loss-accumulation]\n"
    assert not check(
        tmp_path, whole + HEAD + MODEL + "total = 0\n" + LOOP + "    total += loss\n"
    ).findings


def test_one_suppressed_loader_leaves_the_other(tmp_path: Path) -> None:
    loaders = (
        "a = DataLoader(data, shuffle=True)  # gpuscope: ignore[num-workers]\n"
        "b = DataLoader(data, shuffle=True)\n"
    )
    finding = found(tmp_path, MODEL + loaders + LOOP)["no-loader-workers"]
    assert (
        (HEAD + MODEL + loaders)
        .split("\n")[int(finding.where.rpartition(":")[2]) - 1]
        .startswith("b =")
    )


def test_folder(tmp_path: Path) -> None:
    (tmp_path / "inner" / ".hidden").mkdir(parents=True)
    (tmp_path / "inner" / "good.py").write_text(HEAD + MODEL + LOOP)
    (tmp_path / "inner" / "bad.py").write_text(HEAD + "def broken(:\n")
    (tmp_path / "inner" / ".hidden" / "x.py").write_text("def broken(:\n")
    (tmp_path / "loop").symlink_to(tmp_path)
    seen = report([str(tmp_path)])
    assert seen.examined == (f"{tmp_path} (2 Python files)",)
    only = tmp_path / "only"
    only.mkdir()
    (only / "train.py").write_text(HEAD)
    assert report([str(only)]).examined == (f"{only} (1 Python file)",)
    assert len(seen.problems) == 1
    assert f"bad.py:{HEAD.count(chr(10)) + 1} " in seen.problems[0]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"import torch\n\0", "binary"),
        (b"import torch\n" + b"#" * (1 << 20), "larger than"),
        (b"import torch\nprint 'old'\n", "not valid Python"),
        (b"import torch\nx = '\xff'\n", "cannot be decoded"),
        (b"import torch\nx = " + b"-" * 200_000 + b"1\n", "cannot be built"),
        (b"import torch\nx = a" + b".b" * 100_000 + b"\n", "cannot be built"),
    ],
)
def test_what_cannot_be_read_is_a_problem(content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_bytes(content)
    findings, abstained, problems = examine([str(path)])
    assert (findings, abstained) == ([], [])
    assert len(problems) == 1
    assert reason in problems[0]
    assert "train.py" in problems[0]


def test_a_pipe_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.py")
    assert "a named pipe, not a file" in examine([str(tmp_path / "train.py")])[2][0]
    assert "No such file" in examine([str(tmp_path / "none.py")])[2][0]


def test_an_entangled_file_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entangled = HEAD + MODEL + LOOP + "    loss.backward()\n    optimizer.step()\n" * 100
    assert not check(tmp_path, entangled).problems
    # what it takes grows with the square
    monkeypatch.setattr(SourceFile, "_LOOKS", SourceFile._LOOKS // 20)
    seen = check(tmp_path, entangled)
    assert len(seen.problems) == 1
    assert "too large" in seen.problems[0]


def test_without_torch_nothing_is_said(tmp_path: Path) -> None:
    assert not check(
        tmp_path, "total = 0\nfor x in y:\n    loss.backward()\n    total += loss\n"
    ).findings


def test_a_managed_loop_is_left_alone(tmp_path: Path) -> None:
    seen = check(tmp_path, HEAD + "import accelerate\n" + MODEL + LOOP.replace("y.to(device)", "y"))
    assert not [finding for finding in seen.findings if finding.cause == "script.labels-not-moved"]
    assert "accelerate" in seen.abstained[0].missing


def test_nothing_is_executed_or_loaded(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(HEAD + f"open({str(tmp_path / 'ran')!r}, 'w')\n" + MODEL + LOOP)
    code = (
        "import json, sys; from gpuscope.doctor.script import examine; examine(sys.argv[1:]); "
        "print(json.dumps([m for m in ('torch', 'textual', 'pynvml', 'gpuscope.collect') if m in "
        "sys.modules]))"
    )
    done = python("-c", code, str(path), check=True)
    assert json.loads(done.stdout) == []
    assert not (tmp_path / "ran").exists()
