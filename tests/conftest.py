"""For all tests and the processes they start."""

from __future__ import annotations

import os
import tempfile

# Workers of pytest-xdist share few cores: threads of torch that wait for each other spin, and all get slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test reads or writes the ledger of whoever runs them; those of one process share a new one.
os.environ.setdefault("GPUSCOPE_LEDGER", os.path.join(tempfile.mkdtemp(prefix="gpuscope-tests-"), "lab.sqlite"))
