"""Find out what was going on when a message was printed: phase, library, kind of work, trend.

These are circumstances, not causes: a rule combines them with its message. Each circumstance keeps
the words of the log that show it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from ...snapshot.model import Frame
from .text import Log

_FRAME = re.compile(r'File "([^"]{1,400})", line (\d+), in ([^\s,]{1,200})')
_IN_CELL = re.compile(r"<ipython-input-|Cell In\s?\[\d+\]|ipykernel_\d+|site-packages/IPython/")
_KILLED = re.compile(r"^\s*Killed\s*$|line \d+:\s+\d+ Killed\s|^\[\d+\]\s*[+-]?\s+\d* ?Killed\s")
_PROGRESS = re.compile(r"\b(?:step|iter(?:ation)?|epoch|batch)\b.*\bloss|\bloss\b.*\d")
MOST_FRAMES = 400
MOST_SKIPS, LEAST_SINCE = 30, 2
"""A scaler halves its scale with each skipped step: thirty of them take 2**24 far below one."""


@dataclass(frozen=True)
class PrintedFrame(Frame):
    """One frame of a traceback, and the number of its line in the log.

    ``code`` is the line printed below it, or nothing.
    """

    code: str
    number: int


@dataclass(slots=True)
class MessageContext:
    """The circumstances of a message.

    ``facts`` maps the name of each circumstance to the words that show it. ``frames`` have the
    order of the log.
    """

    frames: list[PrintedFrame] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return name in self.facts

    def any(self, *names: str) -> str | None:
        """Return the first of these circumstances that holds, else None."""
        return next((name for name in names if name in self.facts), None)


# Patterns by circumstance. A stack frame is matched as "file function code", with identifiers in
# their own case.
_IN_FRAMES: dict[str, str] = {
    "no-grad": r"torch/(?:utils/_contextlib|autograd/grad_mode)\.py|inference_mode|torch\.no_grad",
    "evaluation": r"(?:^|[^a-z])(?:valid|val(?=_|\b)|eval|test(?=_|\b)|infer|predict|evaluate|sample_image)",  # noqa: E501
    "training": r"(?:^|[^a-z])train|\.backward\(|loss\b|optimizer\.",
    "backward": r"\.backward\(|autograd/__init__\.py|run_backward|_engine_run_backward",
    "loading": r"torch/serialization\.py|torch\.load\(|load_state_dict|load_checkpoint|_cuda_deserialize"  # noqa: E501
    r"|restore_location"
    r"|load_file\(|resume",
    "weights-loading": r"from_pretrained|modeling_utils|load_model|init_model|create_weights|checkpoint_shards",  # noqa: E501
    "optimizer": r"torch/optim/|optimizer\.step|optim\.step|exp_avg|_multi_tensor_adam|_init_group|bitsandbytes/optim",  # noqa: E501
    "model-to-device": r"in _apply|\.cuda\(\)|model\.to\(|\.to\((?:self\.)?device|\bmodule\.py "
    r"_apply| _apply "
    r"|lambda t: t\.",
    "attention": r"attn|attention|softmax|q\s?@\s?k|torch\.bmm|einsum|query.*key|baddbmm|scaled_dot",  # noqa: E501
    "logits": r"lm_head|logits|cross_entropy|log_softmax|vocab",
    "gather": r"scatter_gather|data_parallel\.py|comm\.gather|parallel_apply|_functions\.py gather",
    "ddp": r"parallel/distributed\.py|DistributedDataParallel|DDP\(",
    "fsdp": r"fsdp|fully_shard|_flat_param|_all_gather|full_state_dict|all_gather",
    "deepspeed": r"deepspeed",
    "checkpointing": r"torch/utils/checkpoint\.py|CheckpointFunction",
    "saving": r"torch\.save\(|save_checkpoint|save_pretrained|state_dict\(\)",
    "compile": r"_inductor|_dynamo|torch\.compile|cudagraph|CUDAGraph|torch/cuda/graphs\.py",
    "collecting": r"nested_concat|preds_host|prediction_loop|evaluation_loop"
    r"|(?:torch\.(?:cat|stack|vstack)|np\.concatenate)\(\(?\[?\w*(?:pred|output|target|label|feat|embed|logit|result)\w*"
    r"|\b(?:all_|y_|val_|test_)\w*(?:pred|output|target|label|feat|embed|logit|result)\w*\.(?:append|extend)\(",
    "appending": r"\.append\(|\.extend\(|torch\.cat\(",
    "metric": r"metric|accuracy|iou|pairwise|cdist|distance|\bdist\b|knn|score\(|matching",
    "loader": r"dataloader\.py|DataLoader",
    "pinning": r"pin_memory",
    "vllm": r"vllm|sglang",
    "diffusion": r"diffusers|ComfyUI|comfy|stable-diffusion|stable_diffusion|unet|vae|ldm/|k_diffusion",  # noqa: E501
    "llm": r"transformers|trl|peft|llama|mistral|gpt|qwen|bert|litgpt|axolotl",
}
_IN_TEXT: dict[str, str] = {
    "evaluation": r"\b(?:validat(?:e|ing|ion)|evaluat(?:e|ing|ion)|inference|at test "
    r"time|testing|predicting"
    r"|predictions?)\b",
    "optimizer-second-step": r"\b(?:second|2nd) (?:\w+ )?(?:step|iteration)|at (?:the )?second step"
    r"|\badam\w*\b.{0,60}\bstates?\b",
    "resume": r"\bresum(?:e|ed|ing)\b|restor(?:e|ed|ing) (?:from )?(?:the )?checkpoint|loaded "
    r"checkpoint"
    r"|loading checkpoint",
    "growth": r"(?:memory|usage|ram|allocated)\b[^.;]{0,60}\b(?:grow(?:s|ing|n)?|increas(?:es?|ing)|creep(?:s|ing)"  # noqa: E501
    r"|accumulat|leak)"
    r"|leaks? memory|memory leak|more and more (?:\w+ )?memory",
    "late": r"\bafter (?:\d+|several|a few|some|many) (?:epoch|iteration|step|batch|hour|k iter)",
    "notebook": r"\b(?:jupyter|notebook|colab|kaggle|ipykernel)\b",
    "rerun": r"(?:second|again|several) (?:run|time)|re-?run",
    "vllm": r"\bvllm|\bsglang|max_model_len|kv[ _]cache|gpu_memory_utilization",
    "diffusion": r"comfyui|\bsdxl\b|\bflux\b|\bvae\b|\bunet\b|stable diffusion|diffus",
    "llm": r"\b(?:llama|mistral|falcon|qwen|gpt|deepseek|gemma|codegen|bloom|opt)-?\d*\w*\b.{0,40}\b(?:\d+b)\b"  # noqa: E501
    r"|\b\d+b\b.{0,30}model"
    r"|fine-?tun|\blora\b|\bpeft\b|tokeniz",
    "lora": r"\bq?lora\b|\badapter",
    "context-length": r"\b(?:seq(?:uence)?[ _]?len(?:gth)?|context length|max_length|\d+k "
    r"(?:context|seq\w*|tokens)"
    r"|length \d{4,})",
    "image-size": r"\b(?:resolution|image size|\d{3,4}\s?[x×]\s?\d{3,4}|full[- ]size|high[- "
    r"]res|upscal|tile|crop"
    r"|chop)",
    "compile": r"torch\.compile|inductor|cuda ?graphs? captur|capturing cuda "
    r"graph|reduce-overhead|dynamo",
    "ddp": r"\b(?:ddp|distributeddataparallel|torchrun|torch\.distributed\.launch|all ranks|each "
    r"rank|every rank)\b",
    "dataparallel": r"\bdata ?parallel\b|nn\.dataparallel",
    "deepspeed": r"\bdeepspeed\b|\bzero-?[123]\b",
    "fsdp": r"\bfsdp\b|fully sharded",
    "wsl": r"\bwsl2?\b",
    "gpu-process-table": r"\d+mib\s?/\s?\d+mib",
    "dead-process": r"\b(?:zombie|orphan(?:ed)?|left-?over|no (?:running )?process(?:es)? "
    r"found|after (?:killing"
    r"|ctrl-?c)|defunct)",
    "cudnn-benchmark": r"cudnn\.benchmark\s?=?\s?true|benchmark\s?=\s?true|benchmark mode",
    "distributed-error": r"processgroupnccl|torchelastic|childfailederror|exitcode\s*:\s*-9",
}


def read(log: Log, says: Mapping[str, str]) -> MessageContext:
    """Return the scene of a log.

    ``says`` supplies the words for circumstances that no single line of the log states.
    """
    scene = MessageContext(frames=_read_frames(log))
    lines = [f"{f.file} {f.function} {f.code}" for f in scene.frames]
    lines += [line for _, line in log.lines[-1500:] if "File" not in line and _is_code(line)]
    for name, pattern in _IN_FRAMES.items():
        compiled = re.compile(pattern)
        for words in lines:
            match = compiled.search(words)
            if match:
                scene.facts[name] = words.strip()[:160]
                break
    for name, pattern in _IN_TEXT.items():
        found = re.search(pattern, log.flat[:400_000])
        if found and name not in scene.facts:
            scene.facts[name] = _words_around(log.flat, found.start(), found.end())
    killed = next((line for _, line in log.lines if _KILLED.search(line)), None)
    if killed:
        scene.facts["killed-line"] = killed.strip()[:160]
    if any(line.startswith(">>> ") for _, line in log.lines):
        scene.facts.setdefault("rerun", says["interactive"])
    if any(_IN_CELL.search(line) for _, line in log.lines):
        scene.facts.setdefault("notebook", says["cell"])
    settled = _count_settled_steps([line.lower() for _, line in log.lines])
    if settled is not None:
        skipped, since = settled
        scene.facts["overflow-settled"] = says["scaler-settled"].format(
            skipped=skipped, since=since
        )
    return scene


def _count_settled_steps(lines: list[str]) -> tuple[int, int] | None:
    """Return how many steps a grad scaler skipped before it settled, and what followed.

    What followed are the lines of progress since. The result is None for a log without a settled
    scaler.
    """
    over = [
        i
        for i, line in enumerate(lines)
        if "overflow" in line and ("gradient" in line or "skipping" in line)
    ]
    if (
        not over
        or len(over) > MOST_SKIPS
        or any("minimum" in line and "scale" in line for line in lines)
    ):
        return None
    since = [line for line in lines[over[-1] + 1 :] if _PROGRESS.search(line)]
    if len(since) < LEAST_SINCE or any("nan" in line for line in since):
        return None
    return len(over), len(since)


def _is_code(line: str) -> bool:
    """Return whether a line is one of a traceback's code lines: indented, and like code."""
    return line[:2] == "  " and any(mark in line for mark in "(=.") and "%|" not in line


def _words_around(text: str, start: int, end: int) -> str:
    """Return the words around a match, as evidence."""
    return text[max(0, start - 30) : end + 40].strip()


def _read_frames(log: Log) -> list[PrintedFrame]:
    """Return the last frames of all tracebacks in the log."""
    found = []
    for i, (number, line) in enumerate(log.lines):
        match = _FRAME.search(line)
        if match is None:
            continue
        code = (
            log.lines[i + 1][1].strip()
            if i + 1 < len(log.lines) and "File" not in log.lines[i + 1][1]
            else ""
        )
        found.append(PrintedFrame(match[1], int(match[2][:9]), match[3], code[:300], number))
    return found[-MOST_FRAMES:]
