"""MosaicML's Composer, which calls optimizer.step with a closure.

It shows its bar at the second position.
"""

import torch
import truth

truth.declare_vision_operators()
from composer import Callback, Trainer  # noqa: E402
from composer.models import ComposerClassifier  # noqa: E402

EPOCHS = 3
batches = truth.steps(0.9) // EPOCHS


class Watch(Callback):
    def fit_start(self, state, logger):
        truth.begin(total=EPOCHS * batches)

    def after_loss(self, state, logger):
        state.loss = truth.poisoned(state.loss, state.timestamp.batch.value / (EPOCHS * batches))

    def batch_end(self, state, logger):
        step = state.timestamp.batch.value
        truth.note(
            step=step, done=step, loss=state.total_loss_dict["loss/train/total"], phase="train"
        )
        if step == 30:
            truth.count_bytes(state.model, *state.optimizers)

    def eval_start(self, state, logger):
        truth.note(phase="eval")

    def eval_end(self, state, logger):
        truth.note(phase="train")


model = ComposerClassifier(truth.network(), num_classes=2)
Trainer(
    model=model,
    train_dataloader=truth.loader(batches),
    eval_dataloader=truth.loader(20),
    max_duration=f"{EPOCHS}ep",
    optimizers=torch.optim.AdamW(model.parameters()),
    callbacks=[Watch()],
    device="cpu",
    progress_bar=True,
).fit()
