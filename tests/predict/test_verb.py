"""``gpuscope predict`` works as it is called.

There are real children with torch, real recordings, documents and exit codes.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.cli import main as cli
from gpuscope.cli.commands.predict import verb as predict_verb
from gpuscope.predict.answer import Tracer
from gpuscope.predict.document import FIGURES
from gpuscope.predict.report import parts_of
from gpuscope.predict.request import Doubt, Request, Traced
from gpuscope.text.styled import plain
from gpuscope.text.units import bytes_text
from tests.fakes.program import program, python
from tests.predict.hand_made import traced
from tests.recordings import REDACTED

ROOT = Path(__file__).parent.parent.parent
GOLDEN = REDACTED / "h200x2-ddp.gsr"
KEYS = {
    *(
        f"{name}_{part}"
        for name in FIGURES
        for part in ("bytes", "error_percent", "low_bytes", "high_bytes")
    ),
    "categories",
    "peak_at",
    "verdict",
    "largest_batch",
    "what_if",
    "seconds",
    "unknown",
    "exit_code",
}
FACTORIES = """
    import sys, time, torch
    from torch import nn

    def fine(batch, device, checkpoint=False):
        model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(device)
        x = torch.randn(batch, 512, device=device)
        return model, torch.optim.AdamW(model.parameters()), lambda: model(x).square().mean()

    def raises(batch, device):
        raise ValueError("no such data: \\x1b]52;c;x\\x07")

    def hangs(batch, device):
        while True:
            time.sleep(1)
"""


@pytest.fixture(autouse=True)
def _own_folders(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)


def call(*words: str, cwd: Path = ROOT) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of the command."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = program("predict", *words, cwd=cwd, timeout=120, env=environ)
    return done.returncode, done.stdout, done.stderr


def by_hand(*words: str, tracer: Tracer = traced) -> int:
    """The verb in this process, over traces written by hand."""
    parser = cli.Parser(prog="gpuscope predict")
    predict_verb.add_arguments(parser)
    return cli.perform(
        lambda args: predict_verb.run(args, tracer), parser.parse_args(words), parser.prog
    )


def upward(request: Request) -> Traced:
    """It may take three times as much more, and hardly less."""
    doubt = Doubt(
        "unmeasured", "A kernel may take much scratch memory.", "convolution", 300.0, upward=True
    )
    return replace(traced(request), doubts=[doubt])


@pytest.mark.slow
def test_a_real_model_is_predicted_with_everything_asked():
    code, out, err = call(
        "--model",
        "gpt-tiny",
        "--batch",
        "8",
        "--gpu",
        "h200",
        "--capacity",
        "1700MiB",
        "--json",
        "--what-if",
        "--largest-batch",
    )
    assert not err
    document = json.loads(out)
    assert set(document) >= KEYS
    assert document["exit_code"] == code
    assert document["error"] is None
    parameters = 512 * 128 + 64 * 128 + 2 * (12 * 128 * 128 + 13 * 128) + 2 * 128
    assert document["parameters"] == parameters
    assert document["categories"]["parameter"] >= 4 * parameters
    assert sum(document["categories"].values()) == document["peak_allocated_bytes"]
    assert (
        document["peak_allocated_bytes"]
        <= document["peak_reserved_bytes"]
        < document["device_peak_bytes"]
    )
    assert document["largest_batch"] > 8
    assert (
        document["largest_batch_low"] <= document["largest_batch"] <= document["largest_batch_high"]
    )
    assert {"batch-half", "checkpoint", "bf16", "sgd"} <= {
        row["fix"] for row in document["what_if"]
    }
    for row in document["what_if"]:
        assert row["freed_bytes"] == document["peak_allocated_bytes"] - row["peak_allocated_bytes"]
    assert all(row["reason"] for row in document["unknown"] + document["left_out"])
    _nulls_have_reasons(document)


def _nulls_have_reasons(document: dict) -> None:
    explained = {row["path"] for row in document["unknown"]}
    for key, value in document.items():
        assert value is not None or key in explained or key == "error", key


@pytest.mark.slow
def test_a_factory_of_the_users_own(tmp_path):
    (tmp_path / "mine.py").write_text(textwrap.dedent(FACTORIES))
    code, out, err = call("mine:fine", "--batch", "64", "--capacity", "24GiB", cwd=tmp_path)
    assert (code, err) == (0, "")
    first = out.splitlines()[0]
    assert first.startswith("Fits on a GPU of 24 GiB: ")
    assert " ± " in first
    assert "mine:fine, batch 64" in out
    assert "reached in step" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factory", "limit", "word"), [("raises", "60", "no such data"), ("hangs", "7", "within")]
)
def test_a_factory_that_fails_is_named_and_the_document_is_there(tmp_path, factory, limit, word):
    (tmp_path / "mine.py").write_text(textwrap.dedent(FACTORIES))
    code, out, err = call(f"mine:{factory}", "--json", "--timeout", limit, cwd=tmp_path)
    document = json.loads(out)
    assert code == document["exit_code"] == 3
    assert word in document["error"]["what"] + document["error"]["why"]
    assert set(document) >= KEYS
    _nulls_have_reasons(document)
    assert "\x1b" not in out + err
    assert "Next:" in err


@pytest.mark.slow
def test_nothing_heavy_is_loaded_here():
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.predict.test_verb import by_hand
by_hand("--model", "gpt-tiny", "--gpu", "h200", "--what-if", "--largest-batch")
import gpuscope.cli.commands.predict.trainer
print([name for name in ("torch", "textual", "rich", "plotext", "msgspec") if name in sys.modules])
"""
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


# ── over traces written by hand: what the words mean, and what is said ────────────────────────────


@pytest.mark.parametrize(
    ("size", "code", "word"),
    [("16GiB", 0, "Fits"), ("4970MiB", 1, "Too close"), ("3GiB", 2, "Does not")],
)
def test_the_exit_code_is_the_verdict(capsys, size, code, word):
    assert by_hand("--model", "gpt-tiny", "--batch", "8", "--capacity", size) == code
    assert capsys.readouterr().out.startswith(word)


def test_a_card_is_named_by_its_number_or_its_index(capsys):
    assert by_hand("--model", "gpt-tiny", "--gpu", "4090", "--json") == 0
    capacity = json.loads(capsys.readouterr().out)["capacity"]
    assert (capacity["name"], capacity["total_bytes"]) == ("4090", 24564 << 20)
    assert by_hand("--model", "gpt-tiny", "--gpu", "4090", "--capacity", "8GiB", "--json") == 0
    capacity = json.loads(capsys.readouterr().out)["capacity"]
    assert (capacity["architecture"], capacity["total_bytes"]) == ("8.9", 8 << 30)


def test_without_a_card_there_is_no_verdict_and_the_next_word_is_said(capsys):
    assert by_hand("--model", "gpt-tiny", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"] is None
    _nulls_have_reasons(document)
    assert by_hand("--model", "gpt-tiny") == 0
    assert "--capacity 24GiB" in capsys.readouterr().out


def test_an_error_of_two_sides_is_told_as_two(capsys):
    """Nowhere may ± stand before a percentage that only the upper side has."""
    words = ("--model", "gpt-tiny", "--batch", "8", "--capacity", "64GiB")
    by_hand(*words, "--json")
    plain = json.loads(capsys.readouterr().out)
    by_hand(*words, "--json", "--what-if", tracer=upward)
    document = json.loads(capsys.readouterr().out)
    for name in FIGURES:
        size, low, high = (document[f"{name}_{part}bytes"] for part in ("", "low_", "high_"))
        assert low == plain[f"{name}_low_bytes"] < size == plain[f"{name}_bytes"]
        assert high - plain[f"{name}_high_bytes"] == pytest.approx(
            3 * document["peak_allocated_bytes"], rel=0.15
        )
        assert document[f"{name}_error_percent"] == pytest.approx(
            100 * (high - size) / size, abs=0.01
        )
        assert plain[f"{name}_high_bytes"] - size == pytest.approx(
            size - plain[f"{name}_low_bytes"], abs=1
        )
    assert document["doubts"][0]["upward"] is True
    assert (
        document["what_if"][0]["device_peak_high_bytes"]
        > 2 * document["what_if"][0]["device_peak_bytes"]
    )
    by_hand(*words, tracer=upward)
    text = capsys.readouterr().out
    low, size, high = (document[f"device_peak_{part}bytes"] for part in ("low_", "", "high_"))
    sides = f"+{bytes_text(high - size)} / −{bytes_text(size - low)}"
    assert f"{bytes_text(size)} ({sides}), the GPU has 64.0 GiB" in text.splitlines()[0]
    assert "± " not in text
    assert "+ A kernel may take much scratch memory. (up to 300 % more)" in text


def told(capsys, *words):
    by_hand("--model", "gpt-tiny", "--batch", "8", *words)
    return " ".join(capsys.readouterr().out.split())


def test_the_error_is_told_in_bytes_beside_what_the_gpu_has(capsys):
    """A percentage before "of 24 GiB" would read as a share of the card."""
    out = told(capsys, "--capacity", "64GiB")
    found = re.match(
        r"Fits on a GPU of 64 GiB: ([\d.]+) GiB ± ([\d.]+) MiB \(([\d.]+) %\), "
        r"the GPU has 64.0 GiB, ",
        out,
    )
    assert found, out
    size, error, percent = map(float, found.groups())
    assert 100 * error / (1024 * size) == pytest.approx(percent, abs=0.1)


def test_what_does_not_fit_names_the_next_question(capsys):
    ask = "Next: the same command with --what-if, which shows which settings fit"
    small = ("--capacity", "1GiB")
    out = told(capsys, *small)
    assert out.startswith("Does not fit")
    assert out.endswith(f"{ask}, or with --largest-batch, which searches for the largest batch.")
    assert ask not in told(capsys, *small, "--what-if")
    one = told(capsys, "--batch", "1", "--capacity", "300MiB")
    assert one.startswith("Does not fit")
    assert one.endswith(f"{ask}."), "one sample has no smaller batch"
    assert "Next:" not in told(capsys, *small, "--what-if", "--largest-batch")
    assert "Next:" not in told(capsys, "--capacity", "64GiB")
    assert "Next:" not in told(capsys)


def test_a_row_with_a_few_bytes_is_not_said_to_have_none(capsys):
    out = told(capsys, "--batch", "512")
    assert re.search(r"parameters [\d.]+ <1 %", out)
    assert " 0 %" not in out


def test_what_no_module_owns_is_named(capsys):
    """The loss and the training loop run outside modules; one row for all says nothing."""
    out = told(capsys)
    rows = out[out.index("by module") : out.index("reached in")]
    assert re.search(r"22 % +_log_softmax, outside modules", rows)
    assert not re.search(r"%\s+outside modules", rows)
    by_hand("--model", "gpt-tiny", "--batch", "8", "--json")
    document = json.loads(capsys.readouterr().out)
    whole = next(row["bytes"] for row in document["modules"] if not row["module"])
    assert sum(row["bytes"] for row in document["outside_modules"]) == whole


def test_of_what_no_operator_tells_the_purpose_is_named():
    outside = {("optimizer", "zeros_like"): 60, ("input", "randint"): 5, ("activation", "add"): 30}
    assert parts_of({"layers.0": 20, "layers.1": 20, "": 97}, outside) == [
        ("optimizer state", 60),
        ("layers.*", 40),
        ("add, outside modules", 30),
        ("input", 5),
        ("outside modules", 2),
    ]


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_no_line_is_wider_than_the_screen(width):
    from gpuscope.predict.answer import Card, TracedRequest
    from gpuscope.predict.report import lines

    def doubtful(request):
        doubt = Doubt(
            "no_fake_kernel", "operation mine::thing has no fake kernel; " * 4, "mine::thing", 5.0
        )
        return replace(traced(request), doubts=[doubt])

    long = Card("NVIDIA H200 (GPU 0)", "h200", 8 << 30, "9.0", in_use_bytes=6 << 30)
    for trace in (doubtful, upward):
        asking = TracedRequest(
            Request("package.module_with_a_name:factory", batch=8, amp="bf16"), trace, long
        )
        asking.find_largest()
        asking.find_fixes()
        drawn = [plain(line) for line in lines(asking.finish(), width)]
        assert [line for line in drawn if len(line) > width] == []
        assert drawn[0].startswith(("Fits on", "Too close", "Does not fit"))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("nonsense",),
        ("--model", "gpt9"),
        ("--model", "gpt", "mine:fine"),
        ("--model", "gpt", "--gpu", "h9000"),
        ("--model", "gpt", "--gpu", "7"),
        ("--model", "gpt", "--amp", "fp8"),
        ("--model", "gpt", "--batch", "0"),
        ("--model", "gpt", "--nproc", "4"),
        ("--model", "gpt", "--task", "causal-lm"),
        ("--hf-config", "/nowhere/config.json"),
        ("torchvision", "resnet50", "resnet18"),
        ("gpt",),
    ],
)
def test_words_that_make_no_question_are_a_usage_error(capsys, words):
    assert by_hand(*words) == 64
    assert "gpuscope predict: " in capsys.readouterr().err


def test_a_name_of_a_card_that_is_a_number_is_not_taken_for_an_index(capsys):
    assert by_hand("--model", "gpt-tiny", "--gpu", "4091") == 64
    assert "Did you mean 4090?" in capsys.readouterr().err


def test_settings_of_the_shell_are_those_of_the_trainer(capsys, monkeypatch):
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    assert by_hand("--model", "gpt-tiny", "--json") == 0
    assert json.loads(capsys.readouterr().out)["allocator_settings"] == "expandable_segments:True"
    assert by_hand("--model", "gpt-tiny", "--no-expandable-segments", "--json") == 0
    assert json.loads(capsys.readouterr().out)["allocator_settings"] == ""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:yes")
    assert by_hand("--model", "gpt-tiny") == 64
    assert "PYTORCH_ALLOC_CONF" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("mode", "cuda_graphs", "max_autotune"),
    [
        ("default", False, False), ("reduce-overhead", True, False), ("max-autotune", True, True),
    ],
)  # fmt: skip
def test_what_a_mode_of_compile_does_is_part_of_the_request(
    capsys, mode, cuda_graphs, max_autotune
):
    assert by_hand("--model", "gpt-tiny", "--json", "--compile", mode) == 0
    request = json.loads(capsys.readouterr().out)["request"]
    assert request["compile"] is True
    assert (request["cuda_graphs"], request["max_autotune"]) == (cuda_graphs, max_autotune)


# ── trainers ──────────────────────────────────────────────────────────────────────────────────────


def test_a_recorded_training_tells_its_own_law(capsys):
    assert cli.main(["predict", str(GOLDEN), "--batch", "32", "--capacity", "8GiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    _nulls_have_reasons(document)
    assert set(document) >= KEYS
    law, static = document["law"], document["static"]
    assert law["fixed_bytes"] == static["parameter_bytes"] + static["optimizer_state_bytes"]
    assert law["fixed_bytes"] + 32 * law["per_sample_bytes"] == pytest.approx(
        document["peak_allocated_bytes"]
    )
    assert (
        32
        < document["largest_batch_low"]
        <= document["largest_batch"]
        <= document["largest_batch_high"]
    )
    assert document["verdict"] == "fits"


def test_a_batch_that_torch_does_not_know_is_told_as_a_multiple(capsys):
    assert cli.main(["predict", str(GOLDEN), "--capacity", "8GiB", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["largest_batch"] is None
    assert (
        1 < document["largest_batch_factor"]["low"] <= document["largest_batch_factor"]["high"] < 2
    )
    _nulls_have_reasons(document)
    assert cli.main(["predict", str(GOLDEN), "--capacity", "3GiB"]) == 2
    assert "does not fit" in capsys.readouterr().out


def test_what_a_recorded_training_needs_is_told_in_one_kind_of_words(capsys):
    assert cli.main(["predict", str(GOLDEN), "--what-if"]) == 0
    verdict, largest, *rest = capsys.readouterr().out.splitlines()
    assert " fits on NVIDIA H200: " in verdict
    assert re.match(r"Largest batch: [\d.]+ times the one it trains with \(", largest)
    (measured,) = [line for line in rest if line.startswith("Measured ")]
    assert re.search(r" [\d.]+ [MG]iB allocated, [\d.]+ [MG]iB reserved$", measured)
    (parts,) = [line for line in rest if line.startswith("Of it: ")]
    assert all(re.search(r"[\d.]+ [MG]iB \w", part) for part in parts.split(", "))
    freed = [line for line in rest if ": frees " in line]
    assert len(freed) >= 2
    assert all(re.search(r": frees [\d.]+ [MG]iB( to [\d.]+ [MG]iB)?, by \S", x) for x in freed)


def test_which_training_of_a_recording_is_meant_has_to_be_said(capsys):
    two = REDACTED / "h200-lab.gsr"
    assert cli.main(["predict", str(two)]) == 3
    said = capsys.readouterr().err
    assert "h200-lab.gsr:429" in said
    assert cli.main(["predict", f"{two}:429"]) == 0
    assert "on NVIDIA H200" in capsys.readouterr().out


def test_what_is_no_trainer_is_said(capsys, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("not a recording\n")
    assert cli.main(["predict", str(other)]) == 3
    assert "is not a recording" in capsys.readouterr().err
    assert cli.main(["predict", str(os.getpid()), "--json"]) == 3
    document = json.loads(capsys.readouterr().out)
    assert document["exit_code"] == 3
    assert set(document) >= KEYS
    _nulls_have_reasons(document)
