"""The signs of how bad something is, the same on screens, in printed text and in reports."""

from __future__ import annotations

from typing import Final

BAD: Final = "▲"
WARN: Final = "◆"
INFO: Final = "○"
BY_SEVERITY: Final = {"problem": BAD, "warning": WARN, "info": INFO}
"""The sign of a finding by its severity."""
