"""A GAN in Lightning with manual optimization.

It has two optimizers and two losses, none of them the loss.
"""

import warnings

import torch
import truth

truth.declare_vision_operators()
import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.callbacks import RichProgressBar  # noqa: E402

warnings.filterwarnings("ignore")
EPOCHS = 2
batches = truth.steps(0.6) // EPOCHS


class Gan(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.make = truth.slow(
            torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
        )
        self.judge = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
        )

    def training_step(self, batch, index):
        first, second = self.optimizers()
        fake = self.make(torch.randn(len(batch[0]), 4))
        judged = torch.nn.functional.softplus
        d_loss = judged(self.judge(fake.detach())).mean() + judged(-self.judge(batch[0])).mean()
        first.zero_grad()
        self.manual_backward(d_loss)
        first.step()
        g_loss = judged(-self.judge(fake)).mean()
        second.zero_grad()
        self.manual_backward(g_loss)
        second.step()
        self.log_dict({"d_loss": d_loss, "g_loss": g_loss}, prog_bar=True)

    def configure_optimizers(self):
        return [
            torch.optim.Adam(self.judge.parameters()),
            torch.optim.Adam(self.make.parameters()),
        ], []


class Watch(pl.Callback):
    def on_train_start(self, trainer, module):
        truth.begin(total=batches * EPOCHS, no_loss="two losses")

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
        truth.note(step=done, done=done)
        if done == 30:
            truth.count_bytes(module, *[o.optimizer for o in module.optimizers()])


trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    callbacks=[Watch(), RichProgressBar()],
    enable_checkpointing=False,
    enable_model_summary=False,
)
trainer.fit(Gan(), truth.loader(batches))
