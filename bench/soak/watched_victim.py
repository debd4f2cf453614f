"""A victim of ``victims.py`` that also notes what else ran in its process.

Python 3.8 syntax.

``python watched_victim.py KIND OUT [--also MODULE] [--traced]``. OUT.dumps: where all threads stood
each 40 ms of a step that was late. OUT gets, besides what the book has, ``collections`` (garbage
collections), ``stamps`` (modules of the probe) and ``calls`` (C calls of threads started later,
with --traced), each as [begin, end, what] in seconds.
"""

import argparse
import faulthandler
import gc
import importlib
import json
import os
import sys
import threading
import time

import victims

LATE_SECONDS = 0.04


class Watched(victims.Book):
    def __init__(self, out, steps, dumps):
        victims.Book.__init__(self, out, steps, None)
        self.dumps = dumps

    def step(self):
        faulthandler.dump_traceback_later(LATE_SECONDS, repeat=True, file=self.dumps)
        return victims.Book.step(self)


def collections_into(rows):
    begun = []

    def note(phase, info):
        if phase == "start":
            begun.append(time.monotonic())
        elif begun:
            thread = threading.current_thread().name
            rows.append(
                (begun.pop(), time.monotonic(), f"generation {info['generation']} in {thread}")
            )

    gc.callbacks.append(note)


def calls_into(rows):
    local = threading.local()

    def profile(frame, event, arg):
        stack = local.__dict__.setdefault("stack", [])
        if event == "c_call":
            stack.append(
                (
                    time.monotonic(),
                    f"{getattr(arg, '__module__', '')}.{getattr(arg, '__name__', '?')}",
                )
            )
        elif event in ("c_return", "c_exception") and stack:
            begin, name = stack.pop()
            now = time.monotonic()
            if now - begin > 0.003 and name not in ("time.sleep",):
                rows.append(
                    (begin, now, f"{name} at {frame.f_code.co_filename[-40:]}:{frame.f_lineno}")
                )

    threading.setprofile(profile)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=sorted(victims.KINDS))
    parser.add_argument("out")
    parser.add_argument("--also", action="append", default=[])
    parser.add_argument("--traced", action="store_true")
    args = parser.parse_args()
    import torch

    for name in args.also:
        importlib.import_module(name)
    collections, calls = [], []
    sys._gpuscope_stamps = []
    collections_into(collections)
    dumps = open(args.out + ".dumps", "w")  # noqa: SIM115
    book = Watched(args.out, 0, dumps)
    if args.kind in ("tight", "alloc", "sleep"):
        victims.started(args.out)
    if args.traced:
        calls_into(calls)
    victims.KINDS[args.kind](book)
    faulthandler.cancel_dump_traceback_later()
    threading.setprofile(None)
    book.close()
    with open(args.out) as stream:
        body = json.load(stream)
    body.update(
        collections=collections,
        calls=calls,
        stamps=sys._gpuscope_stamps,
        objects=len(gc.get_objects()),
    )
    body.update(python=sys.version.split()[0], torch=torch.__version__)
    with open(args.out + ".new", "w") as stream:
        json.dump(body, stream)
    os.rename(args.out + ".new", args.out)


if __name__ == "__main__":
    main()
