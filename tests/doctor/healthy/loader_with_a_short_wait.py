"""Healthy: samples that a worker prepares while the training computes.

Cries wolf: each batch takes a while to come, the first of an epoch longest, when the worker has
just begun.

Runs: steps=40
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """4,096 noisy signals of ten kinds."""

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        kind = index % 10
        return (torch.arange(64.0) * (kind + 1)).sin() + torch.randn(64), kind


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10**9)
    parser.add_argument("--seconds", type=float, default=60.0)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # plain float32 would be worth a word on a GPU
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, depth = (8192, 8) if device.type == "cuda" else (768, 4)
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(nn.Linear(64, width), *layers, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    on_gpu = device.type == "cuda"
    loader = DataLoader(
        Signals(),
        batch_size=64,
        shuffle=True,
        num_workers=4 if on_gpu else 1,
        pin_memory=on_gpu,
        persistent_workers=True,
        drop_last=True,
    )
    ended, step = time.monotonic() + args.seconds, 0
    while step < args.steps and time.monotonic() < ended:
        for inputs, kinds in loader:
            loss = F.cross_entropy(
                model(inputs.to(device, non_blocking=True)), kinds.to(device, non_blocking=True)
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step}  loss {loss.item():.4f}", flush=True)
            if step >= args.steps or time.monotonic() > ended:
                break


if __name__ == "__main__":
    main()
