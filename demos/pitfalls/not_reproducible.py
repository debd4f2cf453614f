"""A segmentation net on one GPU, trained twice from the same seed.

Pitfall: same seed, other weights. cuDNN picks algorithms by the clock, and some backward passes add
up in any order.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Segmenter(nn.Module):
    """(samples, 3, 128, 128) pictures → logits of 8 kinds for every pixel."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, 64, 5, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU()
        )
        self.kinds = nn.Conv2d(64, 8, 1)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        return F.interpolate(
            self.kinds(self.down(pictures)), size=pictures.shape[2:], mode="bilinear"
        )


def train(steps: int) -> torch.Tensor:
    """All weights after so many steps."""
    torch.manual_seed(0)
    device = torch.device("cuda")
    model = Segmenter().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        labels = torch.randint(8, (32, 1, 1), device=device).expand(32, 128, 128)
        pictures = torch.randn(32, 3, 128, 128, device=device) + labels.unsqueeze(1)
        logits = model(pictures).permute(0, 2, 3, 1).flatten(0, 2)
        loss = F.cross_entropy(logits, labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps", type=int, default=1000, help="optimizer steps of each training (default: 1000)"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("This training needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        sys.exit(3)

    torch.backends.cudnn.benchmark = True
    first, second = train(args.steps), train(args.steps)
    differing = (first != second).sum().item()
    largest = (first - second).abs().max().item()
    print(
        f"{differing} of {len(first)} weights differ between the two trainings, by {largest:.1e} "
        "at most"
    )


if __name__ == "__main__":
    main()
