"""YOLO of ultralytics from a config, on a few images made here."""

import os
import tempfile
from pathlib import Path

os.environ["YOLO_OFFLINE"] = "true"
import truth

truth.declare_vision_operators()
import numpy as np  # noqa: E402
import torchvision  # noqa: E402
from PIL import Image  # noqa: E402
from ultralytics import YOLO, settings  # noqa: E402

settings.update({"sync": False})
# The one operator that its last validation needs, and that a torchvision for CUDA cannot give here.
torchvision.ops.nms = lambda boxes, scores, threshold: scores.argsort(descending=True)
EPOCHS = 3
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    random = np.random.default_rng(0)
    for part, size in (("train", 32), ("val", 4)):
        (folder / "images" / part).mkdir(parents=True)
        (folder / "labels" / part).mkdir(parents=True)
        for index in range(size):
            picture = random.integers(0, 255, (64, 64, 3)).astype("uint8")
            Image.fromarray(picture).save(folder / "images" / part / f"{index}.jpg")
            (folder / "labels" / part / f"{index}.txt").write_text("0 0.5 0.5 0.4 0.4\n")
    (folder / "data.yaml").write_text(
        f"path: {folder}\ntrain: images/train\nval: images/val\nnames: [thing]\n"
    )
    model = YOLO("yolov8n.yaml")
    steps = 0

    def begin(trainer):
        truth.begin(total=EPOCHS * len(trainer.train_loader), unpoisoned=True, no_sleeps=True)

        def stepped(optimizer, args, kwargs):
            global steps
            steps += 1
            truth.note(step=steps)
            if steps == 6:
                truth.count_bytes(trainer.model, optimizer)

        trainer.optimizer.register_step_post_hook(stepped)

    done = 0

    def batch(trainer):
        global done
        done += 1
        truth.note(
            done=done, loss=sum(float(value) for value in trainer.tloss.values()), phase="train"
        )

    model.add_callback("on_train_start", begin)
    model.add_callback("on_train_batch_end", batch)
    model.add_callback("on_train_epoch_end", lambda trainer: truth.note(phase="eval"))
    model.add_callback("on_train_epoch_start", lambda trainer: truth.note(phase="train"))
    model.train(
        data=str(folder / "data.yaml"),
        epochs=EPOCHS,
        imgsz=64,
        batch=4,
        device="cpu",
        workers=0,
        plots=False,
        val=False,
        amp=False,
        project=str(folder / "runs"),
        warmup_epochs=0,
        nbs=4,
        verbose=True,
        save=False,
    )
