"""An out-of-memory error whose history was recorded is replayed.

The doctor says what other settings would bring.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuscope.doctor import postmortem_snapshot
from gpuscope.doctor.finding import Finding
from gpuscope.model.allocator_settings import DEFAULT
from tests.predict.histories import Recorder
from tests.predict.traces import MIB, trace_of

# six blocks of 1 GiB go, eighteen of 320 MiB come into their place and every first of three stays:
# 704 MiB free in each
CUT_UP = (
    *(1024 * MIB for _ in range(6)),
    *(f"free {number}" for number in range(6)),
    *(320 * MIB for _ in range(18)),
    *(f"free {6 + number}" for number in range(18) if number % 3),
)


def findings(made: Recorder, path: Path) -> dict[str, Finding]:
    report = postmortem_snapshot.examine(made.write(path))
    assert report.problems == ()
    return {one.pitfall: one for one in report.findings}


def test_pieces_that_growing_segments_would_have_joined(tmp_path: Path) -> None:
    made = Recorder(trace_of(*CUT_UP, 2048 * MIB), DEFAULT, 6400 * MIB).all()
    assert len(made.run.ooms) == 1
    told = findings(made, tmp_path / "oom.pickle.gz")
    one, other = told["expandable-segments"], told["reduce-batch-size"]
    assert other.severity == "info", "two problems that exclude each other say nothing"
    assert other.evidence[0].text.startswith("first try expandable_segments:True")
    assert one.effect is not None
    assert one.effect.text == (
        "predicted (± <0.1 %) by replaying 67 recorded entries with expandable_segments:True: it "
        "would fit with 240 MiB to spare and reserve 1.98 GiB less than was needed"
    )
    # it would have taken 6 + 2 GiB; what grows in pages of 20 MiB takes 6160 MiB for the
    # evaluation, and no more later
    assert one.effect.freed_bytes == (8192 - 6160) * MIB
    assert one.severity == "problem"


def test_a_card_that_is_full_is_not_blamed_on_fragmentation(tmp_path: Path) -> None:
    made = Recorder(trace_of(3000 * MIB, 3000 * MIB, 700 * MIB), DEFAULT, 6400 * MIB).all()
    told = findings(made, tmp_path / "oom.pickle.gz")
    assert "expandable-segments" not in told
    assert "reduce-batch-size" in told


def test_free_pieces_that_no_setting_joins_are_said_to_stay(tmp_path: Path) -> None:
    # two blocks of 9 MiB in each segment, one of them free: no page of 20 MiB is whole either
    steps = (
        *(9 * MIB for _ in range(60)),
        *(f"free {number}" for number in range(0, 60, 2)),
        200 * MIB,
    )
    made = Recorder(trace_of(*steps), DEFAULT, 620 * MIB).all()
    assert made.run.ooms
    about = {"v": 1, "kind": "oom", "device": 0, "total_bytes": 640 * MIB}
    about |= {"requested_bytes": 200 * MIB, "free_bytes": 20 * MIB}
    report = postmortem_snapshot.examine(made.write(tmp_path / "oom.pickle.gz", about))
    (one,) = (one for one in report.findings if one.pitfall == "expandable-segments")
    assert one.confidence == "definite"  # that it is cut up; the usual cure is another matter
    assert one.effect is not None
    assert (
        "it still does not fit, 200 MiB requested with 80.0 MiB free and 270 MiB cached"
        in one.effect.text
    )
    assert one.effect.freed_bytes == 0


def test_a_shorter_history_makes_the_prediction_less_certain(tmp_path: Path) -> None:
    made = Recorder(trace_of(*CUT_UP, 2048 * MIB), DEFAULT, 6400 * MIB).all()
    # the 6 GiB lie free at its beginning
    path = made.write(tmp_path / "oom.pickle.gz", last=len(made.entries) - 30)
    report = postmortem_snapshot.examine(path)
    assert "expandable-segments" not in {
        one.pitfall for one in report.findings
    }  # it may or may not: nothing is claimed


def test_a_log_is_diagnosed_without_the_simulator() -> None:
    code = (
        "import sys\nfrom gpuscope.cli.main import main\n"
        "try: main(['doctor', '-', '--json'])\nexcept SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if name.startswith('gpuscope.predict.')), "
        "file=sys.stderr)"
    )
    log = b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    done = subprocess.run([sys.executable, "-c", code], input=log, capture_output=True, timeout=60)
    assert done.stderr.decode().splitlines()[-1] in ("[]", "['gpuscope.model.allocator_settings']")
