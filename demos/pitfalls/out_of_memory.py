"""A classifier on one GPU, with an evaluation now and then.

Pitfall: the evaluation runs out of memory, for each of its losses keeps the activations it was
computed from. This fills the whole card, so it wants one that nobody else uses.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, DEPTH = 4096, 8


def batch(kinds: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(len(kinds), (size,), device=kinds.device)
    return kinds[labels] + torch.randn(size, WIDTH, device=kinds.device), labels


def evaluate(model: nn.Module, kinds: torch.Tensor, size: int) -> float:
    model.eval()
    total = torch.zeros((), device=kinds.device)
    for _ in range(200):
        inputs, labels = batch(kinds, size)
        total = total + F.cross_entropy(model(inputs), labels)
    model.train()
    return total.item() / 200


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--steps",
        type=int,
        default=200,
        help="optimizer steps (default: 200)",
    )
    parser.add_argument(
        "--every", type=int, default=50, help="steps from one evaluation to the next (default: 50)"
    )
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("This training needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        sys.exit(3)
    free, total = torch.cuda.mem_get_info()
    if free < 0.8 * total:
        print(
            "Another program uses this GPU. Choose a free one: CUDA_VISIBLE_DEVICES=N",
            file=sys.stderr,
        )
        sys.exit(3)

    device = torch.device("cuda")
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(0)
    kinds = torch.randn(100, WIDTH, device=device)
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, len(kinds))).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    evaluation_batch = free // 100 // (DEPTH * WIDTH * 4)
    held_out = 200 * evaluation_batch
    print(f"an evaluation of {held_out:,} samples every {args.every} steps", flush=True)
    for step in range(1, args.steps + 1):
        inputs, labels = batch(kinds, 256)
        loss = F.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % args.every == 0 or step == args.steps:
            held = evaluate(model, kinds, evaluation_batch)
            peak = torch.cuda.max_memory_allocated() / 2**30
            print(
                f"step {step}  loss {loss.item():.4f}  held-out {held:.4f}  peak {peak:.1f} GiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
