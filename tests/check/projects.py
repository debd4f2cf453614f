"""Small projects with a training, in real git repositories, and a way to check them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.fakes.forking import forking_python
from tests.fakes.program import program

ROOT = Path(__file__).parents[2]
TRAIN = """\
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 512
RECOMPUTE = True


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        wide = 4 * width
        self.inner = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x):
        return x + self.inner(x)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if RECOMPUTE else block(x)
        return x


def make(batch, device):
    model = Net(WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, lambda: model(torch.randn(batch, WIDTH, device=device)).square().mean()
"""
SETTINGS = """\
[tool.gpuscope.check.training.net]
factory = "train:make"
batch = 4096
regression = "2 %"
"""


def git(folder: Path, *words: str) -> str:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    environ |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def commit(folder: Path, text: str = "change") -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", text)


def project(folder: Path, settings: str = SETTINGS, train: str = TRAIN) -> Path:
    """A repository with one commit."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "train.py").write_text(train)
    (folder / "pyproject.toml").write_text(settings)
    (folder / ".gitignore").write_text("__pycache__\n")
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "first")
    return folder


def check(folder: Path, *words: str, **environ: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``gpuscope check``."""
    inherited = {key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"}
    own = {"PYTHONPATH": str(ROOT), "GPUSCOPE_LAB_PYTHON": forking_python(folder.parent)}
    env = {**inherited, **own, **environ}
    done = program("check", *words, cwd=folder, env=env, timeout=200)
    return done.returncode, done.stdout, done.stderr


def document(folder: Path, *words: str) -> Any:
    """The document of ``gpuscope check --json``."""
    code, out, err = check(folder, "--json", *words)
    assert out, err
    found = json.loads(out)
    assert found["exit_code"] == code
    return found
