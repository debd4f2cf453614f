"""What frameworks do themselves has its row, by the module and the name of the function."""

from __future__ import annotations

import sys

import pytest

from gpuscope.probe.framework_rows import FRAMEWORKS
from gpuscope.probe.time_rows import ROWS, row_of


def row_within(module: str, function: str) -> str:
    there = {"__name__": module, "row_of": row_of, "sys": sys}
    code = f"def {function}(look):\n    return look()\n"
    exec(compile(code, f"/usr/lib/python3/{module}.py", "exec"), there)

    def forward() -> str:
        return row_of(sys._getframe()).row

    found: str = there[function](forward)
    return found


@pytest.mark.parametrize(
    ("module", "function", "row"),
    [
        ("transformers.trainer", "_evaluate", "validation"),
        ("transformers.integrations.integration_utils", "on_log", "logging"),
        ("trl.trainer.grpo_trainer", "log", "logging"),
        ("accelerate.tracking", "store_init_configuration", "logging"),
        ("accelerate.accelerator", "save_state", "checkpoint"),
        ("pytorch_lightning.callbacks.progress.rich_progress", "on_train_batch_end", "logging"),
        ("lightning.pytorch.trainer.trainer", "save_checkpoint", "checkpoint"),
        ("lightning.fabric.fabric", "save", "checkpoint"),
        ("fastai.learner", "_do_epoch_validate", "validation"),
        ("keras.src.callbacks.model_checkpoint", "on_epoch_end", "checkpoint"),
        ("keras.src.utils.progbar", "update", "logging"),
        ("composer.callbacks.checkpoint_saver", "_save_checkpoint", "checkpoint"),
        ("skorch.net", "validation_step", "validation"),
        ("ignite.handlers.checkpoint", "__call__", "checkpoint"),
        ("stable_baselines3.common.logger", "dump", "logging"),
        ("ultralytics.engine.trainer", "validate", "validation"),
        ("timm.utils.checkpoint_saver", "save_checkpoint", "checkpoint"),
        ("fastai.learner", "_do_one_batch", "other"),
        ("trl.trainer.sft_trainer", "compute_loss", "other"),
    ],
)
def test_a_function_of_a_framework_has_its_row(module, function, row):
    assert row_within(module, function) == row


def test_each_rule_is_of_a_row_that_is_shown_and_none_stands_twice():
    assert {row for row, _, _ in FRAMEWORKS} <= set(ROWS)
    single = [(module, name) for _, module, names in FRAMEWORKS for name in names or ("*",)]
    assert len(single) == len(set(single))
