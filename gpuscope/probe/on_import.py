"""Calls back once when a module has been imported.

Copied as ``sitecustomize.py``, it is what starts the probe.

``gpuscope run`` puts a directory with this file, named ``sitecustomize.py``, and with ``probe.zip``
in front of PYTHONPATH. Python then imports it at every start, also in programs that never touch
torch: so it loads nothing but what the interpreter has loaded already, prints nothing, and whatever
goes wrong stays in here (``GPUSCOPE_DEBUG=1`` shows it). In the zip of ``gpuscope enable`` it is
``_gpuscope_on_import.py``, loaded at the first look for torch.
"""

import os
import sys

MARK = "_gpuscope_on_import"
"""Attribute of ``sys`` that is set when a sitecustomize of ours has armed the probe (True, so that
two such directories arm once), or when the ``.pth`` of an enabled environment waits for torch (the
finder to :meth:`remove`, because ``gpuscope run`` replaces it).
"""


def debug(what, error):  # type: (str, BaseException) -> None
    """Print one line on stderr if GPUSCOPE_DEBUG asks for it."""
    if os.environ.get("GPUSCOPE_DEBUG") == "1":
        try:
            sys.stderr.write(f"gpuscope: {what}: {type(error).__name__}: {error}\n")
        except Exception:
            pass


class OnImport:
    """A finder in ``sys.meta_path`` that calls back once ``name`` has been imported.

    It finds nothing itself: it lets the real finders find ``name``, and calls back after the
    module's loader has executed it. A mere ``find_spec`` (``importlib.util.find_spec("torch")``,
    which many libraries call) changes nothing. It removes itself after the call back;
    :meth:`remove` does so earlier.
    """

    def __init__(self, name, callback):  # type: (str, object) -> None
        self.name = name
        self.callback = callback

    def install(self):  # type: () -> None
        sys.meta_path.insert(0, self)

    def remove(self):  # type: () -> None
        try:
            sys.meta_path.remove(self)
        except ValueError:
            pass

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name != self.name:
            return None
        for finder in list(sys.meta_path):
            find = None if isinstance(finder, OnImport) else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                try:
                    self._wrap(spec.loader)  # type: ignore[no-untyped-call]
                except Exception as error:
                    debug("cannot watch the import of " + name, error)
                return spec
        return None

    def _wrap(self, loader):  # type: ignore[no-untyped-def]
        original = loader.exec_module

        def exec_module(module):  # type: ignore[no-untyped-def]
            try:
                del loader.exec_module  # the instance's own attribute: the class has the real one
            except AttributeError:
                pass
            original(module)
            self.remove()
            try:
                self.callback()  # type: ignore[operator]
            except Exception as error:
                debug("not watching", error)

        # Python leaves frames of its import machinery out of tracebacks, and of the lines that
        # warnings name. This code counts as part of it, so that a torch which fails to import looks
        # as it does without us.
        code = exec_module.__code__
        exec_module.__code__ = code.replace(co_filename="<frozen importlib._bootstrap>")
        loader.exec_module = exec_module


def _arm():  # type: () -> None
    """Load the probe from the zip next to this file, after torch, and let it install its hooks."""
    here = os.path.dirname(os.path.abspath(__file__))
    if os.lstat(here).st_uid != os.geteuid():
        return  # code of another user: not ours to run
    archive = os.path.join(here, "probe.zip")
    sys.path.insert(0, archive)
    try:
        from _gpuscope_probe.probe import arm  # type: ignore[import-not-found]
    finally:
        sys.path.remove(archive)
    arm("run")


def enabled(archive, allow_attach, path, target):  # type: ignore[no-untyped-def]
    """Arm the probe in ``archive`` once torch has been imported; return torch's spec.

    The ``.pth`` of an enabled environment calls this (``attach/enable_files.py``).
    """

    def arm_enabled():  # type: () -> None
        sys.path.insert(0, archive)
        try:
            from _gpuscope_probe.probe import (
                arm,
                collectives,  # noqa: F401  # all of it now: the zip may be replaced
            )
        finally:
            sys.path.remove(archive)
        arm("enable", allow_attach)

    finder = OnImport("torch", arm_enabled)
    finder.install()
    return finder.find_spec("torch", path, target)  # type: ignore[no-untyped-call]


def _diagnose_at_the_end():  # type: () -> None
    """Have an exception that ends the program diagnosed, below its traceback.

    This happens only if `gpuscope run` asked for it.
    """
    import atexit

    pid = os.getpid()
    here = os.path.dirname(os.path.abspath(__file__))

    def gpuscope_diagnosis():  # type: () -> None
        error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
        # After Ctrl-C nothing may be compiled from a string from here on (an import may do so),
        # because Python then forgets that it has to die of SIGINT.
        if error is None or isinstance(error, KeyboardInterrupt) or os.getpid() != pid:
            return
        archive = os.path.join(here, "probe.zip")
        try:
            if os.lstat(here).st_uid != os.geteuid():
                return
            sys.path.insert(0, archive)
            try:
                from _gpuscope_probe.probe.diagnosis import show  # type: ignore[import-not-found]
            finally:
                sys.path.remove(archive)
        except Exception as failure:  # the trainer may be in a chroot by now, or another user
            debug("no diagnosis", failure)
            return
        show(error)

    atexit.register(gpuscope_diagnosis)


def _as_sitecustomize():  # type: () -> None
    """Arm for torch, then step aside for the user's own sitecustomize.

    That one is further down ``sys.path``, and runs as if alone.
    """
    try:
        here = os.path.dirname(os.path.abspath(__file__))
        sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
        before = getattr(sys, MARK, None)
        if os.environ.get("GPUSCOPE") != "0" and before is not True:
            if before is not None:
                before.remove()
            setattr(sys, MARK, True)
            if os.environ.get("GPUSCOPE_DOCTOR"):
                _diagnose_at_the_end()
            if "torch" in sys.modules:
                _arm()
            else:
                OnImport("torch", _arm).install()
    except Exception as error:
        debug("not watching", error)
    ours = sys.modules.pop("sitecustomize", None)
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if ours is not None:
            sys.modules.setdefault("sitecustomize", ours)
        if getattr(error, "name", None) != "sitecustomize":
            raise


if __name__ == "sitecustomize":
    _as_sitecustomize()
