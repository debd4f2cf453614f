"""Tell by its path whose a source file is: the user's, a package's, torch's or Python's own.

Paths come from stacks of any host: of tracebacks in logs, of allocator snapshots, of flight
recorders, of py-spy and of live frames. So nothing is looked up on this host.
"""

from __future__ import annotations

import os
import re

OUR_FOLDER = os.path.dirname(os.path.dirname(__file__)) + os.sep
"""Where gpuscope's own files are, as code objects have it: an injected probe has no file."""
OWN, PACKAGE, TORCH, STDLIB = "own", "package", "torch", "stdlib"
"""``stdlib`` includes what the interpreter itself runs and compiled code."""

# py-spy shortens paths by what is in Python's search path: these patterns begin with "^".
_TORCH = re.compile(
    r"(?:^|/)(?:site|dist)-packages/(?:torch|torchvision|torchaudio|functorch|triton)/"
    # a checkout of torch; but not every file of a project that is called "torch"
    r"|(?:^|/)torch/(?:nn|autograd|optim|cuda|utils|distributed|fx|amp|func|_\w+|functional"
    r"|overrides|random|serialization|multiprocessing)(?:/|\.py)"
    r"|^torch\w*/|^<eval_with_key>"
)
_PACKAGE = re.compile(r"(?:^|/)(?:site|dist)-packages/|^numpy/")
_STDLIB = re.compile(
    r"/lib/python3[^/]*/|^<(?:frozen |string>|__array_function__)"
    r"|^(?:multiprocessing|asyncio|concurrent|importlib|json|pickle|email|http|urllib)/"
    r"|^(?:threading|queue|socket|selectors|subprocess|runpy|contextlib|pickle|tarfile|gzip)\.py$"
    r"|^\?\?|\.(?:c|cc|cpp|cu|cuh|h|hpp|so)(?::|$)|^$"
)


def owner(path: str) -> str:
    """Return whose file this is: one of the four words above.

    Other names that are not files (``<stdin>``, a notebook's cell) count as the user's own.
    """
    if _TORCH.search(path):
        return TORCH
    if _PACKAGE.search(path):
        return PACKAGE
    return STDLIB if _STDLIB.search(path) else OWN


def is_own(path: str) -> bool:
    """Return whether the file is the user's own."""
    return owner(path) == OWN


def last_own_line(error: BaseException) -> str:
    """Return the user's line in which an exception came up, as ``file:line``; "" if there is none.

    Of the lines of the user's own code in its traceback it is the innermost one.
    """
    found, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if is_own(file) and not file.startswith((OUR_FOLDER, "<")):
            found = f"{file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
