"""A classifier with batch normalisation on two GPUs.

Pitfall: the last batch of an epoch is not a multiple of the number of GPUs. DataParallel cuts it
into unequal parts, and what a layer makes of a part of one sample is up to the layer.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=50, help="epochs (default: 50)")
    args = parser.parse_args()
    if torch.cuda.device_count() < 2:
        print("This training needs two CUDA GPUs.", file=sys.stderr)
        sys.exit(3)

    torch.manual_seed(0)
    device = torch.device("cuda", 0)
    labels = torch.randint(10, (1283,))
    data = TensorDataset(torch.randn(10, 64)[labels] + torch.randn(1283, 64), labels)
    loader = DataLoader(data, batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 10)
    ).to(device)
    model = nn.DataParallel(model, device_ids=[0, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(args.epochs):
        for step, (inputs, kinds) in enumerate(loader, 1):
            if step == 1 or len(inputs) != 64:
                parts = " + ".join(str(len(part)) for part in inputs.chunk(2))
                print(f"epoch {epoch} step {step}: {parts} samples", flush=True)
            loss = F.cross_entropy(model(inputs.to(device)), kinds.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch} done, loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
