"""Runs commands of the program in this process, which saves a test the start of a Python."""

from __future__ import annotations

import io
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from gpuscope.cli import main as cli


def command(*words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run ``gpuscope words…`` here.

    Its output and its exit code are those of a separate process. But what it changes in this
    process stays changed, and no stream is a terminal.
    """
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    given = [str(word) for word in words]
    given_in = io.TextIOWrapper(io.BufferedReader(io.BytesIO(stdin)), "utf-8")
    with patch("sys.stdin", given_in), redirect_stdout(out), redirect_stderr(err):
        try:
            code = cli.main(given)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
    texts = []
    for stream in (out, err):
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(given, code, *texts)
