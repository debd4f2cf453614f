"""Write the switches that a search has changed as lines of code, to paste into a training.

Only the standard library is needed.
"""

from __future__ import annotations

from ..config import LabConfig

_COMPILE = {
    "default": "model = torch.compile(model)",
    "reduce-overhead": 'model = torch.compile(model, mode="reduce-overhead")',
    "max-autotune": 'model = torch.compile(model, mode="max-autotune")',
}
_AMP = {
    "bf16": (
        'with torch.autocast("{device}", dtype=torch.bfloat16):    # around forward and loss',
    ),
    "fp16": (
        'scaler = torch.amp.GradScaler("{device}")',
        'with torch.autocast("{device}", dtype=torch.float16):     # around forward and loss',
        "scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()",
    ),
}


def lines(baseline: LabConfig, best: LabConfig, batch: int | None, device: str) -> list[str]:
    """Return the lines that turn ``baseline`` into ``best`` in a training script.

    ``batch`` is the micro-batch of ``best``, ``device`` is cpu or cuda.
    """
    changed = {
        name: value for name, value in best.to_mapping().items() if value != getattr(baseline, name)
    }
    found: list[str] = []
    if "amp" in changed:
        rows = _AMP.get(best.amp, ("# no torch.autocast around forward and loss",))
        found += [row.format(device=device) for row in rows]
    if "tf32" in changed:
        word = "tf32" if best.tf32 else "ieee"
        found += [
            f'torch.set_float32_matmul_precision("{"high" if best.tf32 else "highest"}")',
            f'torch.backends.cudnn.conv.fp32_precision = "{word}"',
        ]
    if "compile" in changed:
        found.append(_COMPILE.get(best.compile, "# no torch.compile"))
    if {"batch", "accumulate"} & set(changed):
        found.append(f"batch_size = {batch}    # of the DataLoader")
        found.append(f"accumulate = {best.accumulate}    # micro-batches for each optimizer.step()")
    if "checkpoint" in changed:
        found.append(
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)    # each block"
            if best.checkpoint
            else "x = block(x)    # without torch.utils.checkpoint"
        )
    options = [
        f"{name}={value}"
        for name in ("fused", "foreach")
        if (value := changed.get(name)) is not None
    ]
    if options:
        kind = {"adamw": "AdamW", "sgd": "SGD"}[best.optimizer]
        found.append(f"optimizer = torch.optim.{kind}(…, {', '.join(options)})")
    loader = {
        "num_workers": changed.get("workers"),
        "prefetch_factor": changed.get("prefetch"),
        "pin_memory": changed.get("pin_memory"),
    }
    words = [f"{name}={value}" for name, value in loader.items() if value is not None]
    if words:
        found.append(f"DataLoader(…, {', '.join(words)})")
    if changed.get("non_blocking"):
        found.append("batch = batch.to(device, non_blocking=True)")
    if "cudnn_benchmark" in changed:
        found.append(f"torch.backends.cudnn.benchmark = {best.cudnn_benchmark}")
    if "channels_last" in changed:
        word = "channels_last" if best.channels_last else "contiguous_format"
        found.append(f"model = model.to(memory_format=torch.{word})")
    if "set_to_none" in changed:
        found.append(f"optimizer.zero_grad(set_to_none={best.set_to_none})")
    if changed.get("expandable_segments"):
        found.append("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True    # in the shell")
    if "empty_cache" in changed and not best.empty_cache:
        found.append("# no torch.cuda.empty_cache() in the loop")
    return found
