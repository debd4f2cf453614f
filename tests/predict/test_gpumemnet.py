"""Networks that are built from the rows of a table: of the same layers, parameters and shapes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from bench.predict import gpumemnet_networks as networks  # noqa: E402

END = [("adaptive_avg_pool2d", 0, 0), ("linear", 10, 0), ("softmax", 10, 0)]


def conv(inputs: int, outputs: int, kernel: int, side: int) -> list[networks.Layer]:
    size = outputs * side * side
    return [("conv2d", size, outputs * (inputs * kernel**2 + 1)), ("Mish", size, 0)]


def row(name: str, layers: list[networks.Layer], width: int) -> networks.Row:
    end = [(kind, size, 10 * (width + 1) * (kind == "linear")) for kind, size, _ in END]
    return {"Filename": name, "Activations-Params": str(layers + end), "Batch Size": "4"}


def named(architecture: str) -> str:
    return f"input_channels:3_num_classes:10_arch:{architecture}_base_filters:8_input_size:9_act:m"


GROWN = [layer for place in range(4) for layer in conv(3 + 32 * place, 32, 3, 9)]
ROWS = {
    "plain": row(named("pyramid"), conv(3, 8, 3, 9) + conv(8, 20, 3, 9), 20),
    "residual": row(
        named("residual"),
        conv(3, 8, 1, 9)[:1]
        + conv(3, 8, 3, 9)
        + conv(8, 8, 3, 9)
        # the second one halves the image, by a shortcut with a stride
        + conv(8, 12, 1, 5)[:1]
        + conv(8, 12, 3, 5)
        + conv(12, 12, 3, 5),
        12,
    ),
    "dense": row(named("dense"), GROWN + conv(131, 65, 1, 9) + conv(65, 32, 3, 4), 97),
}


@pytest.mark.parametrize("kind", ROWS)
def test_a_network_has_the_parameters_and_outputs_of_its_row(kind: str):
    assert networks.is_as_listed(ROWS[kind])
    one = networks.training(ROWS[kind])
    sizes: list[int] = []
    for module in one.model.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda _, __, out: sizes.append(out[0].numel()))
    assert one.model(one.inputs(2)).shape == (2, 10)
    listed = networks._layers(ROWS[kind])
    assert sizes == [size for name, size, _ in listed if name == "conv2d"]


def test_a_list_that_is_cut_off_is_no_network():
    cut = {**ROWS["plain"], "Activations-Params": str(conv(3, 8, 3, 9))}
    assert not networks.is_as_listed(cut)
