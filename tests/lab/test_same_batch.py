"""Whether a factory's ``forward()`` gives its model the same batch each time is found out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from gpuscope.lab.same_batch import SameBatch

MODEL = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
BATCH, TOKENS = torch.randn(6, 4), torch.randint(9, (2, 7))
WORDS = nn.Embedding(9, 4)


@pytest.mark.parametrize(
    ("forward", "same"),
    [
        pytest.param(lambda: MODEL(BATCH), True, id="drawn once, with dropout"),
        pytest.param(lambda: MODEL[0](BATCH), True, id="a part of the model is called"),
        pytest.param(lambda: WORDS(TOKENS[:, :-1].contiguous()), True, id="a copy of a part of it"),
        pytest.param(lambda: MODEL(torch.randn(6, 4)), False, id="drawn anew"),
        pytest.param(lambda: MODEL(BATCH.add_(1)), False, id="another batch in the same memory"),
        pytest.param(lambda: BATCH @ MODEL[0].weight.T, None, id="no module is called"),
    ],
)
def test_two_passes_tell(forward: Callable[[], Tensor], same: bool | None) -> None:
    seen = SameBatch()
    for _ in range(2):
        assert seen.answer is None
        with seen.looking():
            forward()
    assert seen.answer is same
    with seen.looking():
        assert not hooks._global_forward_pre_hooks, "a third pass is not looked at"
