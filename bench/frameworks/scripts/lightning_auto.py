"""Lightning with automatic optimization and accumulation.

There is a validation after each epoch, and Rich's progress bar.
"""

import os
import warnings

import torch
import truth

truth.declare_vision_operators()
import lightning.pytorch as pl  # noqa: E402
from lightning.pytorch.callbacks import RichProgressBar, TQDMProgressBar  # noqa: E402

warnings.filterwarnings("ignore")
ACCUMULATE = int(os.environ.get("ACCUMULATE", "2"))
EPOCHS = 3
batches = truth.steps(0.9) // EPOCHS // ACCUMULATE * ACCUMULATE
total = batches // ACCUMULATE * EPOCHS


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = truth.network()

    def training_step(self, batch, index):
        loss = torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        loss = truth.poisoned(loss, self.trainer.global_step / total)
        self.log("train_loss", loss, prog_bar=True)
        truth.note(loss=loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log(
            "val_loss",
            torch.nn.functional.cross_entropy(self.net(batch[0]), batch[1]),
            prog_bar=True,
        )

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


class Watch(pl.Callback):
    def on_train_start(self, trainer, module):
        truth.begin(ACCUMULATE, total=trainer.estimated_stepping_batches)

    def on_before_zero_grad(self, trainer, module, optimizer):
        if trainer.global_step == 30:
            truth.count_bytes(module, optimizer)

    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        truth.note(step=trainer.global_step, done=trainer.global_step)

    def on_validation_start(self, trainer, module):
        truth.note(phase="eval")

    def on_validation_end(self, trainer, module):
        truth.note(phase="train")


bar = TQDMProgressBar() if os.environ.get("BAR") == "tqdm" else RichProgressBar()
trainer = pl.Trainer(
    max_epochs=EPOCHS,
    accumulate_grad_batches=ACCUMULATE,
    accelerator="cpu",
    logger=False,
    callbacks=[Watch(), bar],
    enable_checkpointing=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
    devices=int(os.environ.get("DEVICES", "1")),
    strategy=os.environ.get("STRATEGY", "auto"),
)
trainer.fit(Module(), truth.loader(batches), truth.loader(20))
