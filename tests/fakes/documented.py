"""What docs/exit-codes-and-json.md says of the JSON documents."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "exit-codes-and-json.md"


def keys(section: str, row: str) -> list[str]:
    """Return the keys that the page names in one row of a section."""
    part = PAGE.read_text().partition(f"\n### {section}\n")[2].partition("\n### ")[0]
    found = re.search(rf"^\| {re.escape(row)} \| (.*) \|$", part, re.M)
    assert found is not None, (section, row)
    return re.findall(r"`(\w+)`", re.sub(r" \([^)]*\)", "", found[1]))
