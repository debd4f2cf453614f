"""Describe an environment's torch from its files, or ask torch in a child process.

Nothing here imports torch. It reads ``torch/version.py``, the names of the ``*.dist-info`` folders
beside it, the pins in torch's METADATA, and the words "sm_80 sm_90 …" in ``libtorch_python.so``,
which are what ``torch.cuda.get_arch_list()`` returns (checked with the wheel of 2.11).
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..collect import attachable
from ..process.procfs import read
from ..wire.environment import Build, Torch

TORCH_SECONDS = 10.0
_NAMED = re.compile(r"([A-Za-z0-9._-]+)-(\d[^-]{0,60})(?:-py\d[\d.]*)?\.(?:dist|egg)-info")
_WANTED = re.compile(r"torch|pynvml|nvidia[-_].*|triton|pytorch[-_]triton")
_VALUE = re.compile(
    r"^(__version__|cuda|hip|xpu)\s*(?::[^=\n]{1,60})?=\s*(?:'([^'\n]{1,80})'|\"([^\"\n]{1,80})\"|(None))",
    re.M,
)
_PIN = re.compile(r"^Requires-Dist: *(nvidia[-\w]+) *\(?== *([\w.]+)\)?", re.M)
_ARCHITECTURES = re.compile(rb"(?:sm|compute)_\d{2,3}[af]?(?: (?:sm|compute)_\d{2,3}[af]?)*\0")
_MOST_ENTRIES = 20_000
_MOST_BYTES = 256 << 10
_MOST_PROCESSES = 4096
_LOADED = re.compile(rb" (/[^\n]{1,900})/torch/lib/libtorch[\w.]*\.so")


@dataclass
class Installed:
    """The packages of one Python. ``folder`` is where torch is, or would be."""

    prefix: str
    build: Build | None = None
    packages: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[tuple[str, str], ...] = ()
    why: str = ""
    no_architectures: str = ""


def prefixes(environment: Mapping[str, str] | None = None) -> list[str]:
    """List the prefixes where a trainer's Python may be, the likeliest first.

    They are the active environment, this one, and the first ``python`` on the path.
    """
    environment = os.environ if environment is None else environment
    found = [environment.get("VIRTUAL_ENV", ""), environment.get("CONDA_PREFIX", ""), sys.prefix]
    for name in ("python", "python3"):
        where = shutil.which(name, path=environment.get("PATH", ""))
        # not resolved, because the link of a virtual environment shows where it is
        if where is not None:
            found.append(str(Path(where).parent.parent))
    return list(dict.fromkeys(os.path.normpath(prefix) for prefix in found if prefix))


def installed(
    environment: Mapping[str, str] | None = None, architectures: bool = True
) -> Installed:
    """Return the first environment that holds torch; if none does, the first one, with the reason.

    ``architectures``: also search torch's library for those it is compiled for (10 to 20 ms).
    """
    places = prefixes(environment)
    for prefix in places:
        for folder in site_packages(prefix):
            if os.path.isfile(os.path.join(folder, "torch", "version.py")):
                return look(prefix, folder, architectures)
    first = places[0] if places else sys.prefix
    packages = next((found for folder in site_packages(first) if (found := listed(folder))), {})
    return Installed(first, packages=packages, why=f"no torch in {', '.join(places)}")


def running(architectures: bool = True) -> Installed | None:
    """Find the torch that a running process here has loaded, if this user may see one.

    A user who comes over ssh has no active environment, but the trainers have.
    """
    for pid in _numbers("/proc"):
        if attachable.has_torch(pid):
            try:
                match = _LOADED.search(read(f"/proc/{pid}/maps", attachable.MAPS_BYTES))
            except OSError:
                continue
            if match is not None:
                folder = f"/proc/{pid}/root" + os.fsdecode(match[1])
                if not os.path.isdir(folder) or os.path.samefile(f"/proc/{pid}/root", "/"):
                    folder = os.fsdecode(match[1])
                found = look(
                    os.path.dirname(os.path.dirname(os.path.dirname(folder))), folder, architectures
                )
                if found.build is not None:
                    return found
    return None


def _numbers(folder: str) -> list[int]:
    try:
        return sorted((int(name) for name in os.listdir(folder) if name.isdigit()), reverse=True)[
            :_MOST_PROCESSES
        ]
    except OSError:
        return []


def site_packages(prefix: str) -> Iterator[str]:
    """Return the folders of an environment that hold packages."""
    for library in ("lib", "lib64"):
        try:
            names = sorted(os.listdir(os.path.join(prefix, library)), reverse=True)
        except OSError:
            continue
        for name in names:
            if name.startswith("python"):
                for kind in ("site-packages", "dist-packages"):
                    path = os.path.join(prefix, library, name, kind)
                    if os.path.isdir(path):
                        yield path


def look(prefix: str, folder: str, architectures: bool = True) -> Installed:
    """Describe the torch in this folder, and the packages around it."""
    found = Installed(prefix, packages=listed(folder))
    try:
        with open(
            os.path.join(folder, "torch", "version.py"), encoding="utf-8", errors="replace"
        ) as file:
            values = {
                name: one or two for name, one, two, _ in _VALUE.findall(file.read(_MOST_BYTES))
            }
    except OSError as error:
        found.why = f"torch/version.py: {error.strerror or error}"
        return found
    name = values.get("__version__") or found.packages.get("torch")
    if not name:
        found.why = "torch/version.py does not give the version"
        return found
    compiled: tuple[str, ...] | None = None
    if architectures and values.get("cuda"):
        compiled, found.no_architectures = compiled_for(
            os.path.join(folder, "torch", "lib", "libtorch_python.so")
        )
    found.build = Build(
        version=name,
        prefix=prefix,
        cuda=values.get("cuda"),
        hip=values.get("hip"),
        xpu=values.get("xpu") or None,
        architectures=compiled,
    )
    found.requires = _pins(folder)
    return found


def listed(folder: str) -> dict[str, str]:
    """Return the distributions in the folder that matter here, by their normalised name."""
    found: dict[str, str] = {}
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(_MOST_ENTRIES), entries):
                match = _NAMED.fullmatch(entry.name)
                if match is not None and _WANTED.fullmatch(match[1].lower()):
                    found[re.sub(r"[-_.]+", "-", match[1]).lower()] = match[2]
    except OSError:
        pass
    return found


def _pins(folder: str) -> tuple[tuple[str, str], ...]:
    try:
        names = [
            name
            for name in os.listdir(folder)
            if name.startswith("torch-") and name.endswith(".dist-info")
        ]
        if len(names) != 1:
            return ()
        with open(
            os.path.join(folder, names[0], "METADATA"), encoding="utf-8", errors="replace"
        ) as file:
            return tuple(
                (re.sub(r"[-_.]+", "-", name).lower(), pinned)
                for name, pinned in _PIN.findall(file.read(_MOST_BYTES))
            )
    except OSError:
        return ()


def compiled_for(library: str) -> tuple[tuple[str, ...] | None, str]:
    """Read the architectures torch is compiled for from its library, or None and why not."""
    import mmap

    try:
        with open(library, "rb") as file, mmap.mmap(
            file.fileno(), 0, access=mmap.ACCESS_READ
        ) as content:
            at = content.find(b"\0sm_")
            while at >= 0:
                match = _ARCHITECTURES.match(content, at + 1)
                if match is not None:
                    return tuple(match[0][:-1].decode("ascii").split(" ")), ""
                at = content.find(b"\0sm_", at + 1)
    except (OSError, ValueError) as error:
        return None, f"{os.path.basename(library)}: {getattr(error, 'strerror', None) or error}"
    return None, f"{os.path.basename(library)} does not hold them"


# ── asking torch ──────────────────────────────────────────────────────────────────────────────────

_ASK = """
import json, sys, time, warnings
began = time.monotonic()
told = {}
try:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        import torch
        told["version"] = str(torch.__version__)
        told["cuda"] = torch.version.cuda or ""
        told["available"] = bool(torch.cuda.is_available())
        told["device_count"] = int(torch.cuda.device_count())
        try:
            told["architectures"] = [str(one) for one in torch.cuda.get_arch_list()]
        except Exception:
            pass
        try:
            found = torch.cuda.nccl.version()
            told["nccl"] = ".".join(map(str, found)) if isinstance(found, tuple) else str(found)
        except Exception:
            pass
        if not told["available"] and told["cuda"]:
            try:
                torch.cuda.init()
            except Exception as error:
                told["why_not"] = type(error).__name__ + ": " + str(error)[:600]
        if not told.get("why_not") and said and not told["available"]:
            told["why_not"] = str(said[0].message)[:600]
except BaseException as error:
    told["failure"] = type(error).__name__ + ": " + str(error)[:600]
told["seconds"] = time.monotonic() - began
sys.stdout.write("\\n@torch@" + json.dumps(told) + "\\n")
"""


def python_of(prefix: str) -> str:
    """Return the environment's own Python, or this one if it has none."""
    for name in ("python3", "python"):
        path = os.path.join(prefix, "bin", name)
        if os.access(path, os.X_OK):
            return path
    return sys.executable


def ask(python: str, seconds: float = TORCH_SECONDS) -> tuple[Torch | None, str]:
    """Ask torch in a child for at most ``seconds``; its answer, or None and why not."""
    import json

    from ..process import child

    began = time.monotonic()
    try:
        answer = child.ask([python, "-c", _ASK], seconds)
    except OSError as error:
        return None, f"{python} cannot be started ({error.strerror or error})"
    line = next(
        (one for one in reversed(answer.output.split(b"\n")) if one.startswith(b"@torch@")), None
    )
    if line is None:
        if answer.code is None:
            return None, f"importing torch in a child process {answer.failure}"
        return None, f"{python} ended with {child.how_it_ended(answer.code)} before it answered"
    try:
        values = json.loads(line[len(b"@torch@") :])
    except ValueError:
        return None, "its answer cannot be read"
    values.setdefault("seconds", time.monotonic() - began)
    return _torch(values), ""


def _torch(answer: Mapping[str, object]) -> Torch:
    def word(name: str) -> str:
        value = answer.get(name)
        return value if isinstance(value, str) else ""

    compiled, count, available, took = (
        answer.get(name) for name in ("architectures", "device_count", "available", "seconds")
    )
    return Torch(
        version=word("version") or None,
        cuda=word("cuda") or None,
        available=available if isinstance(available, bool) else None,
        why_not=word("why_not"),
        architectures=tuple(str(one) for one in compiled[:64]) or None
        if isinstance(compiled, list)
        else None,
        device_count=count if isinstance(count, int) else None,
        nccl=word("nccl") or None,
        seconds=float(took) if isinstance(took, (int, float)) else 0.0,
        failure=word("failure"),
    )
