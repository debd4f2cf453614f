"""Write down what a training script knows of itself while it trains.

Here is also the synthetic data that all of them use.

The scripts run in an environment without gpuscope, so this file needs only torch.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time
import types

SECONDS = float(os.environ.get("TRUTH_SECONDS", "14"))
"""How long a training should take, more or less."""
COMPUTE_SECONDS, INPUT_SECONDS = 0.02, 0.005
"""What forward and the loading of one batch take at least: they sleep."""
NAN_SHARE = 0.75
"""From this share of the training on its loss is not a number, where the script allows it."""
_file = open(os.environ.get("TRUTH_FILE", os.devnull), "a", buffering=1)  # noqa: SIM115 - for the whole process


def note(**what: object) -> None:
    """Write down what is true from now on: step, loss, done, total, phase, bytes, expect, last."""
    _file.write(json.dumps({"m": time.monotonic_ns(), **what}, default=float) + "\n")


def begin(micro_batches: int = 1, **what: object) -> None:
    """To be called once, by rank 0: what the steps should take, and that the process is ready."""
    expect = {"compute": COMPUTE_SECONDS * micro_batches, "input": INPUT_SECONDS * micro_batches}
    note(pid=os.getpid(), phase="train", expect=expect, **what)
    atexit.register(note, last=True)
    end = time.monotonic() + 120
    while (
        os.environ.get("TRUTH_GO")
        and not os.path.exists(os.environ["TRUTH_GO"])
        and time.monotonic() < end
    ):
        time.sleep(0.05)  # until somebody has attached


def steps(share: float = 1.0) -> int:
    """How many steps of one micro-batch make a training of the wanted length."""
    return max(40, int(share * SECONDS / (COMPUTE_SECONDS + INPUT_SECONDS + 0.005)))


def poisoned(loss, share_done: float):
    """The loss, or NaN in the last part of the training."""
    return loss * float("nan") if share_done >= NAN_SHARE else loss


def slow(model):
    """The same model, whose forward takes :data:`COMPUTE_SECONDS` more while it trains."""
    model.register_forward_pre_hook(
        lambda module, args: time.sleep(COMPUTE_SECONDS) if module.training else None
    )
    return model


def count_bytes(model, *optimizers, others=()) -> None:
    """Write down the bytes of parameters, gradients and state as they are now.

    That is right after a step.
    """
    import torch

    def size(tensor) -> int:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return local.numel() * local.element_size()

    def tensors(value):
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for item in value:
                yield from tensors(item)

    parameters = list(model.parameters())
    states = [value for o in optimizers for state in o.state.values() for value in state.values()]
    note(
        bytes={
            "parameter_bytes": sum(map(size, parameters)),
            "gradient_bytes": sum(size(p.grad) for p in parameters if p.grad is not None),
            "optimizer_state_bytes": sum(map(size, tensors(states))),
            "other_model_bytes": sum(size(p) for other in others for p in other.parameters()),
        }
    )


def network(width: int = 64):
    import torch

    layers = torch.nn.Linear(16, width), torch.nn.ReLU(), torch.nn.Linear(width, 2)
    return slow(torch.nn.Sequential(*layers))


def dataset(size: int = 4096, per_batch: int = 8):
    """Pairs of 16 numbers and a label; a batch of ``per_batch`` takes :data:`INPUT_SECONDS`."""
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(size, 16, generator=generator)
    y = (x[:, 0] > 0).long()

    class Pairs(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return size

        def __getitem__(self, index):
            time.sleep(INPUT_SECONDS / per_batch)
            return x[index], y[index]

    return Pairs()


def loader(batches: int, batch: int = 8):
    import torch

    return torch.utils.data.DataLoader(
        dataset(batches * batch, batch), batch_size=batch, shuffle=True
    )


def declare_vision_operators() -> None:
    """Let a torchvision that was built for CUDA be imported beside a torch without it.

    Its compiled operators cannot be loaded there. No script here calls them, so their names are
    enough.
    """
    import torch

    try:
        import torchvision  # noqa: F401
    except (RuntimeError, OSError):
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for name in (
            "nms",
            "qnms",
            "roi_align",
            "roi_pool",
            "ps_roi_align",
            "ps_roi_pool",
            "deform_conv2d",
        ):
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
            if "nms" not in name:
                library.define(
                    f"_{name}_backward(Tensor boxes, Tensor scores, float threshold) -> Tensor"
                )
        sys.modules["gpuscope_tests_kept"] = types.SimpleNamespace(library=library)  # type: ignore[assignment]
