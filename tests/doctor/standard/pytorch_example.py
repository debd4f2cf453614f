"""Train a classifier of pictures in the style of PyTorch's own examples.

It has plain loops and arguments in one file.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder, size):
        self.files = sorted(folder.glob("*.pt"))
        self.size = size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, number):
        return torch.load(self.files[number]), number % 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3)
        self.out = nn.Linear(32, 10)

    def forward(self, x):
        return self.out(F.relu(self.conv(x)).mean(dim=(2, 3)))


def train(args, model, device, loader, optimizer, epoch):
    model.train()
    total_loss = 0
    for batch, (data, target) in enumerate(loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        output = model(data)
        loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()
        total_loss += loss
        if batch % args.log_interval == 0:
            print(
                f"Train Epoch: {epoch} [{batch * len(data)}/{len(loader.dataset)}]\tLoss: "
                f"{loss.item():.6f}"
            )
    return total_loss / len(loader)


def test(model, device, loader):
    model.eval()
    correct = 0
    for data, target in loader:
        data, target = data.to(device), target.to(device)
        correct += model(data).argmax(dim=1).eq(target).sum().item()
    print(f"Accuracy: {correct}/{len(loader.dataset)}")


def main():
    parser = argparse.ArgumentParser(description="Pictures")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--resume", default="")
    args = parser.parse_args()
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda")
    train_loader = DataLoader(
        Pictures(args.folder / "train", size=224),
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,
    )
    test_loader = DataLoader(
        Pictures(args.folder / "test", size=224),
        batch_size=args.batch_size,
        shuffle=True,
        num_workers=2,  # one is enough, two are quiet
    )
    model = nn.DataParallel(Net().to(device))
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    if args.resume:
        state = torch.load(args.resume)
        model.load_state_dict(state["model"])
    for epoch in range(1, 4):
        begun = time.time()
        out = model(torch.zeros(1, 3, 224, 224, device=device))
        print(
            "a forward pass takes",
            out.shape,
            round(time.time() - begun, 3),
            "seconds on this machine, which says how much there is to gain",
        )
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader)


if __name__ == "__main__":
    main()
