"""A small language model on one GPU.

Pitfall: CPU and GPU tensors meet in one operation. Every tensor made along the way has a device
too, an index as well.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F


class Reader(nn.Module):
    """(samples, length) tokens → logits of the token that follows each."""

    def __init__(self, vocabulary: int, length: int, width: int):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.encoder = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1])
        return self.head(self.encoder(self.tokens(tokens) + self.positions(positions)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=5000, help="optimizer steps (default: 5000)")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("This training needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        sys.exit(3)

    device = torch.device("cuda")
    model = Reader(vocabulary=1000, length=64, width=128).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        text = (torch.randint(1000, (32, 1)) + torch.arange(65)).remainder(1000).to(device)
        loss = F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step == args.steps:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
