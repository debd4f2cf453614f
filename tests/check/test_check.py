"""``gpuscope check`` from end to end: real repositories, real torch in the child, no GPU."""

from __future__ import annotations

import shutil

import pytest

from gpuscope.check import lock
from gpuscope.cli.main import main
from tests.check.projects import (
    ROOT,
    SETTINGS,
    TRAIN,
    check,
    commit,
    document,
    git,
    project,
)

pytest.importorskip("torch")
OFF = "RECOMPUTE = True", "RECOMPUTE = False"


def verdicts(found, kind):
    rows = [row for one in found["trainings"] for row in one["verdicts"] if row["kind"] == kind]
    return [(row["severity"], row["text"]) for row in rows]


def test_a_folder_without_a_table_says_what_to_write(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["check"]) == 64
    assert "[tool.gpuscope.check.training.gpt]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_line_far_from_the_model_is_found_by_trying_each_change(tmp_path):
    """The constant runs in no forward pass. The other changes are harmless, or on hot lines."""
    folder = project(tmp_path / "p")
    text = TRAIN.replace(*OFF).replace(
        "return x + self.inner(x)", "y = self.inner(x)\n        return x + y"
    )
    text = text.replace("lr=0.1)", "lr=0.2)")
    (folder / "train.py").write_text(text)
    found = document(folder, "--base", "HEAD")
    (one,) = found["trainings"]
    (cause,) = one["change"]["lines"]
    assert (cause["file"], cause["line"], cause["text"]) == ("train.py", 6, OFF[1])
    assert (cause["was"], cause["proof"]) == (OFF[0], "alone")
    growth = one["change"]["after_bytes"] - one["change"]["before_bytes"]
    assert cause["bytes"] == growth > 100 << 20
    assert one["change"]["modules"][0]["module"].startswith("blocks.*")
    assert one["change"]["modules"][0]["category"] == "activation"
    # There is no lock, so the revision is the baseline.
    assert verdicts(found, "regression")[0][0] == "problem"
    assert found["exit_code"] == 2
    assert git(folder, "status", "--porcelain") == " M train.py\n"


@pytest.mark.slow
def test_a_baseline_is_made_kept_and_broken(tmp_path):
    folder = project(tmp_path / "p")
    first = document(folder)
    assert verdicts(first, "baseline")[0] == (
        "warning",
        "new: gpuscope-check.lock has no baseline for it",
    )
    assert first["exit_code"] == 1
    assert check(folder, "--update")[0] == 0
    text = (folder / lock.NAME).read_text()
    assert check(folder, "--update")[0] == 0
    assert (folder / lock.NAME).read_text() == text, "the same training gives the same file"
    code, out, _ = check(folder)
    assert (code, "as in gpuscope-check.lock" in out) == (0, True)
    (folder / "pyproject.toml").write_text(SETTINGS.replace("4096", "8192"))
    found = document(folder)
    ((severity, said),) = verdicts(found, "regression")
    assert (severity, "2 % may be added" in said) == ("problem", True)
    assert found["trainings"][0]["change"]["notes"] == ["its settings were: train:make, batch 4096"]
    assert found["trainings"][0]["change"]["lines"] is None
    # Its line in the configuration is named where a revision is compared.
    commit(folder, "lock")
    (folder / "pyproject.toml").write_text(SETTINGS.replace("4096", "16384"))
    (line,) = document(folder, "--base", "HEAD")["trainings"][0]["change"]["lines"]
    assert (line["file"], line["line"]) == ("pyproject.toml", 3)
    assert (line["text"], line["was"]) == ("batch = 16384", "batch = 8192")
    (folder / lock.NAME).write_text(text.replace('torch = "', 'torch = "1.'))
    ((severity, said),) = verdicts(document(folder), "baseline")
    assert severity == "warning"
    assert "which may allocate otherwise" in said


@pytest.mark.slow
def test_budgets_have_three_answers(tmp_path):
    folder = project(
        tmp_path / "p",
        SETTINGS.replace('regression = "2 %"', 'card = "4090"'),
    )
    (one,) = document(folder)["trainings"]
    card, tensors = one["device_peak_bytes"] >> 20, one["peak_allocated_bytes"] >> 20
    rows = []
    for name, peak, allocated in (
        ("ok", 4 * card, 4 * tensors),
        ("near", card, tensors),
        ("bad", 9, 9),
    ):
        rows.append(
            f'[check.training.{name}]\nfactory = "train:make"\nbatch = 4096\nfits = "4090"\n'
            f'peak = "{peak} MiB"\nallocated = "{allocated} MiB"\n'
        )
    (folder / "gpuscope.toml").write_text("".join(rows))
    found = document(folder)
    wanted = ["ok", "warning", "problem"]
    assert [severity for severity, _ in verdicts(found, "peak")] == wanted
    assert [severity for severity, _ in verdicts(found, "allocated")] == wanted
    assert [severity for severity, _ in verdicts(found, "fits")] == ["ok"] * 3
    assert (found["exit_code"], check(folder, "near")[0]) == (2, 1)
    assert check(folder, "near", "--fail-on", "problem")[0] == 0


@pytest.mark.slow
def test_what_goes_wrong_is_one_trainings_own(tmp_path):
    """A factory that raises, one that is missing, one that is new: the others are checked."""
    broken = (
        TRAIN + "\n\ndef broken(batch, device):\n    raise ValueError('no such\\x1b[31m file')\n"
    )
    table = "".join(
        f'[check.training.{name}]\nfactory = "{factory}"\nbatch = 64\n'
        for name, factory in (
            ("good", "train:make"),
            ("broken", "train:broken"),
            ("gone", "train:mak"),
        )
    )
    folder = project(tmp_path / "p")
    (folder / "train.py").write_text(broken)
    (folder / "extra.py").write_text("from train import make\n")
    (folder / "gpuscope.toml").write_text(table + '[check.training.new]\nfactory = "extra:make"\n')
    code, out, _ = check(folder, "--base", "HEAD")
    assert code == 3
    said = " ".join(out.split())
    assert "ValueError: no such" in said
    assert "\x1b" not in out
    assert "gpuscope.toml:5" in out
    assert "has no mak" in said
    assert "new: HEAD" in said
    assert "does not have extra:make yet" in said
    assert not list(tmp_path.glob("**/gpuscope-base-*"))


@pytest.mark.slow
def test_a_source_folder_that_is_installed_is_still_read_at_the_revision(tmp_path):
    """The user's PYTHONPATH leads to the checkout, as an editable installation does."""
    folder = project(tmp_path / "p")
    (folder / "src").mkdir()
    git(folder, "mv", "train.py", "src/train.py")
    commit(folder)
    (folder / "src" / "train.py").write_text(TRAIN.replace(*OFF))
    (line,) = document(folder, "--base", "HEAD")["trainings"][0]["change"]["lines"]
    assert (line["file"], line["proof"]) == ("src/train.py", "only")
    # With fewer samples the switches save memory, and what the line brings is told without that.
    (folder / "pyproject.toml").write_text(SETTINGS.replace("4096", "3600"))
    change = document(folder, "--base", "HEAD")["trainings"][0]["change"]
    (line,) = change["lines"]
    assert (line["file"], line["proof"]) == ("src/train.py", "alone")
    assert line["bytes"] > change["after_bytes"] - change["before_bytes"] > 0


@pytest.mark.slow
def test_the_demo_pull_request_that_removes_checkpointing_is_named_with_module_and_line(tmp_path):
    folder = tmp_path / "demo"
    shutil.copytree(ROOT / "demos" / "check", folder, ignore=shutil.ignore_patterns("__pycache__"))
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "main")
    git(folder, "apply", "remove-checkpointing.patch")
    git(folder, "commit", "-qam", "faster")
    found = document(folder, "--base", "HEAD~1")
    (one,) = found["trainings"]
    change = one["change"]
    assert 2.8 < (change["after_bytes"] - change["before_bytes"]) / (1 << 30) < 3.3
    assert change["modules"][0]["module"] == "blocks.*.mlp.*"
    (line,) = change["lines"]
    number = (folder / "model.py").read_text().splitlines().index("            x = block(x)") + 1
    assert (line["file"], line["line"], line["text"]) == ("model.py", number, "x = block(x)")
    assert line["was"] == "x = checkpoint(block, x, use_reentrant=False)"
    for page in ("demos/check/README.md", "docs/check.md"):
        assert f"model.py:{number}" in (ROOT / page).read_text(), page
    assert verdicts(found, "regression")[0][0] == "problem"
    assert found["exit_code"] == 2
