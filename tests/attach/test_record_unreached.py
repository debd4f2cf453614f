"""``gpuscope record`` says why nothing comes.

It leaves nothing in the way of the next try.
"""

from __future__ import annotations

from gpuscope.cli import main as cli
from gpuscope.store import recorder


def test_where_nothing_came_no_file_is_left(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(recorder, "BEGIN_SECONDS", 0.5)
    file = tmp_path / "x.gsr"
    for _ in range(2):  # the second is not told that the file is there
        assert cli.main(["record", "--via", "false", "--duration", "0.1", str(file)]) == 3
        assert "The agent sent nothing" in capsys.readouterr().err
        assert not file.exists()
