"""The sources of the probe, which an agent puts into a trainer.

In an agent that itself runs from a zip, they are those that came with it.
"""

from __future__ import annotations

import os
from typing import Dict, Tuple

PROBE_PACKAGE = "_gpuscope_probe"
"""The name of the package in the probe's zip. It must differ from "gpuscope", so that it does not
hide a gpuscope that is installed for the trainer.
"""
WIRE = (
    "wire/__init__.py", "wire/columns.py", "wire/frames.py", "wire/codec.py", "wire/blobs.py",
    "wire/boxes.py", "wire/code_owner.py", "wire/injected.py", "wire/loss_text.py",
)  # fmt: skip
OF_RUN = "probe/diagnosis.py"
"""What only a trainer needs that ``gpuscope run`` starts."""

_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

Contents = Dict[str, bytes]


def probe_sources() -> Contents:
    """Return {path in the probe's zip: source}, for a trainer that runs already."""
    if not os.path.isdir(_ROOT):
        return _sources_from_own_zip()
    contents = sources_of(("__init__.py", *WIRE), ("probe",))
    del contents[OF_RUN]
    return in_package(contents)


def in_package(contents: Contents) -> Contents:
    """Return sources under the name that the probe has in a trainer."""
    return {f"{PROBE_PACKAGE}/{name}": content for name, content in contents.items()}


def sources_of(files: Tuple[str, ...], folders: Tuple[str, ...]) -> Contents:
    names = list(files)
    for folder in folders:
        found = os.listdir(os.path.join(_ROOT, folder))
        names.extend(f"{folder}/{name}" for name in found if name.endswith(".py"))
    contents = {}
    for name in sorted(names):
        with open(os.path.join(_ROOT, name), "rb") as stream:
            contents[name] = stream.read()
    return contents


def _sources_from_own_zip() -> Contents:
    """Return the probe's sources from the zip that this code was itself loaded from."""
    import zipfile

    found = {}
    with zipfile.ZipFile(__loader__.archive) as archive:  # type: ignore[name-defined]
        for name in archive.namelist():
            inside = name.partition("/")[2]
            if name.endswith(".py") and (
                inside in ("__init__.py", *WIRE) or inside.startswith("probe/")
            ):
                found[f"{PROBE_PACKAGE}/{inside}"] = archive.read(name)
    return found
