"""Answer requests to trace: ``python -m gpuscope.predict.tracing FD``.

Requests come as lines of JSON on standard input, and the answer to each is written to descriptor
FD. What the user's code prints goes to its usual places and never between the answers.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
import warnings
from dataclasses import asdict, fields
from typing import Any

MEMORY_BYTES = 4 << 30
ADDRESS_BYTES = 64 << 30
"""Limit of this process's address space. It is large because CUDA's libraries alone map many GiB
that are never used.
"""


def main() -> int:
    answers = int(sys.argv[1])
    _cap()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU is used, even if there is one
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    questions = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_inheritable(answers, False)
    _load()
    with (
        os.fdopen(answers, "w", encoding="utf-8") as out,
        os.fdopen(questions, encoding="utf-8") as stream,
    ):
        for line in stream:
            json.dump(_answer(json.loads(line)), out, separators=(",", ":"))
            out.write("\n")
            out.flush()
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            _tidy()  # while the parent looks at the answer
    return 0


def _cap() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, most in (
            (resource.RLIMIT_DATA, MEMORY_BYTES),
            (resource.RLIMIT_AS, ADDRESS_BYTES),
        ):
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, hard))
    except (ImportError, OSError, ValueError):
        pass  # not a Unix, or not allowed: the parent still ends this process in time


def _load() -> None:
    """Import what every request needs, before the first one comes.

    Anything that is missing is reported when a request needs it.
    """
    # these imports leave no garbage, and looking for it would take a tenth of their time
    gc.disable()
    # nothing here needs NumPy
    warnings.filterwarnings("ignore", message="Failed to initialize NumPy")
    try:
        from torch._dynamo import source  # noqa: F401  # torch asks for it at the first fake tensor

        from . import steps  # noqa: F401
    except Exception:
        pass
    finally:
        gc.enable()
        gc.freeze()


def _tidy() -> None:
    """Free the last model, and exclude what stays from later garbage collections."""
    gc.collect()
    gc.freeze()


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from ..request import CannotPredict, Request

    try:
        request = Request(**question)
        try:
            from . import steps
        except ImportError as error:
            raise CannotPredict(
                "Nothing can be predicted without PyTorch.",
                f"{sys.executable}: {error}.",
                "pip install torch",
                "no_torch",
            ) from None
        from .failures import in_words

        try:
            traced = steps.trace(request)
        except (Exception, SystemExit) as error:
            raise in_words(request, error) from error
    except CannotPredict as failure:
        return {"failure": [str(word) for word in failure.args], "code": failure.code}
    except BaseException as error:  # an error of ours, not of the user's: it is still an answer
        what = "The tracing process failed."
        return {
            "failure": [what, f"{type(error).__name__}: {error}", _last(error)],
            "code": "aborted",
        }
    return {"traced": _columns(traced)}


def _columns(traced: Any) -> dict[str, Any]:
    """Return the fields, as ``asdict`` does, but without copying every number."""
    found = {one.name: getattr(traced, one.name) for one in fields(traced)}
    trace = found["trace"]
    columns = {one.name: getattr(trace, one.name) for one in fields(trace)}
    columns["owner_table"] = [asdict(owner) for owner in trace.owner_table]
    columns["marks"] = [asdict(mark) for mark in trace.marks]
    columns["growth"] = asdict(trace.growth) if trace.growth else None
    return {**found, "trace": columns, "doubts": [asdict(doubt) for doubt in traced.doubts]}


def _last(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"at {frame.filename}:{frame.lineno}"


if __name__ == "__main__":
    sys.exit(main())
