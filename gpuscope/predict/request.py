"""Define the request that is sent to the tracing child, and its answer.

Only the standard library is needed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import UserError
from ..lab.toggles import default
from .serving import NEW_TOKENS
from .trace import Trace

TRANSFORMERS = "gpuscope.predict.transformers_factory:make"
"""The factory for the Lab of a transformers config, which these variables describe."""
OPTIONS = (CONFIG, TASK, SEQUENCE) = (
    "GPUSCOPE_HF_CONFIG", "GPUSCOPE_HF_TASK", "GPUSCOPE_HF_SEQUENCE",
)  # fmt: skip
TASKS = {
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "classification": "AutoModelForSequenceClassification",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "multiple-choice": "AutoModelForMultipleChoice",
    "image-classification": "AutoModelForImageClassification",
    "semantic-segmentation": "AutoModelForSemanticSegmentation",
    "universal-segmentation": "AutoModelForUniversalSegmentation",
    "object-detection": "AutoModelForObjectDetection",
    "depth-estimation": "AutoModelForDepthEstimation",
    "masked-image-modeling": "AutoModelForMaskedImageModeling",
    "video-classification": "AutoModelForVideoClassification",
    "image-text-to-text": "AutoModelForImageTextToText",
    "contrastive": "AutoModelForZeroShotImageClassification",
    "audio-classification": "AutoModelForAudioClassification",
    "ctc": "AutoModelForCTC",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
    "pretraining": "AutoModelForPreTraining",
}
"""The tasks for a model of transformers, each with the class that chooses the model."""
CUDA_GRAPHS = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that capture the compiled graphs as CUDA graphs."""
SEARCHING = ("max-autotune", "max-autotune-no-cudagraphs")
"""Modes of torch.compile that search for the fastest kernels."""
SHARDINGS = ("none", "dp", "ddp", "zero1", "zero2", "fsdp")
BUCKETED = ("ddp", "zero1")
"""Shardings whose gradients are reduced in the buckets of DistributedDataParallel."""


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration of one model.

    ``None`` means the choice of the model's own code, or of torch.

    The switches of :mod:`gpuscope.lab.toggles` check and describe most fields; their ``predicts``
    names the field. If a default differs from that of the switch, the model is not one of the Lab's
    and decides by itself.
    """

    model: str
    """A preset or family of the Lab, ``MODULE:FACTORY``, ``hf:PATH`` (a transformers config) or
    ``torchvision:NAME``.
    """
    batch: int | None = default("batch")
    amp: str = default("amp")
    accumulate: int = default("accumulate")
    checkpoint: int = 0
    """0: off. 1: every block is recomputed in the backward pass. k: one block in k keeps its
    activations.
    """
    optimizer: str | None = None
    """adamw, adam, sgd (with momentum)…; None: the factory's own optimizer."""
    foreach: bool | None = default("foreach")
    fused: bool | None = default("fused")
    set_to_none: bool = default("set_to_none")
    tf32: bool | None = None
    """None: torch's own defaults, by which float32 convolutions use TF32 and matrix products do
    not; False: neither, as with the Lab's switch; True: both.
    """
    cudnn_benchmark: bool = default("cudnn_benchmark")
    channels_last: bool = default("channels_last")
    deterministic: bool = default("deterministic")
    sequence: int | None = None
    """Tokens per sample, for models that take tokens."""
    resolution: int | None = None
    """Side length in pixels, for models that take images."""
    task: str | None = None
    """For a transformers config, one of ``TASKS``."""
    lora: str = ""
    """How adapters are added to a transformers config, as :func:`adapters.parse_lora` reads it."""
    quantize: str = ""
    """The layout of the base weights under adapters, one of ``adapters.LAYOUTS``."""
    serve: str = ""
    """The cache with which a transformers config generates text, one of ``serving.CACHES``, instead
    of training; "" for training. ``sequence`` is then the context: prompt and answer."""
    new: int = NEW_TOKENS
    """The tokens of the answer, which are generated one by one."""
    compile: bool = False
    """Whether the model is compiled by ``torch.compile``: a factory's whole ``forward()``, else the
    model alone."""
    cuda_graphs: bool = False
    """Whether the compiled graphs run as CUDA graphs, whose blocks are in a pool of their own."""
    max_autotune: bool = False
    """Whether a compilation searches for the fastest kernels, for which it allocates."""
    sharding: str = "none"
    """One of ``SHARDINGS``, over ``ranks`` ranks, of which one is predicted."""
    ranks: int = 1
    fsdp_wrap: str = default("fsdp_wrap")
    fsdp_reshard: str = default("fsdp_reshard")
    fsdp_params: str = default("fsdp_params")
    fsdp_reduce: str = default("fsdp_reduce")
    fsdp_offload: bool = default("fsdp_offload")
    fsdp_ahead: int = default("fsdp_ahead")
    bucket_views: bool = False
    """With ddp, whether the gradients are views of the buckets in which they are reduced."""
    deepspeed: str = ""
    """What DeepSpeed's JSON file says, as :meth:`gpuscope.predict.deepspeed.Zero.text`, for one of
    ``ranks`` ranks; "" without DeepSpeed."""
    seed: int = default("seed")
    steps: int = 3
    """The "peak" is the maximum over this many steps of a fresh process."""
    architecture: str = "9.0"
    """The compute capability for which kernels and workspaces are chosen."""
    project: str = ""
    """A folder. For each block, the lines of files below it that were running are recorded; "" for
    none.
    """


def alone(request: Request) -> Request:
    """Return the training that is traced, from which the one that is asked for is derived.

    It is the same training on one GPU, or for ddp and zero1 one rank of ddp. Of FSDP's switches
    only the type in which the model computes changes what one GPU allocates. DeepSpeed's rank is
    traced as it is, and so is the first device of DataParallel.
    """
    if request.deepspeed:
        return request
    plain = Request(request.model)
    theirs = {name: getattr(plain, name) for name in DERIVED}
    if request.sharding != "fsdp" or request.fsdp_params == plain.fsdp_params:
        theirs |= {name: getattr(plain, name) for name in ("fsdp_params", "fsdp_wrap")}
    if request.sharding == "dp":
        return replace(request, **theirs)
    sharding = "ddp" if request.sharding in BUCKETED else "none"
    return replace(request, sharding=sharding, ranks=1, **theirs)


DERIVED = ("fsdp_reshard", "fsdp_reduce", "fsdp_offload", "fsdp_ahead")
"""FSDP's switches that change what is derived from a trace, and not the trace."""


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason why a prediction is less certain.

    ``code`` is no_fake_kernel, data_dependent, custom_kernel, compiled, unmeasured…, or
    fragmentation, which is about reserved memory only. ``operation`` names the operator if one is
    the cause. ``percent`` is what it adds to the error bar; if ``upward``, only to its upper side,
    because the training can take more than predicted but not less. ``less_percent`` is what it adds
    to the lower side where that is more than ``percent``, because the largest size was assumed.
    ``replayed`` says that the trace has what may happen instead, so that the error of reserved
    memory comes from a replay of it and not from ``percent``.
    """

    code: str
    text: str
    operation: str = ""
    percent: float = 0.0
    upward: bool = False
    less_percent: float | None = None
    replayed: bool = False


FIRST_DEVICE = Doubt(
    "sharding",
    "DataParallel is traced on one GPU. Of several, the first has the outputs and the loss of the "
    "whole batch, and only its share of the activations: --parallel dp --nproc N predicts it.",
    "DataParallel",
    30.0,
)


@dataclass(slots=True)
class Traced:
    """The child's answer.

    ``batch`` is the batch that was traced, also if the request did not set it.
    """

    trace: Trace
    batch: int
    parameters: int
    """The number of parameters; shared ones are counted once."""
    torch: str
    doubts: list[Doubt] = field(default_factory=list)
    seconds: float = 0.0
    source: str = ""
    """The file and line at which the factory is defined; "" for a model without a factory."""
    positions: int = 0
    """The tokens that a model which generates text has positions for; 0: not known, or no limit."""
    fraction: float | None = None
    """The share of the GPU that the program allows torch; None if it does not say."""
    setup: list[str] = field(default_factory=list)
    """What the training was found to use, in words: its first input, type of weights, optimizer."""


class CannotPredict(UserError):
    """A prediction cannot be made.

    ``code`` is as in :class:`Doubt`, or factory_failed, timeout, aborted, memory, no_torch.
    """

    def __init__(self, what: str, why: str, then: str, code: str = "factory_failed"):
        super().__init__(what, why, then, code)
