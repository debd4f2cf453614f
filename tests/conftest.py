"""For all tests and the processes they start."""

from __future__ import annotations

import os

# Workers of pytest-xdist share few cores: threads of torch that wait for each other spin, and all get slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
