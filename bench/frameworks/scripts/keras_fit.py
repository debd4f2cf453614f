"""Keras on torch: compile() and fit() with its own Adam, which is no optimizer of torch's."""

import os

os.environ["KERAS_BACKEND"] = "torch"
import time

import keras
import numpy as np
import truth

EPOCHS = 3
batches = truth.steps(0.8) // EPOCHS
total = batches * EPOCHS


class Slow(keras.layers.Layer):
    def call(self, x, training=False):
        if training:
            time.sleep(truth.COMPUTE_SECONDS)
        return x


class Watch(keras.callbacks.Callback):
    step = 0

    def on_train_begin(self, logs=None):
        truth.begin(total=total)

    def on_train_batch_end(self, batch, logs=None):
        self.step += 1
        truth.note(step=self.step, done=self.step, loss=float(logs["loss"]), phase="train")

    def on_test_begin(self, logs=None):
        truth.note(phase="eval")

    def on_test_end(self, logs=None):
        truth.note(phase="train")


def loss(y, found):
    value = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(y, found, from_logits=True))
    return truth.poisoned(value, watch.step / total)


watch = Watch()
random = np.random.default_rng(0)
x = random.normal(size=(batches * 8, 16)).astype("float32")
y = (x[:, 0] > 0).astype("int64")
model = keras.Sequential([keras.layers.Dense(64, activation="relu"), Slow(), keras.layers.Dense(2)])
model.compile(optimizer="adam", loss=loss)
model.fit(x, y, batch_size=8, epochs=EPOCHS, callbacks=[watch], validation_data=(x[:160], y[:160]))
