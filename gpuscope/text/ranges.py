"""Write whole numbers as ranges, such as the indices of GPUs and processors."""

from __future__ import annotations

from typing import Iterable, List, Tuple


def interval_text(low: str, high: str, between: str = "–") -> str:
    """Return an interval to read, or the one number where both ends read the same."""
    return low if low == high else f"{low}{between}{high}"


def spans(numbers: Iterable[int]) -> List[Tuple[int, int]]:
    """Return the first and the last number of each range without a gap, in order."""
    found: List[Tuple[int, int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def compact_ranges(numbers: Iterable[int], most: int = 1000) -> str:
    """Return at most ``most`` ranges as Linux writes a list of processors: ``0-31,64-95``."""
    return ",".join(
        str(first) if first == last else f"{first}-{last}" for first, last in spans(numbers)[:most]
    )


def named_ranges(thing: str, numbers: Iterable[int]) -> str:
    """Return numbered things as a reader names them: ``rank 3``, ``ranks 0-2, 5``."""
    found = sorted(set(numbers))
    return f"{thing}{'' if len(found) == 1 else 's'} {ranges_text(found)}"


def ranges_text(numbers: Iterable[int]) -> str:
    """Return numbers as ranges to read: ``[0, 1, 2, 5]`` as ``"0-2, 5"``, two as ``"0, 1"``."""
    return ", ".join(
        str(first)
        if first == last
        else f"{first}, {last}"
        if last == first + 1
        else f"{first}-{last}"
        for first, last in spans(numbers)
    )
