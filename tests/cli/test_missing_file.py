"""A file that is not there is told in the same line by every verb that takes one."""

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
def test_every_verb_says_it_in_one_line_with_what_to_do(
    capsys, monkeypatch, tmp_path, verb, name, status, folder
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / folder / name
    assert cli.main([verb, str(path)]) == status
    out, err = capsys.readouterr()
    assert out == ""
    said = f"there is no file {path}. Check the path."
    assert err == f"gpuscope {verb}: {said}\n"
    if not folder:
        assert cli.main([verb, name]) == status
        assert capsys.readouterr().err == (
            f"gpuscope {verb}: there is no file {name}. Check the path.\n"
        )


def test_of_several_files_the_others_are_read(capsys, tmp_path):
    there, gone = tmp_path / "a.log", tmp_path / "gone.log"
    there.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    assert cli.main(["doctor", str(there), str(gone)]) == ExitStatus.UNCHECKED
    out = " ".join(capsys.readouterr().out.split())
    assert f"there is no file {gone}. Check the path." in out
    assert out.startswith("No clear cause was found. Possible causes")
