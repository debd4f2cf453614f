"""Makes the two files of ``gpuscope enable``, and checks existing ones.

Every start of Python reads ``gpuscope_enable.pth``, also in programs that do not use torch. So its
one line of code only puts a finder into ``sys.meta_path`` and opens no file. When torch is first
imported, the finder reads the whole zip next to the ``.pth``, and uses it only if its sha256 is the
one that the ``.pth`` names. Errors are caught there (``GPUSCOPE_DEBUG=1`` shows them). The ``.pth``
names no directory, so a copied environment works.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from typing import Any, Dict, Optional

from .. import __version__
from ..probe import on_import
from .probe_source import PROBE_PACKAGE, WIRE, Contents, sources_of

PTH = "gpuscope_enable.pth"
ZIP = "gpuscope_enable.zip"
MAX_PTH_BYTES = 64 << 10
MAX_ZIP_BYTES = 32 << 20

_TITLE = "# gpuscope {version}: lets gpuscope see the PyTorch trainings of this environment. "
_TITLE += "GPUSCOPE=0 leaves it out; `gpuscope disable` takes it out."
_WAIT = """
class GpuscopeEnabled:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            self.remove()
            found = {"sys": sys, "sitedir": sitedir, "path": path, "target": target, "spec": None}
            exec(later, found)
            return found["spec"]
    def remove(self):
        if self in sys.meta_path:
            sys.meta_path.remove(self)
if not hasattr(sys, "@MARK@"):
    sys.@MARK@ = GpuscopeEnabled()
    sys.meta_path.insert(0, sys.@MARK@)
"""
"""The code that every start of Python compiles, so it is as short as possible. Its globals:
``sys``; ``sitedir``, the directory of the ``.pth`` (a local variable of the ``site`` module that
reads it; None should that ever change); ``later``, which stays text until torch is imported.
"""
_LATER = """
import os
try:
    if os.environ.get("GPUSCOPE") != "0":
        import hashlib, site
        places = [sitedir] if sitedir else [*site.getsitepackages(), site.getusersitepackages()]
        archive = next(p for p in (os.path.join(d, "@ZIP@") for d in places) if os.path.isfile(p))
        with open(archive, "rb") as file:
            if hashlib.sha256(file.read(@MAX@)).hexdigest() != "@SHA@":
                raise ImportError(archive + " is not the file that was enabled")
        sys.path.insert(0, archive)
        try:
            from _gpuscope_on_import import enabled
        finally:
            sys.path.remove(archive)
        spec = enabled(archive, @ALLOW@, path, target)
except Exception as error:
    if os.environ.get("GPUSCOPE_DEBUG") == "1":
        sys.stderr.write("gpuscope: not watching: %s: %s\\n" % (type(error).__name__, error))
"""


@dataclass(frozen=True)
class Enabled:
    """The description in a ``.pth`` of ours.

    ``sources`` is the digest of the sources in the zip, ``zip`` that of the zip itself.
    """

    version: str
    python: str
    sources: str
    zip: str
    allow_attach: bool


def sources() -> Contents:
    """Return {name in the zip: source}: the probe, and the file that waits for torch."""
    contents = {
        f"{PROBE_PACKAGE}/{name}": data
        for name, data in sources_of(("__init__.py", *WIRE), ("probe",)).items()
    }
    with open(os.path.abspath(on_import.__file__), "rb") as stream:
        contents["_gpuscope_on_import.py"] = stream.read()
    return contents


def digest(contents: Contents, python: str) -> str:
    """Return a digest of the sources and of the Python whose byte code is included.

    If the digest is the same, no new files are needed.
    """
    total = hashlib.sha256(python.encode())
    for name in sorted(contents):
        total.update(b"%s\0%d\0" % (name.encode(), len(contents[name])) + contents[name])
    return total.hexdigest()


def pth_bytes(enabled: Enabled) -> bytes:
    """Return the text of the ``.pth``: a title, the description, the line of code."""
    code = (_WAIT + "@" + _LATER).replace("@MARK@", on_import.MARK).replace("@ZIP@", ZIP)
    code = code.replace("@MAX@", str(MAX_ZIP_BYTES)).replace("@SHA@", enabled.zip)
    wait, later = code.replace("@ALLOW@", str(enabled.allow_attach)).split("@")
    names = f'{{"sys": sys, "sitedir": locals().get("sitedir"), "later": {later.strip()!r}}}'
    line = f"import sys; exec({wait.strip()!r}, {names})"
    return _text(_TITLE.format(version=enabled.version), enabled.__dict__, line)


def _text(title: str, fields: Dict[str, Any], line: str) -> bytes:
    seal = hashlib.sha256(json.dumps([title, fields, line], sort_keys=True).encode()).hexdigest()
    return f"{title}\n# {json.dumps({**fields, 'seal': seal}, sort_keys=True)}\n{line}\n".encode(
        "ascii"
    )


def parse(content: bytes) -> Optional[Enabled]:
    """Return the description in an unchanged ``.pth`` of ours, or None for any other content."""
    try:
        title, facts, line, rest = content.decode("ascii").split("\n")
        fields = json.loads(facts[2:])
        fields.pop("seal")
        if rest or _text(title, fields, line) != content:
            return None
        version, python, made_of, archive = (
            fields[name] for name in ("version", "python", "sources", "zip")
        )
        allow = fields["allow_attach"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        return None
    if not all(
        isinstance(text, str) for text in (version, python, made_of, archive)
    ) or not isinstance(allow, bool):
        return None
    return Enabled(version, python, made_of, archive, allow)


def read(path: str, limit: int) -> Optional[bytes]:
    """Return a regular file's content, or None if there is no file. Links are not followed.

    Raises OSError for anything that is not a regular file, and for more than ``limit`` bytes.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        raise OSError(f"{path} is larger than any file gpuscope writes")
    return content


def version() -> str:
    return __version__
