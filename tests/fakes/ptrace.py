"""Where tests of injection can run: marks for their files."""

from __future__ import annotations

import os
import sys

import pytest

from gpuscope.attach.inject_target import yama_scope

MAY_TRACE = [
    pytest.mark.skipif(
        not sys.platform.startswith("linux") or os.uname().machine != "x86_64",
        reason="x86-64 Linux",
    ),
    pytest.mark.skipif(
        bool(yama_scope()) and os.geteuid() != 0, reason="this kernel lets only root trace (Yama)"
    ),
]
"""For processes of the same user."""
BY_PTRACE = [
    *MAY_TRACE,
    pytest.mark.skipif(
        not (3, 8) <= sys.version_info[:2] <= (3, 13), reason="ptrace: Python 3.8 to 3.13"
    ),
]
"""For processes of the Python that runs the tests."""
