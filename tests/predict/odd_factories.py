"""Factories that a prediction must survive.

They are what users hand in by mistake, and what cannot be predicted.
"""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Made = tuple[Any, Any, Callable[[], Any]]


def _made(device: Any, forward: Callable[[nn.Module], Any]) -> Made:
    model = nn.Linear(64, 64).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: forward(model)


def raises(batch: int, device: Any) -> Made:
    raise ValueError("the data is not there")


def raises_forward(batch: int, device: Any) -> Made:
    def forward(model: nn.Module) -> Any:
        return model(torch.zeros(batch, 65, device=device)).sum()

    return _made(device, forward)


def exits(batch: int, device: Any) -> Made:
    sys.exit(7)


def aborts(batch: int, device: Any) -> Made:
    print("about to abort", flush=True)
    os.abort()


def leaves(batch: int, device: Any) -> Made:
    os._exit(0)


def sleeps(batch: int, device: Any) -> Made:
    time.sleep(600)
    raise AssertionError


def prints(batch: int, device: Any) -> Made:
    line = "\x1b[31mnoise " * 1000
    for _ in range(1500):
        print(line)
    return _made(device, lambda model: model(torch.zeros(batch, 64, device=device)).sum())


def hoards(batch: int, device: Any) -> Made:
    held = bytearray(64 << 30)
    raise AssertionError(len(held))


def two_things(batch: int, device: Any) -> Any:
    return nn.Linear(2, 2), None


def vector_loss(batch: int, device: Any) -> Made:
    return _made(device, lambda model: model(torch.zeros(batch, 64, device=device)))


def mixed_devices(batch: int, device: Any) -> Made:
    return _made(device, lambda model: model(torch.zeros(batch, 64)).sum())


def ignores_device(batch: int, device: Any) -> Made:
    """Written for CUDA alone, in every way that there is of saying so."""
    model = nn.Linear(64, 64).cuda()
    data = torch.randn(batch, 64, pin_memory=True).to("cuda:0", non_blocking=True)
    more = torch.zeros(batch, 64, device="cuda") + torch.tensor(1.0, device=torch.device("cuda", 0))
    assert data.is_cuda
    assert torch.cuda.is_available()
    assert torch.cuda.current_device() == 0
    with torch.cuda.stream(torch.cuda.Stream()):
        more = more.cuda()
    torch.cuda.synchronize()
    return model, torch.optim.AdamW(model.parameters()), lambda: model(data + more).sum()


def cloned(batch: int, device: Any) -> Made:
    """Layers that are copies of each other, made on the device, fed by a loader with workers."""
    layer = nn.Linear(64, 64, device=device)
    layer.register_buffer("known", torch.tensor([1.0, 2.0], device=device))
    model = nn.Sequential(layer, copy.deepcopy(layer))
    samples = torch.utils.data.TensorDataset(torch.randn(64, 64))
    loader = torch.utils.data.DataLoader(
        samples, batch, shuffle=True, num_workers=2, pin_memory=True
    )
    batches = iter(loader)

    def forward() -> Any:
        return model(next(batches)[0].to(device, non_blocking=True)).sum()

    return model, torch.optim.AdamW(model.parameters()), forward


def on_host(batch: int, device: Any) -> Made:
    model = nn.Linear(64, 64)
    return (
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        lambda: model(torch.zeros(batch, 64)).sum(),
    )


def reads_values(batch: int, device: Any) -> Made:
    def forward(model: nn.Module) -> Any:
        out = model(torch.randn(batch, 64, device=device))
        chosen = out[out > 0]
        return chosen.sum() if chosen.sum().item() > -1e9 else out.sum()

    return _made(device, forward)


def into_numpy(batch: int, device: Any) -> Made:
    """Reads memory as another library would: numpy itself may be missing, or is given zeros."""

    def forward(model: nn.Module) -> Any:
        out = model(torch.randn(batch, 64, device=device))
        return out.sum() * out.detach().cpu().untyped_storage()[0]

    return _made(device, forward)


@torch.library.custom_op("gpuscope_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


def custom_kernel(batch: int, device: Any) -> Made:
    return _made(
        device,
        lambda model: (unknown(torch.randn(batch, 64, device=device)) * model.weight.sum()).sum(),
    )


def half_weights(batch: int, device: Any) -> Made:
    """The model is in bfloat16, and the samples are not."""

    def forward(model: nn.Module) -> Any:
        return model.to(torch.bfloat16)(torch.zeros(batch, 64, device=device)).float().sum()

    return _made(device, forward)


def half_attention(batch: int, device: Any) -> Made:
    """Keys are kept in bfloat16; autocast casts the queries too, and nothing else does."""

    def forward(model: nn.Module) -> Any:
        query = model(torch.zeros(batch, 4, 16, 64, device=device))
        return nn.functional.scaled_dot_product_attention(
            query, query.to(torch.bfloat16), query
        ).sum()

    return _made(device, forward)


def sums_along_edges(batch: int, device: Any) -> Made:
    """Messages of float32 are added into nodes that autocast has made in half precision."""

    def forward(model: nn.Module) -> Any:
        nodes = model(torch.zeros(batch, 64, device=device))
        to = torch.zeros(batch, dtype=torch.long, device=device)
        messages = nodes * torch.ones(batch, 1, device=device)
        return torch.zeros_like(nodes).index_add(0, to, messages).float().sum()

    return _made(device, forward)


def fills_by_mask(batch: int, device: Any) -> Made:
    """torch fills with a single number of another type."""

    def forward(model: nn.Module) -> Any:
        out = model(torch.zeros(batch, 64, device=device))
        copy = out.detach().clone()
        copy[copy > 0] = torch.tensor(1.0, dtype=torch.float64)
        return out.sum() + copy.sum()

    return _made(device, forward)


def writes_by_index(batch: int, device: Any) -> Made:
    """Rows of float32 are written into a table that autocast has made in half precision."""

    def forward(model: nn.Module) -> Any:
        table = model(torch.zeros(batch, 64, device=device))
        to = torch.arange(2, device=device)
        return table.index_copy(0, to, torch.ones(2, 64, device=device)).float().sum()

    return _made(device, forward)


def half_convolution(batch: int, device: Any) -> Made:
    """A convolution in float16 gets images in float32."""
    model = nn.Conv2d(3, 8, 3).half().to(device)
    images = torch.randn(batch, 3, 16, 16, device=device)
    return model, torch.optim.SGD(model.parameters(), lr=0.1), lambda: model(images).float().sum()


def short_labels(batch: int, device: Any) -> Made:
    """Classes are numbered in 32 bits, as numpy on some systems and many files do."""

    def forward(model: nn.Module) -> Any:
        labels = torch.randint(64, (batch,), device=device, dtype=torch.int32)
        return nn.functional.cross_entropy(model(torch.zeros(batch, 64, device=device)), labels)

    return _made(device, forward)


def weighted_classes(batch: int, device: Any) -> Made:
    """The logits are in bfloat16 and the weights of the classes in float32."""

    def forward(model: nn.Module) -> Any:
        logits = model(torch.zeros(batch, 64, device=device)).to(torch.bfloat16)
        labels = torch.zeros(batch, dtype=torch.long, device=device)
        return nn.functional.cross_entropy(logits, labels, torch.ones(64, device=device)).float()

    return _made(device, forward)


def weighted_bags(batch: int, device: Any) -> Made:
    """Rows in half precision are summed with weights in float32."""

    def forward(model: nn.Module) -> Any:
        rows = model(torch.zeros(8, 64, device=device)).to(torch.bfloat16)
        bags = torch.zeros(batch, 3, dtype=torch.long, device=device)
        weights = torch.ones(batch, 3, device=device)
        return nn.functional.embedding_bag(bags, rows, mode="sum", per_sample_weights=weights).sum()

    return _made(device, forward)


def half_distances(batch: int, device: Any) -> Made:
    """Distances between a few points; autocast casts them to float32."""

    def forward(model: nn.Module) -> Any:
        points = model(torch.zeros(16, 64, device=device)).to(torch.bfloat16)
        return torch.cdist(points, points).float().sum()

    return _made(device, forward)


def half_singular_values(batch: int, device: Any) -> Made:
    """Singular values of what autocast has made in half precision; it casts nothing here."""
    return _made(
        device,
        lambda model: torch.linalg.svdvals(model(torch.zeros(16, 64, device=device))).sum(),
    )


def needs_a_library(batch: int, device: Any) -> Made:
    import a_library_that_is_nowhere  # type: ignore[import-not-found]  # noqa: F401

    return _made(device, lambda model: model(torch.zeros(batch, 64, device=device)).sum())


def builds_in_half_precision(batch: int, device: Any) -> Made:
    """It starts from orthogonal weights, which are computed where the weights are."""
    torch.linalg.qr(torch.randn(64, 64, device=device, dtype=torch.bfloat16))
    return _made(device, lambda model: model(torch.zeros(batch, 64, device=device)).sum())


def long_sequence(batch: int, device: Any) -> Made:
    """The sequence is longer than the table of positions."""

    def forward(model: nn.Module) -> Any:
        places = torch.arange(65, device=device).unsqueeze(0)
        return nn.functional.embedding(places, model.weight).sum()

    return _made(device, forward)


def one_class_more(batch: int, device: Any) -> Made:
    """Classes are counted from one; those of padding are left out."""

    def forward(model: nn.Module) -> Any:
        labels = torch.tensor([1, -100, 64], device=device)
        return nn.functional.cross_entropy(model(torch.zeros(3, 64, device=device)), labels)

    return _made(device, forward)


def padded_classes(batch: int, device: Any) -> Made:
    def forward(model: nn.Module) -> Any:
        labels = torch.tensor([1, -100, 63], device=device)
        return nn.functional.cross_entropy(model(torch.zeros(3, 64, device=device)), labels)

    return _made(device, forward)


def probabilities(batch: int, device: Any) -> Made:
    """A loss that autocast allows on a CPU and not on a GPU."""

    def forward(model: nn.Module) -> Any:
        chances = model(torch.zeros(batch, 64, device=device)).sigmoid()
        return nn.functional.binary_cross_entropy(chances, torch.zeros_like(chances))

    return _made(device, forward)


def probabilities_outside(batch: int, device: Any) -> Made:
    """The same loss, kept out of autocast as torch advises."""

    def forward(model: nn.Module) -> Any:
        chances = model(torch.zeros(batch, 64, device=device)).sigmoid()
        with torch.autocast("cuda", enabled=False):
            chances = chances.float()
            return nn.functional.binary_cross_entropy(chances, torch.zeros_like(chances))

    return _made(device, forward)


def transforms(batch: int, device: Any) -> Made:
    """A Fourier transform of what autocast has made in half precision, and its inverse."""

    def forward(model: nn.Module) -> Any:
        frequencies = torch.fft.rfft(model(torch.zeros(batch, 64, device=device)))
        return torch.fft.irfft(frequencies, n=64).float().sum()

    return _made(device, forward)


def transforms_odd_sizes(batch: int, device: Any) -> Made:
    def forward(model: nn.Module) -> Any:
        return torch.fft.rfft(model(torch.zeros(batch, 64, device=device)), n=60).abs().sum()

    return _made(device, forward)


def mixes_frequencies(batch: int, device: Any) -> Made:
    """A product of frequencies with weights, as in Fourier neural operators."""

    def forward(model: nn.Module) -> Any:
        frequencies = torch.fft.rfft(model(torch.zeros(batch, 64, device=device)))
        mixed = frequencies @ torch.ones(33, 33, dtype=torch.complex32, device=device)
        return mixed.abs().sum()

    return _made(device, forward)


def half_margins(batch: int, device: Any) -> Made:
    """A loss that a GPU computes in half precision, and a CPU does not."""

    def forward(model: nn.Module) -> Any:
        scores = model(torch.zeros(batch, 64, device=device)).to(torch.bfloat16)
        labels = torch.zeros(batch, dtype=torch.long, device=device)
        return nn.functional.multi_margin_loss(scores, labels)

    return _made(device, forward)


def classes_in_clusters(batch: int, device: Any) -> Made:
    """torch checks that every sample is in one cluster of classes, which follows from values."""
    clusters = nn.AdaptiveLogSoftmaxWithLoss(64, 100, [20, 60]).to(device)
    labels = torch.randint(100, (batch,), device=device)
    return _made(
        device, lambda model: clusters(model(torch.zeros(batch, 64, device=device)), labels).loss
    )


def derivative_forwards(batch: int, device: Any) -> Made:
    """The Laplacian of a small network, as networks that solve differential equations take it."""
    points = torch.rand(batch, 64, device=device)

    def forward(model: nn.Module) -> Any:
        def laplacian(point: torch.Tensor) -> Any:
            return torch.func.hessian(lambda at: model(at).tanh().sum())(point).diagonal().sum()

        return torch.func.vmap(laplacian)(points).square().mean()

    return _made(device, forward)


def number_for_a_loss(batch: int, device: Any) -> Made:
    return _made(device, lambda model: model(torch.zeros(batch, 64, device=device)).sum().item())


def backward_inside(batch: int, device: Any) -> Made:
    """The training loop goes backward after ``forward()``, which has done so itself."""

    def forward(model: nn.Module) -> Any:
        loss = model(torch.zeros(batch, 64, device=device)).sum()
        loss.backward()
        return loss

    return _made(device, forward)
