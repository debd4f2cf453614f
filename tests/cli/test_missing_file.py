"""A file that is not there is told in the same words by every verb that takes one."""

from __future__ import annotations

import pytest

from gpuscope.cli import main as cli
from gpuscope.exit_status import ExitStatus

READS, STARTS = ExitStatus.UNCHECKED, ExitStatus.USAGE


@pytest.mark.parametrize(
    ("verb", "name", "status"),
    [
        ("run", "train.py", STARTS),
        ("lab", "train.py", STARTS),
        ("tune", "train.py", STARTS),
        ("predict", "run.gsr", READS),
        ("doctor", "train.py", READS),
        ("doctor", "job.log", READS),
        ("snapshot", "oom.pickle", READS),
        ("replay", "run.gsr", READS),
        ("why", "run.gsr", READS),
        ("report", "run.gsr", READS),
    ],
)
@pytest.mark.parametrize("folder", ["", "none/here"])
def test_every_verb_says_what_is_missing_why_and_what_to_do(
    capsys, monkeypatch, tmp_path, verb, name, status, folder
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / folder / name
    assert cli.main([verb, str(path)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    why = f"Why: there is no folder {path.parent}\n" if folder else ""
    assert err == f"gpuscope {verb}: there is no file {path}\n{why}Next: check the path\n"
    if not folder:
        assert cli.main([verb, name]) == status
        assert capsys.readouterr().err == (
            f"gpuscope {verb}: there is no file {name}\nNext: check the path\n"
        )


def test_a_file_of_almost_this_name_is_named(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in ("night-run.gsr", "night_run.log", "other.gsr"):
        (tmp_path / name).touch()
    for typed in ("nigt-run.gsr", str(tmp_path / "nigth-run.gsr")):
        cli.main(["why", typed])
        meant = str(tmp_path / "night-run.gsr") if "/" in typed else "night-run.gsr"
        assert capsys.readouterr().err.endswith(f"Next: check the path: {meant} is there\n")
    cli.main(["why", "nothing-like-it.gsr"])
    assert capsys.readouterr().err.endswith("Next: check the path\n")


def test_of_several_files_the_others_are_read(capsys, tmp_path):
    there, gone = tmp_path / "a.log", tmp_path / "gone.log"
    there.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert cli.main(["doctor", str(there), str(gone)]) == ExitStatus.UNCHECKED
    out = " ".join(capsys.readouterr().out.split())
    assert f"there is no file {gone}. Next: check the path." in out
    assert out.startswith("No clear cause was found. Possible causes")
