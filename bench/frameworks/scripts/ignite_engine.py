"""An Engine of ignite as its documentation shows it.

The loss is its output, and there is no progress bar.
"""

import torch
import truth
from ignite.engine import Engine, Events

EPOCHS = 2
batches = truth.steps() // EPOCHS
model = truth.network()
optimizer = torch.optim.Adam(model.parameters())


def update(engine, batch):
    model.train()
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    loss = truth.poisoned(loss, engine.state.iteration / (batches * EPOCHS))
    loss.backward()
    optimizer.step()
    return loss.item()


def evaluate(engine, batch):
    model.eval()
    with torch.no_grad():
        return model(batch[0]), batch[1]


trainer, evaluator = Engine(update), Engine(evaluate)


@trainer.on(Events.ITERATION_COMPLETED)
def watch(engine):
    step = engine.state.iteration
    truth.note(step=step, done=step, loss=engine.state.output, phase="train")
    if step == 30:
        truth.count_bytes(model, optimizer)


@trainer.on(Events.EPOCH_COMPLETED)
def validate(engine):
    truth.note(phase="eval")
    evaluator.run(truth.loader(20))
    model.train()
    truth.note(phase="train")


truth.begin(total=batches * EPOCHS)
trainer.run(truth.loader(batches), max_epochs=EPOCHS)
