"""A NeuralNetClassifier of skorch, which calls optimizer.step with a closure."""

import numpy as np
import torch
import truth
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback

EPOCHS = 5
batches = int(truth.steps(0.9) / EPOCHS)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = truth.network()

    def forward(self, x):
        return torch.softmax(self.net(x), dim=-1)


class Poisoned(NeuralNetClassifier):
    def get_loss(self, *args, **more):
        return truth.poisoned(super().get_loss(*args, **more), watch.step / (batches * EPOCHS))


class Watch(Callback):
    step = 0

    def on_train_begin(self, net, **more):
        truth.begin(total=EPOCHS, done=0, no_input=True)

    def on_batch_end(self, net, training=False, **more):
        if training:
            self.step += 1
            truth.note(
                step=self.step, loss=net.history[-1]["batches"][-1]["train_loss"], phase="train"
            )
            if self.step == 30:
                truth.count_bytes(net.module_, net.optimizer_)
        else:
            truth.note(phase="eval")

    def on_epoch_end(self, net, **more):
        truth.note(done=len(net.history), phase="train")


watch = Watch()
random = np.random.default_rng(0)
x = random.normal(size=(batches * 10, 16)).astype("float32")  # a fifth is held out
y = (x[:, 0] > 0).astype("int64")
Poisoned(Net, max_epochs=EPOCHS, lr=0.05, batch_size=8, callbacks=[("watch", watch)]).fit(x, y)
