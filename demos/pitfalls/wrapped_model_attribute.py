"""A classifier on all GPUs of this machine, or on its CPU.

Pitfall: DataParallel wraps the model. What the model itself offers, its methods and the names in
its checkpoint, is behind .module from then on.
"""

import argparse

import torch
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs)

    def predict(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layers(inputs).argmax(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000, help="optimizer steps (default: 2000)")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kinds = torch.randn(10, 64, device=device)
    model = nn.DataParallel(Classifier().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, args.steps + 1):
        labels = torch.randint(10, (256,), device=device)
        loss = F.cross_entropy(model(kinds[labels] + torch.randn(256, 64, device=device)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 100 == 0 or step == args.steps:
            print(f"step {step}  loss {loss.item():.4f}", flush=True)

    right = model.predict(kinds) == torch.arange(10, device=device)
    print(f"{right.sum().item()} of 10 kinds are told apart")
    fresh = Classifier()
    fresh.load_state_dict(model.state_dict())
    print("the checkpoint fits a new model")


if __name__ == "__main__":
    main()
