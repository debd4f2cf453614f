"""Train a classifier of digits in the style of Lightning's documentation.

There is one module by itself, and one with its own loop.
"""

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, random_split
from torchvision import transforms
from torchvision.datasets import MNIST


class Classifier(L.LightningModule):
    def __init__(self, lr=1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)
        )

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, number):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, number):
        x, y = batch
        self.log("val_acc", (self(x).argmax(dim=1) == y).float().mean(), prog_bar=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class TwoLosses(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch, number):
        x, y = batch
        optimizer = self.optimizers()
        for _ in range(2):
            loss = nn.functional.cross_entropy(self(x), y)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.log("train_loss", loss.item())


class Digits(L.LightningDataModule):
    def setup(self, stage):
        full = MNIST(".", train=True, download=True, transform=transforms.ToTensor())
        self.train, self.val = random_split(
            full, [55000, 5000], generator=torch.Generator().manual_seed(42)
        )

    def train_dataloader(self):
        return DataLoader(self.train, batch_size=32, shuffle=True)

    def val_dataloader(self):
        return DataLoader(self.val, batch_size=32)


if __name__ == "__main__":
    torch.backends.cudnn.benchmark = True
    trainer = L.Trainer(max_epochs=3, accelerator="cuda", devices=1, precision="bf16-mixed")
    trainer.fit(Classifier(), datamodule=Digits())
    checkpoint = torch.load("last.ckpt")
    model = Classifier()
    model.load_state_dict(checkpoint["state_dict"])
    model.eval()
