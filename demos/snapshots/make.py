"""Make the allocator snapshots of this folder, on one H200.

Run it with ``python demos/snapshots/make.py DIRECTORY [SCENE]``.

It runs real trainings with torch's own memory history switched on. Afterwards it removes the
directories from the file names in stacks and compresses the files with gzip; nothing else is
changed. It needs CUDA.
"""

import gc
import gzip
import os
import pickle
import sys

import torch
from torch import nn

MiB = 1 << 20


def shortened(snapshot: dict) -> dict:
    """Return the snapshot with file names relative to their package or working directory.

    Stacks share their frames, so each frame is changed only once.
    """
    done = set()

    def frames_of(thing: dict) -> None:
        for key in ("frames", "forward_frames"):
            for frame in thing.get(key) or ():
                if id(frame) not in done:
                    done.add(id(frame))
                    name = frame["filename"]
                    for mark in ("site-packages/", "dist-packages/"):
                        name = name.rpartition(mark)[2]
                    frame["filename"] = os.path.basename(name) if name.startswith("/") else name

    for segment in snapshot["segments"]:
        frames_of(segment)
        for block in segment["blocks"]:
            frames_of(block)
    for trace in snapshot["device_traces"]:
        for entry in trace:
            frames_of(entry)
    return snapshot


def keep(directory: str, name: str) -> None:
    """Write the present state of the allocator."""
    snapshot = shortened(torch.cuda.memory._snapshot())
    path = os.path.join(directory, name + ".pickle.gz")
    with gzip.GzipFile(path, "wb", compresslevel=9, mtime=0) as file:
        file.write(pickle.dumps(snapshot, protocol=2))
    entries = sum(map(len, snapshot["device_traces"]))
    print(
        f"{name}: {entries} entries, {len(snapshot['segments'])} segments, "
        f"{os.path.getsize(path)} bytes"
    )


def fresh(entries: int) -> None:
    """Start with an empty allocator and a new history."""
    torch.cuda.memory._record_memory_history(enabled=None)
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=entries)


def model_and_optimizer() -> tuple:
    """Return a small transformer on the GPU, and AdamW."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, 0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(256, 256)
    ).cuda()
    return model, torch.optim.AdamW(model.parameters())


def step(model: nn.Module, optimizer: torch.optim.Optimizer, length: int) -> torch.Tensor:
    """Make one training step on random sequences; return the loss with its graph."""
    x = torch.randn(16, length, 256, device="cuda")
    loss = (model(x) - x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def training(directory: str) -> None:
    """Make three ordinary steps, recorded from the first allocation on."""
    fresh(20_000)
    model, optimizer = model_and_optimizer()
    for _ in range(3):
        step(model, optimizer, 128)
    keep(directory, "training")


def leak(directory: str) -> None:
    """Keep every step's output in a list; snapshots before and after four more steps."""
    fresh(20_000)
    model, optimizer = model_and_optimizer()
    kept = []

    def remember(x: torch.Tensor) -> None:
        kept.append(model(x))  # with its graph: the mistake

    step(model, optimizer, 64)
    keep(directory, "leak-before")
    for _ in range(4):
        remember(torch.randn(16, 64, 256, device="cuda"))
        step(model, optimizer, 64)
    keep(directory, "leak-after")


def fragmented(directory: str) -> None:
    """Run sequences of many lengths, and keep every other result.

    That leaves free memory in pieces too small for what comes next.
    """
    fresh(4_000)
    pieces = [
        torch.empty(size * MiB, dtype=torch.uint8, device="cuda")
        for size in (3, 5, 7, 4, 6, 8) * 12
    ]
    del pieces[::2]
    keep(directory, "fragmented")


def failing(directory: str) -> None:
    """Ask for 2 GiB that do not fit though 4.3 GiB are free.

    Large blocks of an evaluation were cut up by what stays. The rest of the card is taken first.
    With expandable segments it fits.
    """
    fresh(4_000)
    free, _ = torch.cuda.mem_get_info()
    ballast = torch.empty(free - 6400 * MiB, dtype=torch.uint8, device="cuda")
    large = [torch.empty(1024 * MiB, dtype=torch.uint8, device="cuda") for _ in range(6)]
    large.clear()
    kept = [torch.empty(320 * MiB, dtype=torch.uint8, device="cuda") for _ in range(18)]
    kept = [piece for number, piece in enumerate(kept) if number % 3 == 0]
    try:
        wanted = torch.empty(2048 * MiB, dtype=torch.uint8, device="cuda")
        print(f"failing: it fits, {torch.cuda.max_memory_reserved():,} bytes were reserved at most")
        del wanted
    except torch.OutOfMemoryError as error:
        print(f"failing: {error}")
        keep(directory, "failing")
    print(f"failing: {torch.cuda.memory_stats()['num_alloc_retries']} retries")
    del ballast, kept


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not torch.cuda.is_available():
        sys.exit(
            f"{__doc__}\nThis machine: CUDA {'is' if torch.cuda.is_available() else 'is not'} "
            "available."
        )
    os.makedirs(sys.argv[1], exist_ok=True)
    for scene in (training, leak, fragmented, failing):
        if sys.argv[2:] in ([], [scene.__name__]):
            scene(sys.argv[1])
