"""A Learner of fastai with its own AdamW, which is no optimizer of torch's."""

import torch
import truth

truth.declare_vision_operators()
from fastai.callback.core import Callback  # noqa: E402
from fastai.data.core import DataLoaders  # noqa: E402
from fastai.learner import Learner  # noqa: E402

EPOCHS = 2
batches = truth.steps(0.9) // EPOCHS


class Watch(Callback):
    order = 60  # after the Recorder

    def before_fit(self):
        truth.begin(total=self.n_epoch * len(self.dls.train))

    def after_loss(self):
        if self.training:
            self.learn.loss_grad = truth.poisoned(self.learn.loss_grad, self.pct_train)
            self.learn.loss = self.learn.loss_grad.clone()

    def after_step(self):
        if self.train_iter == 30:
            truth.count_bytes(self.model)

    def after_batch(self):
        if self.training:
            step = self.learn.train_iter
            truth.note(step=step, done=step, loss=self.recorder.losses[-1].item(), phase="train")

    def before_validate(self):
        truth.note(phase="eval")

    def before_train(self):
        truth.note(phase="train")


loaders = DataLoaders(truth.loader(batches), truth.loader(20))
learner = Learner(
    loaders, truth.network(), loss_func=torch.nn.functional.cross_entropy, cbs=[Watch()]
)
learner.fit(EPOCHS, 1e-3)
