"""Where the recordings lie that tests play.

Two folders hold files of the same names, because both were made by ``demos/recordings/make.sh``.
"""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
REDACTED = ROOT / "tests" / "data" / "recordings"
"""They are redacted, have no time ledger, and lack some readings. What they say never changes, so
that tests may depend on it.
"""
SHIPPED = ROOT / "demos" / "recordings"
"""What users play. They are made anew now and then."""


def without_samples(recording: Path, path: Path) -> Path:
    """Write to ``path`` what ``recording`` holds but for the samples of the stack."""
    # Only now: a test that asks what a verb loads has this module, too.
    from gpuscope.store.decode import decode
    from gpuscope.wire import frames
    from gpuscope.wire.recording import RecordingReader, RecordingWriter

    with RecordingWriter(path) as writer:
        for one in RecordingReader(recording).lines():
            frame = decode(one.line)
            if not (isinstance(frame, frames.Event) and frame.e == "time"):
                writer.write("node", one.rx, one.line)
    return path
