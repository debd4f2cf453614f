"""Installs the probe in a Python environment permanently, and removes it again.

This is the work of ``gpuscope enable`` and ``disable``.

One ``.pth`` and one zip are written into the environment's site-packages and nothing else: no
package, no dependency, no record elsewhere. The ``.pth`` contains a description of both files with
a checksum. A file that somebody changed is reported and left alone.
"""

from __future__ import annotations

import hashlib
import os
import shlex
from dataclasses import dataclass
from typing import List, Optional

from ..process import atomic_file
from . import enable_files as files
from .bundle import zipped
from .enable_target import CannotEnable, EnableTarget, compiled

ABSENT, INTACT, OUTDATED, CHANGED, HALF = "absent", "intact", "outdated", "changed", "half"


@dataclass(frozen=True)
class HookState:
    """The state of the probe's files in a directory.

    ``state`` is absent, intact (as this gpuscope would write it), outdated (another version or
    other options of ours, unchanged since), half (one of the two files is missing) or changed
    (not what was written: ``reason`` says which file).
    """

    folder: str
    state: str
    enabled: Optional[files.Enabled]
    reason: str = ""

    @property
    def pth(self) -> str:
        return os.path.join(self.folder, files.PTH)

    @property
    def zip(self) -> str:
        return os.path.join(self.folder, files.ZIP)


@dataclass(frozen=True)
class Plan:
    """The changes that :func:`apply` would make. ``before`` is the present state."""

    target: EnableTarget
    before: HookState
    wanted: files.Enabled
    allow_attach: bool

    @property
    def nothing_to_do(self) -> bool:
        now = self.before.enabled
        return (
            self.before.state == INTACT
            and now is not None
            and now.allow_attach == self.allow_attach
        )


def folder_of(target: EnableTarget, user: bool, command: str = "enable") -> str:
    """Return the site-packages directory to use. Raises :class:`CannotEnable`."""
    if not user:
        return target.site
    if not target.reads_user_site:
        off = "disabled, see PYTHONNOUSERSITE"
        why = "a virtual environment" if target.is_environment else off
        raise CannotEnable(
            f"{target.python} does not read the user's site-packages ({target.user_site}): {why}. "
            f"Without --user:  gpuscope {command} --python {shlex.quote(target.python)}"
        )
    return target.user_site


def look(folder: str, target: EnableTarget) -> HookState:
    """Return the state of the files in ``folder``. Raises OSError if it cannot be read."""
    try:
        text = files.read(os.path.join(folder, files.PTH), files.MAX_PTH_BYTES)
        archive = files.read(os.path.join(folder, files.ZIP), files.MAX_ZIP_BYTES)
    except PermissionError:
        raise
    except OSError as error:
        return HookState(folder, CHANGED, None, str(error.strerror or error))
    if text is None and archive is None:
        return HookState(folder, ABSENT, None)
    enabled = None if text is None else files.parse(text)
    if text is not None and enabled is None:
        return HookState(folder, CHANGED, None, f"{files.PTH} was changed since gpuscope wrote it")
    if enabled is None or archive is None:
        return HookState(
            folder, HALF, enabled, f"{files.ZIP if archive is None else files.PTH} is missing"
        )
    if hashlib.sha256(archive).hexdigest() != enabled.zip:
        return HookState(
            folder, CHANGED, enabled, f"{files.ZIP} was changed since gpuscope wrote it"
        )
    same = (
        enabled.sources == files.digest(files.sources(), target.tag)
        and files.pth_bytes(enabled) == text
    )
    return HookState(folder, INTACT if same else OUTDATED, enabled)


def plan(
    target: EnableTarget, user: bool, allow_attach: bool, even_if_managed: bool, named: bool
) -> Plan:
    """Return what is to be done; nothing is written yet.

    ``named`` says that the user named the Python explicitly. Raises :class:`CannotEnable` for an
    environment that cannot or should not be changed, and OSError.
    """
    folder = folder_of(target, user)
    python = shlex.quote(target.python)
    if target.is_own and not named and not target.torch:
        raise CannotEnable(
            f"{target.prefix} is gpuscope's own environment and has no torch: nothing trains "
            "there. Activate the environment that trains, or name its Python:  gpuscope enable "
            "--python /path/to/python"
        )
    if target.managed and not target.is_environment and not user and not even_if_managed:
        own = (
            f"gpuscope enable --python {python} --user"
            if target.reads_user_site
            else "python3 -m venv DIRECTORY"
        )
        raise CannotEnable(
            f"{target.prefix} belongs to the system's package manager (EXTERNALLY-MANAGED). For "
            f"your account only:  {own}    In your own container:  gpuscope enable "
            f"--python {python} --break-system-packages"
        )
    if not user and os.path.realpath(folder) not in {
        os.path.realpath(path) for path in target.sites
    }:
        raise CannotEnable(
            f"{target.python} reads no .pth in {folder}. For one training:  gpuscope run SCRIPT"
        )
    before = look(folder, target)
    if before.state == CHANGED:
        raise CannotEnable(
            f"{before.reason}, so nothing was changed: {before.folder}. Check it, remove it, and "
            f"try again:  rm {shlex.quote(before.pth)} {shlex.quote(before.zip)}"
        )
    wanted = files.Enabled(
        files.version(), target.tag, files.digest(files.sources(), target.tag), "", allow_attach
    )  # the digest of the zip is filled in once the zip is made
    found = Plan(target, before, wanted, allow_attach)
    if not found.nothing_to_do:
        _check_writable(folder, target, user)
    return found


def apply(found: Plan) -> HookState:
    """Write what the plan says: the zip before the ``.pth`` that names it.

    A Python that starts between the two writes reads the old ``.pth``, finds a zip with another
    digest, and runs without the probe. Raises :class:`CannotEnable` and OSError.
    """
    folder = found.before.folder
    if not found.nothing_to_do:
        # uncompressed, so that a trainer's start is not delayed
        contents = compiled(files.sources(), found.target, files.ZIP)
        content = zipped(contents, compress=False)
        enabled = files.Enabled(
            found.wanted.version,
            found.wanted.python,
            found.wanted.sources,
            hashlib.sha256(content).hexdigest(),
            found.allow_attach,
        )
        os.makedirs(folder, exist_ok=True)
        atomic_file.write(found.before.zip, content, mode=0o644, sync=True)
        atomic_file.write(found.before.pth, files.pth_bytes(enabled), mode=0o644, sync=True)
    return look(folder, found.target)


def remove(found: HookState) -> List[str]:
    """Remove what :func:`apply` wrote, and return the removed paths.

    The ``.pth`` is removed first. Raises OSError, and :class:`CannotEnable` if a file was changed;
    then neither file is removed.
    """
    if found.state == CHANGED or (found.state == HALF and found.enabled is None):
        what = (
            found.reason
            if found.state == CHANGED
            else f"{files.PTH} is missing, so the zip's owner is unknown"
        )
        raise CannotEnable(
            f"{what}: nothing was deleted in {found.folder}. Check it, then delete it by hand:  "
            f"rm {shlex.quote(found.pth)} {shlex.quote(found.zip)}"
        )
    gone = []
    for path in (found.pth, found.zip):
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        gone.append(path)
    return gone


def _check_writable(folder: str, target: EnableTarget, user: bool) -> None:
    """Raise :class:`CannotEnable` if nothing can be written there, with what works instead."""
    place = folder
    while not os.path.lexists(place) and place != os.path.dirname(place):
        place = os.path.dirname(place)
    if os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK):
        return
    if user or not target.reads_user_site:
        instead = "For one training:  gpuscope run SCRIPT"
    else:
        instead = (
            f"For your account only:  gpuscope enable --python {shlex.quote(target.python)} --user"
        )
    raise CannotEnable(f"{folder} is not writable. {instead}")
