"""Many small cases in one test.

A test of pytest's own costs some 10 ms among those of all workers, whatever it does: with more than
a dozen cases that compare a word or two, that is most of their time.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest


def values_of(case: Any, columns: int) -> tuple[Any, ...]:
    """Return the arguments of one case: written out, or as a ``pytest.param`` without marks."""
    if isinstance(case, type(pytest.param())):
        assert not case.marks
        return tuple(case.values)
    return tuple(case) if columns > 1 else (case,)


def each(names: str | tuple[str, ...], cases: Iterable[Any]) -> Callable[[Any], Any]:
    """Return what ``pytest.mark.parametrize`` would, with all cases in one test.

    All cases run; the test fails with the first error and the names of all cases that failed. For
    tests that share no fixture which a case changes.
    """
    columns = names.replace(",", " ").split() if isinstance(names, str) else list(names)
    rows = [values_of(case, len(columns)) for case in cases]

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            first, failed = None, []
            for values in rows:
                try:
                    test(**dict(zip(columns, values, strict=True)), **fixtures)
                except (Exception, pytest.fail.Exception) as error:
                    first = first or error
                    failed.append(values)
            if first is not None:
                shown = "\n".join(f"{values!r:.300}" for values in failed[:20])
                raise AssertionError(f"{len(failed)} of {len(rows)} cases:\n{shown}") from first

        signature = inspect.signature(test)
        rest = [one for name, one in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
        return run

    return decorate
