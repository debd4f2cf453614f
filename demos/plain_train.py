"""Run an ordinary training script.

A small convolutional net learns to tell twenty kinds of noisy images apart.

python demos/plain_train.py                      on the GPU if there is one, Ctrl-C ends it
python demos/plain_train.py --steps 200 --amp
"""

import argparse
import itertools

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

try:
    from tqdm import tqdm
except ImportError:
    tqdm = None

KINDS = 20


def images(count: int, pixels: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    patterns = F.interpolate(
        torch.randn(KINDS, 3, 4, 4, generator=generator), size=(pixels, pixels), mode="bilinear"
    )
    labels = torch.randint(KINDS, (count,), generator=generator)
    return TensorDataset(patterns[labels], labels)


def network(width: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 2, 4):
        layers += [
            nn.Conv2d(channels, factor * width, 3, padding=1, bias=False),
            nn.BatchNorm2d(factor * width),
            nn.ReLU(),
        ]
        layers += [
            nn.Conv2d(factor * width, factor * width, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
        channels = factor * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, KINDS))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20000, help="optimizer steps (default: 20000)")
    parser.add_argument("--batch", type=int, help="samples in a batch (default: 32, on a GPU 512)")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader workers (default: 0)")
    parser.add_argument("--amp", action="store_true", help="bf16 autocast")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()

    device = torch.device(args.device)
    on_gpu = device.type == "cuda"
    torch.manual_seed(0)
    model = network(width=128 if on_gpu else 16).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    pixels, noise = (64, 24.0) if on_gpu else (32, 8.0)
    loader = DataLoader(
        images(16384 if on_gpu else 2048, pixels),
        batch_size=args.batch or (512 if on_gpu else 32),
        shuffle=True,
        num_workers=args.workers,
        pin_memory=on_gpu,
        drop_last=True,
    )

    step = 0
    bar = tqdm(total=args.steps) if tqdm else None
    for epoch in itertools.count():
        for inputs, labels in loader:
            inputs, labels = (
                inputs.to(device, non_blocking=True),
                labels.to(device, non_blocking=True),
            )
            inputs = inputs + noise * torch.randn_like(inputs)  # never the same image twice
            optimizer.zero_grad()
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.amp):
                loss = F.cross_entropy(model(inputs), labels, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            step += 1
            shown = step % 20 == 0 or step == args.steps
            if bar:
                bar.update()
                if shown:
                    bar.set_postfix(epoch=epoch, loss=f"{loss.item():.4f}")
            elif shown:
                print(
                    f"epoch {epoch}  step {step}/{args.steps}  loss {loss.item():.4f}", flush=True
                )
            if step == args.steps:
                return


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        pass
