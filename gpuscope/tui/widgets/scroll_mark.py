"""The mark beside a list that says which part of it is seen."""

from __future__ import annotations

THUMB, TRACK = "┃", "│"


def thumb(at: int, page: int, total: int, top: int) -> str:
    """Return the scroll mark of line ``at`` of a page: a thumb on a thin line.

    The page begins at line ``top`` of ``total``.
    """
    size = max(round(page * page / total), 1)
    start = round((page - size) * top / max(total - page, 1))
    return THUMB if start <= at < start + size else TRACK
