"""A small convolutional net on pictures that a file server holds.

Cured: worker processes read ahead, into pinned memory where there is a GPU to copy it to.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """4,096 labelled pictures, each 5 ms away."""

    def __init__(self) -> None:
        self.kinds = torch.randn(10, 3, 64, 64)

    def __len__(self) -> int:
        return 4096

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.005)
        label = index % 10
        picture = self.kinds[label] + torch.randn(3, 64, 64)
        return picture.flip(2) if index % 2 else picture, label


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="how long to train (default: 60)"
    )
    parser.add_argument("--steps", type=int, default=1_000_000, help="optimizer steps at most")
    args = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    width, depth = (512, 8) if device.type == "cuda" else (8, 2)
    convolutions = [
        layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU())
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10)]
    model = nn.Sequential(nn.Conv2d(3, width, 3, stride=2, padding=1), *convolutions, *head).to(
        device
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(
        Pictures(),
        batch_size=16,
        shuffle=True,
        drop_last=True,
        num_workers=8,
        pin_memory=device.type == "cuda",
        persistent_workers=True,
    )

    step, waited, begun = 0, 0.0, time.monotonic()
    measured_from = begun
    while step < args.steps and time.monotonic() < begun + args.seconds:
        asked = time.monotonic()
        for inputs, labels in loader:
            waited += time.monotonic() - asked
            loss = F.cross_entropy(model(inputs.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            shown, step, asked = loss.item(), step + 1, time.monotonic()
            over = step == args.steps or asked > begun + args.seconds
            if step == 1:
                waited, measured_from = 0.0, asked
            elif step % 10 == 0 or over:
                share = waited / (asked - measured_from)
                print(
                    f"step {step}  loss {shown:.4f}  waited for input {share:.0%} of the time",
                    flush=True,
                )
            if over:
                break


if __name__ == "__main__":
    main()
