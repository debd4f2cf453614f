"""A small regression, first as it is, then compiled, and which of them is faster.

Cured: the clock starts when the model is compiled. fullgraph=True makes a graph break an error, so
there is none.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--backend", default="inductor", help="torch.compile's backend (default: inductor)"
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=2000,
        help="optimizer steps after the comparison (default: 2000)",
    )
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 1)).to(
        device
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(256, 64, device=device)
    targets = inputs.sum(1, keepdim=True).sin()

    def train(network: nn.Module) -> float:
        loss = F.mse_loss(network(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    def milliseconds(network: nn.Module) -> float:
        start = time.perf_counter()
        train(network)
        return 1e3 * (time.perf_counter() - start)

    for _ in range(10):
        train(model)
    eager = milliseconds(model)
    compiled = torch.compile(model, backend=args.backend, fullgraph=True)
    for _ in range(10):
        train(compiled)
    fast = milliseconds(compiled)
    print(
        f"eager {eager:.2f} ms, compiled {fast:.2f} ms: {fast / eager:.2f} times as long",
        flush=True,
    )
    for step in range(1, args.steps + 1):
        loss = train(compiled)
        if step % 500 == 0 or step == args.steps:
            print(f"step {step}  loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
