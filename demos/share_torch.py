"""Let a virtual environment see the torch of the Python that runs this.

It also sees the packages that torch requires, and nothing else.

python3 demos/share_torch.py VENV_PYTHON

If the virtual environment saw the whole outer environment, pip would regard the tools there as
installed and not install their programs, and pytest would load the plugins there. So this script
puts links to torch and its requirements into a folder of the virtual environment. It exits with 1
if there is no torch, or if the virtual environment cannot import it: another minor version of
Python cannot load its extension modules.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata, util
from pathlib import Path

WANTED = ("torch", "numpy")
"""The list includes numpy, without which torch warns although it does not require it."""


def imports_torch(python: str) -> bool:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return not subprocess.run(
        [python, "-c", "import torch"], env=environ, capture_output=True
    ).returncode


def parts_of_torch() -> dict[str, Path]:
    """Return all files and folders of torch and its requirements, by name in site-packages."""
    found: dict[str, Path] = {}
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return found
    found["torch"] = Path(spec.origin).parent  # an editable install may keep it elsewhere
    known: set[str] = set()
    waiting = list(WANTED)
    while waiting:
        name = waiting.pop()
        if name in known:
            continue
        known.add(name)
        try:
            one = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        waiting += [
            re.split(r"[^\w.-]", line)[0] for line in one.requires or () if "extra ==" not in line
        ]
        if one.files is None:  # installed by a system's packager, who keeps the list elsewhere
            names = set((one.read_text("top_level.txt") or name).split())
        else:
            names = {file.parts[0] for file in one.files} - {"..", "/", "__pycache__"}
        for part in names:
            found.setdefault(part, Path(str(one.locate_file(part))))
    return found


def main(python: str) -> int:
    if imports_torch(python):
        return 0
    parts = parts_of_torch()
    if not parts:
        return 1
    folder = Path(python).absolute().parent.parent / "machine-torch"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, path in parts.items():
        if path.exists():
            (folder / name).symlink_to(path.absolute())
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    purelib = subprocess.run(
        [python, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    # Appended to sys.path, so that what is installed in the environment itself comes first.
    line = Path(purelib, "machine-torch.pth")
    line.write_text(f"{folder}\n")
    if imports_torch(python):
        print(f"using the machine's own torch in {parts['torch']}")
        return 0
    line.unlink()
    shutil.rmtree(folder)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
