"""A log of 100 MB: found in at most 5 s, with bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.doctor import message_templates as say
from tests.doctor.message_templates import GIB, MIB

pytestmark = pytest.mark.bench
BYTES = 100_000_000
MOST_SECONDS, MOST_MIB = 5.0, 200

CODE = """
import resource, sys, time
began = time.perf_counter()
from gpuscope.doctor.messages import examine
found = examine(sys.argv[1])[0]
seconds = time.perf_counter() - began
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found[0].pitfall)
"""

LINES = {
    "progress": "2026-02-03 04:05:06 INFO step {i} loss 0.{i} lr 0.0003 mem 19.80GiB",
    "noise": "2026-02-03 04:05:06 UserWarning: an error failed {i} DataLoader NCCL oom nan "
    "Exception",
    "long lines": "{i} " + "x" * 300_000,
}


@pytest.mark.parametrize("kind", LINES)
def test_a_large_log(kind: str, tmp_path: Path) -> None:
    message = say.oom(
        "2.5", asked=98 * MIB, total=22 * GIB, held=20 * GIB, free=37 * MIB, spare=300 * MIB
    )
    path = tmp_path / "big.log"
    written = i = 0
    with open(path, "w") as file:
        while written < BYTES:
            written += file.write(LINES[kind].format(i=i) + "\n")
            i += 1
        file.write(message + "\n")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True
    )
    seconds, mib, pitfall = done.stdout.split()
    print(f"{kind}: {float(seconds):.2f} s, {float(mib):.0f} MiB")
    assert pitfall == "reduce-batch-size"
    assert float(seconds) <= MOST_SECONDS
    assert float(mib) <= MOST_MIB
