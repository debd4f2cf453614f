"""``python -m gpuscope.predict.tracing FD``: requests come as lines of JSON on standard input, an answer to each goes
to the descriptor FD. What the user's code prints goes to the ordinary places and never between the answers."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import sys
import traceback
from dataclasses import asdict
from typing import Any

MEMORY_BYTES = 4 << 30
ADDRESS_BYTES = 64 << 30
"""Data and address space of this process at most: libraries of CUDA alone map many GiB that nothing touches."""


def main() -> int:
    answers = int(sys.argv[1])
    _cap()
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # no GPU is touched, even where there is one
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    questions = os.dup(0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.set_inheritable(answers, False)
    with os.fdopen(answers, "w", encoding="utf-8") as out, os.fdopen(questions, encoding="utf-8") as asked:
        for line in asked:
            json.dump(_answer(json.loads(line)), out, separators=(",", ":"))
            out.write("\n")
            out.flush()
            with contextlib.suppress(Exception):
                sys.stdout.flush()
    return 0


def _cap() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, most in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_AS, ADDRESS_BYTES)):
            _, hard = resource.getrlimit(kind)
            limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
            resource.setrlimit(kind, (limit, hard))
    except (ImportError, OSError, ValueError):
        pass  # not a Unix, or not allowed: the parent still ends this process on time


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    from ..request import CannotPredict, Request

    try:
        request = Request(**asked)
        try:
            from . import steps
        except ImportError as error:
            raise CannotPredict(
                "Nothing can be predicted without PyTorch.",
                f"{sys.executable}: {error}.",
                "pip install 'gpuscope[torch]'",
                "no_torch",
            ) from None
        gc.freeze()  # what the imports made is not looked through again and again
        from .failures import in_words

        try:
            traced = steps.trace(request)
        except (Exception, SystemExit) as error:
            raise in_words(request, error) from error
    except CannotPredict as failure:
        return {"failure": [str(word) for word in failure.args], "code": failure.code}
    except BaseException as error:  # ours, not the user's: still an answer
        what = "The tracing child failed."
        return {"failure": [what, f"{type(error).__name__}: {error}", _last(error)], "code": "aborted"}
    return {"traced": asdict(traced)}


def _last(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"at {frame.filename}:{frame.lineno}"


if __name__ == "__main__":
    sys.exit(main())
