#!/bin/sh
# Let a virtual environment see the torch that the machine's own python3 has. Usage: share-torch.sh VENV_PYTHON
# Succeeds only when the venv can then really import torch: another minor version cannot load its extension modules.
venv_python=$1
"$venv_python" -c 'import torch' 2>/dev/null && exit 0
site=$("${PYTHON:-python3}" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null) || exit 1
purelib=$("$venv_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# Appended to sys.path, so that what is installed in the venv itself comes first.
printf '%s\n' "$site" > "$purelib/machine-torch.pth"
if "$venv_python" -c 'import torch' 2>/dev/null; then
  echo "using the machine's own torch in $site"
else
  rm -f "$purelib/machine-torch.pth"
  exit 1
fi
