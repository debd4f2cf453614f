"""List the functions of frameworks that validate, save and log.

Rules as in :mod:`.time_rows`: ``(row, module or package, functions)``; None stands for all its
functions. Names of modules are those of the released packages; one that is not imported costs
nothing.
"""

from __future__ import annotations

from typing import Optional, Tuple

_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")
_FABRIC = ("lightning.fabric", "lightning_fabric")

FRAMEWORKS: Tuple[Tuple[str, str, Optional[Tuple[str, ...]]], ...] = (
    # Hugging Face: Trainer, its subclasses in TRL and sentence-transformers, accelerate
    ("validation", "transformers.trainer", ("_evaluate",)),
    ("validation", "transformers.trainer_seq2seq", ("evaluate", "predict")),
    ("validation", "trl", ("evaluate", "evaluation_loop", "prediction_step")),
    ("validation", "sentence_transformers.evaluation", None),
    ("validation", "sentence_transformers.sentence_transformer.evaluation", None),
    ("checkpoint", "trl", ("_save_checkpoint",)),
    ("checkpoint", "accelerate.utils.fsdp_utils", ("save_fsdp_model", "save_fsdp_optimizer")),
    ("checkpoint", "peft.peft_model", ("save_pretrained",)),
    ("logging", "transformers.integrations", None),
    ("logging", "transformers.trainer_callback", ("on_log", "on_prediction_step")),
    ("logging", "transformers.utils.notebook", None),
    ("logging", "trl", ("log", "print_prompt_completions_sample")),
    ("logging", "accelerate.tracking", None),
    ("logging", "accelerate.accelerator", ("log",)),
    # Lightning, under both of its names, and Fabric
    *(
        rule
        for name in _LIGHTNING
        for rule in (
            ("checkpoint", name + ".callbacks.on_exception_checkpoint", None),
            ("checkpoint", name + ".trainer.connectors.checkpoint_connector", ("dump_checkpoint",)),
            ("checkpoint", name + ".trainer.trainer", ("save_checkpoint",)),
            ("logging", name + ".trainer.connectors.logger_connector", None),
            ("logging", name + ".callbacks.progress", None),
            ("logging", name + ".callbacks.lr_monitor", None),
            ("logging", name + ".callbacks.device_stats_monitor", None),
            ("logging", name + ".callbacks.throughput_monitor", None),
        )
    ),
    *(
        rule
        for name in _FABRIC
        for rule in (
            ("checkpoint", name + ".fabric", ("save",)),
            ("logging", name + ".fabric", ("log", "log_dict")),
            ("logging", name + ".loggers", None),
        )
    ),
    # fastai
    ("checkpoint", "fastai.callback.tracker", ("_save",)),
    ("checkpoint", "fastai.learner", ("save", "save_model", "export")),
    ("logging", "fastai.callback.progress", None),
    ("logging", "fastai.callback.wandb", None),
    ("logging", "fastai.callback.tensorboard", None),
    ("logging", "fastprogress", None),
    # Keras on torch
    ("checkpoint", "keras.src.callbacks.model_checkpoint", None),
    ("checkpoint", "keras.src.callbacks.backup_and_restore", None),
    ("checkpoint", "keras.src.saving", None),
    ("logging", "keras.src.callbacks.progbar_logger", None),
    ("logging", "keras.src.callbacks.csv_logger", None),
    ("logging", "keras.src.callbacks.tensorboard", None),
    ("logging", "keras.src.utils.progbar", None),
    # Composer
    ("checkpoint", "composer.callbacks.checkpoint_saver", None),
    ("checkpoint", "composer.checkpoint", None),
    ("checkpoint", "composer.utils.checkpoint", ("save_checkpoint", "_save_checkpoint")),
    ("logging", "composer.loggers", None),
    ("logging", "composer.callbacks.speed_monitor", None),
    ("logging", "composer.callbacks.memory_monitor", None),
    ("logging", "composer.callbacks.lr_monitor", None),
    ("logging", "composer.callbacks.optimizer_monitor", None),
    ("logging", "composer.callbacks.system_metrics_monitor", None),
    # skorch
    ("validation", "skorch.net", ("validation_step", "evaluation_step")),
    ("validation", "skorch.callbacks.scoring", None),
    ("checkpoint", "skorch.callbacks.training", ("save_model", "_save_params")),
    ("checkpoint", "skorch.net", ("save_params",)),
    ("logging", "skorch.callbacks.logging", None),
    # ignite
    ("checkpoint", "ignite.handlers.checkpoint", None),
    ("logging", "ignite.handlers.base_logger", None),
    ("logging", "ignite.handlers.tqdm_logger", None),
    ("logging", "ignite.handlers.tensorboard_logger", None),
    ("logging", "ignite.handlers.wandb_logger", None),
    # Stable-Baselines3
    ("validation", "stable_baselines3.common.evaluation", None),
    ("checkpoint", "stable_baselines3.common.save_util", None),
    ("checkpoint", "stable_baselines3.common.base_class", ("save",)),
    ("logging", "stable_baselines3.common.logger", None),
    # ultralytics, timm
    ("validation", "ultralytics.engine.trainer", ("validate", "final_eval")),
    ("checkpoint", "ultralytics.engine.trainer", ("save_model",)),
    ("logging", "ultralytics.engine.trainer", ("save_metrics", "plot_metrics", "on_plot")),
    ("logging", "ultralytics.utils.callbacks", None),
    ("logging", "ultralytics.utils.plotting", None),
    ("checkpoint", "timm.utils.checkpoint_saver", None),
    ("logging", "timm.utils.summary", None),
    # detectron2, OpenMMLab, Megatron, torchtitan, DeepSpeed
    ("validation", "detectron2.evaluation", None),
    ("validation", "mmengine.evaluator", None),
    ("validation", "megatron.training.training", ("evaluate", "evaluate_and_print_results")),
    ("validation", "torchtitan.components.validate", None),
    ("checkpoint", "fvcore.common.checkpoint", None),
    ("checkpoint", "mmengine.hooks.checkpoint_hook", None),
    ("checkpoint", "megatron.training.checkpointing", None),
    ("checkpoint", "torchtitan.components.checkpoint", None),
    ("logging", "detectron2.utils.events", None),
    ("logging", "mmengine.hooks.logger_hook", None),
    ("logging", "mmengine.visualization", None),
    ("logging", "megatron.training.training", ("training_log",)),
    ("logging", "torchtitan.components.metrics", None),
    ("logging", "deepspeed.monitor", None),
)
