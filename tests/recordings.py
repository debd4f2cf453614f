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
