"""What runs inside the trainer: a stub, a script that starts a thread, the probe's sources.

The stub fits into one page. Stub and script run in the trainer's main thread at a safe point, for
some 100 µs: they start a thread and return. The thread loads the probe from memory, because a path
could be gone later, and starts it. All of it runs in dictionaries of its own, never in
``__main__``. It raises and prints nothing. A Ctrl-C that arrives inside the stub is passed on to
the trainer. If the code runs a second time, it does nothing.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import json
import os
from typing import Dict, List, Tuple

from .probe_source import PROBE_PACKAGE, probe_sources

IDLE_SECONDS = 120.0
"""An injected probe removes itself if nobody has watched it for this long."""
REST = 4.0
"""While the probe is loaded, each piece of work is followed by a pause this many times as long."""
PIECE_LINES = 40
"""Compiling this many lines takes half a millisecond or less on a usual machine. The trainer's
threads wait during that time.
"""


def sources() -> bytes:
    """Return the probe's modules as JSON, each cut into pieces. Raises OSError.

    The document is {"digest", "modules": {name: [is a package, its annotations stay text, lines
    before a piece, the piece, lines before the next, …]}}. A module is one flat list, because the
    lists stay in the trainer, and each nested list would be one more object for its garbage
    collector.
    """
    modules: Dict[str, List[object]] = {}
    for path, content in sorted(probe_sources().items()):
        parts = path[: -len(".py")].split("/")
        package, source = parts[-1] == "__init__", content.decode("utf-8")
        future = "\nfrom __future__ import annotations\n" in "\n" + source
        flat = [part for piece in pieces(source) for part in piece]
        modules[".".join(parts[:-1] if package else parts)] = [package, future, *flat]
    text = json.dumps(modules, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    return json.dumps({"digest": digest, "modules": modules}).encode("ascii")


@functools.lru_cache(maxsize=256)
def pieces(source: str, least: int = PIECE_LINES) -> List[Tuple[int, str]]:
    """Cut a module's source into pieces, each as (lines before it, text).

    Cuts are made only between top-level statements. A piece has at most ``least`` lines, unless a
    single statement is longer. If the pieces run one after another in one namespace, the result is
    the module.
    """
    lines = source.splitlines(keepends=True)
    found: List[Tuple[int, str]] = []
    begin = end = 0
    for node in ast.parse(source).body:
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))]) - 1
        last = node.end_lineno or node.lineno
        if end > begin and first >= end and last - begin > least:
            found.append((begin, "".join(lines[begin:first])))
            begin = first
        end = last
    found.append((begin, "".join(lines[begin:])))
    return found


def names(nonce: str) -> Tuple[str, str, str]:
    """Return the file names of one injection: the script, the probe's sources, the answer.

    The process that first renames or removes the sources decides whether the probe is loaded:
    either the script's thread, or an injector that gives up.
    """
    return f"inject-{nonce}.py", f"inject-{nonce}.json", f"inject-{nonce}.done"


def script(folder: str, nonce: str, idle_seconds: float = IDLE_SECONDS) -> bytes:
    """Return the script for a process that sees the files in ``folder``."""
    _, modules, done = (os.path.join(folder, name) for name in names(nonce))
    head = (
        f"SOURCES, DONE, IDLE, PACKAGE = {modules!r}, {done!r}, {float(idle_seconds)!r}, "
        f"{PROBE_PACKAGE!r}\n"
    )
    return (head + f"REST = {REST!r}\n" + _SCRIPT).encode("utf-8")


def stub(path: str) -> str:
    """Return one ASCII statement that binds no name and raises nothing.

    ``@PAGE@`` and ``@MAPPED@`` are filled in later.
    """
    arguments = f'{{"path": {json.dumps(path)}, "PAGE": (@PAGE@, @MAPPED@)}}'
    return f'try:\n __import__("builtins").exec({json.dumps(_STUB)}, {arguments})\nexcept: pass\n'


_STUB = """\
import sys, threading
try:
    try:
        with open(path, "rb") as file:
            source = file.read()
    except Exception as error:
        source = b""
        try:
            if not isinstance(error, FileNotFoundError):
                __import__("os").symlink(repr(error)[:200], path[:-3] + ".done")
        except Exception:
            pass
    if source:
        exec(compile(source, "<gpuscope>", "exec"), {"PAGE": PAGE})
    else:
        def free():
            import ctypes, time
            time.sleep(1)
            ctypes.CDLL(None).munmap(ctypes.c_void_p(PAGE[0]), ctypes.c_size_t(PAGE[1]))
        threading.Thread(target=free, name="gpuscope-inject", daemon=True).start()
except KeyboardInterrupt:
    import _thread
    _thread.interrupt_main()
"""
"""If the injection was withdrawn meanwhile (the file is gone), it only gives its page back. If the
file cannot be opened, it makes a symbolic link whose name says why, because that needs no open
file.
"""

_SCRIPT = '''
import sys, threading, time
CALLED = time.monotonic()
START, SLEEP, GREEN = None, time.sleep, ""
gevent = sys.modules.get("gevent.monkey")
if gevent is not None and gevent.is_module_patched("threading"):
    START, SLEEP = gevent.get_original("_thread", "start_new_thread"), gevent.get_original("time", "sleep")
    GREEN = "its threads are gevent's (monkey.patch_all): the probe would run in its main thread"

class Sources:
    """Finds the probe's modules, in memory. Last in sys.meta_path: nobody else pays for it."""

    def __init__(self, digest, modules):
        self.digest, self.modules = digest, modules
        self.loader, self.paid = threading.get_ident(), time.thread_time()

    def find_spec(self, name, path=None, target=None):
        if name not in self.modules:
            return None
        from importlib.machinery import ModuleSpec
        spec = ModuleSpec(name, self, origin=self.place(name), is_package=self.modules[name][0])
        spec.has_location = True
        return spec

    def place(self, name):
        """No path: a tool that measures coverage takes what begins so for no file, and else misses its source."""
        return "<gpuscope>/" + name.replace(".", "/") + ("/__init__.py" if self.modules[name][0] else ".py")

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        import __future__
        _, future, *pieces = self.modules[module.__name__]
        flags = __future__.annotations.compiler_flag if future else 0
        for before, source in zip(pieces[::2], pieces[1::2]):
            self.rest()
            code = compile("\\n" * before + source, self.place(module.__name__), "exec", flags, True)
            exec(code, module.__dict__)

    def rest(self):
        """The trainer's threads wait for the interpreter while a piece is compiled or run, and torch gives it back and
        takes it again with each operation: so every piece is paid for with a longer pause, in which they have it."""
        now = time.thread_time()
        if threading.get_ident() == self.loader and now - self.paid > 0.001:
            SLEEP(min(REST * (now - self.paid), 0.05))
            self.paid = time.thread_time()

    def install(self):
        if self not in sys.meta_path:
            sys.meta_path.append(self)

    def remove(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def load():
    import json
    with open(SOURCES + ".taken", "rb") as file:
        found = json.loads(file.read().decode("ascii"))
    loaded = sys.modules.get(PACKAGE)
    sources = getattr(loaded, "__gpuscope_sources__", None)
    if sources is None or sources.digest != found["digest"]:
        for name in list(sys.modules):  # the trainer may be importing: only a copy can be gone through
            if name == PACKAGE or name.startswith(PACKAGE + "."):
                del sys.modules[name]
        sources = Sources(found["digest"], found["modules"])
    sources.install()
    try:
        import importlib
        importlib.import_module(PACKAGE).__gpuscope_sources__ = sources
        return importlib.import_module(PACKAGE + ".probe.injected").begin(sources.remove, IDLE)
    except BaseException:
        sources.remove()
        raise


def answer(problem):
    import os
    try:
        import json
        body = {"problem": problem[:500], "called": CALLED, "main_seconds": SPENT, "ready": time.monotonic()}
        with open(DONE + ".new", "w") as file:
            json.dump(body, file)
        os.rename(DONE + ".new", DONE)
    except BaseException as error:  # no descriptor is free, say, and a link takes none
        os.symlink((problem or repr(error))[:200], DONE)


def give_back(page):
    """The page of the stub, once the main thread has left it."""
    if page is None:
        return
    import ctypes, gc
    main = threading.main_thread().ident
    for _ in range(100):
        SLEEP(0.1)
        collecting = gc.isenabled()
        gc.disable()  # as the probe's current_frames does: a collection in there may wait for ever
        try:
            frame, inside = sys._current_frames().get(main), False
        finally:
            if collecting:
                gc.enable()
        while frame is not None:
            inside = inside or frame.f_code.co_filename == "<gpuscope>"
            frame = frame.f_back
        if not inside:
            SLEEP(0.1)
            ctypes.CDLL(None).munmap(ctypes.c_void_p(page[0]), ctypes.c_size_t(page[1]))
            return


def run():
    sys.settrace(None)  # what the trainer traces of its own threads (coverage, a debugger) is not ours
    sys.setprofile(None)
    try:
        import os, _signal  # built in: importing signal itself reads files, and takes the interpreter's lock for long
        # Where files are limited in size the answer fails with an error: a signal would end the trainer.
        _signal.pthread_sigmask(_signal.SIG_BLOCK, {_signal.SIGXFSZ})
        os.rename(SOURCES, SOURCES + ".taken")  # whoever takes it first: this thread, or the injector that gives up
    except OSError:
        give_back(globals().get("PAGE"))
        return
    try:
        probe = getattr(sys, "_gpuscope_probe", None)
        if GREEN:
            problem = GREEN
        elif probe is not None:  # there is one, armed for the first step: it starts now
            probe.start()
            problem = probe.problem
        else:
            problem = load()
    except BaseException as error:
        problem = "%s: %s" % (type(error).__name__, error)
    try:
        answer(problem)
    except BaseException:
        pass
    try:
        give_back(globals().get("PAGE"))
    except BaseException:
        pass


try:
    SPENT = None
    if START is None:
        threading.Thread(target=run, name="gpuscope-inject", daemon=True).start()
    else:
        START(run, ())
    SPENT = time.monotonic() - CALLED
except KeyboardInterrupt:
    import _thread
    _thread.interrupt_main()
except BaseException:
    pass
'''  # noqa: E501
