"""Define the request that is sent to the tracing child, and what comes back.

Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..errors import UserError
from ..lab.toggles import default
from .trace import Trace

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
SHARDINGS = ("none", "ddp", "zero1", "zero2", "fsdp")


@dataclass(frozen=True, slots=True)
class Request:
    """One configuration of one model.

    ``None`` means: as the model's own code or torch would have it.

    What the switches of :mod:`gpuscope.lab.toggles` set here is checked and told there; their
    ``predicts`` names the field. Where a default is not the switch's, the model is not the lab's
    and decides for itself.
    """

    model: str
    """A preset or family of the lab, ``MODULE:FACTORY``, ``hf:PATH`` (transformers config) or
    ``torchvision:NAME``.
    """
    batch: int | None = default("batch")
    amp: str = default("amp")
    accumulate: int = default("accumulate")
    checkpoint: int = 0
    """0: off. 1: every block is computed again in the backward pass. k: one block in k keeps its
    activations.
    """
    optimizer: str | None = None
    """adamw, adam, sgd (with momentum)…; None: the factory's own."""
    foreach: bool | None = default("foreach")
    fused: bool | None = default("fused")
    set_to_none: bool = default("set_to_none")
    tf32: bool | None = None
    """None: torch's own defaults, by which convolutions in float32 use TF32 and products do not;
    False: neither, as the lab's switch; True: both.
    """
    cudnn_benchmark: bool = default("cudnn_benchmark")
    deterministic: bool = default("deterministic")
    sequence: int | None = None
    """Tokens in a sample, for models that take them."""
    resolution: int | None = None
    """Pixels of a side, for models that take images."""
    task: str | None = None
    """Of a transformers config, one of ``TASKS``."""
    sharding: str = "none"
    """One of ``SHARDINGS``; over ``ranks`` ranks of which one is predicted."""
    ranks: int = 1
    seed: int = default("seed")
    steps: int = 3
    """Steps of a fresh process that "peak" is the maximum over."""
    architecture: str = "9.0"
    """Compute capability that kernels and workspaces are chosen for."""


def alone(request: Request) -> Request:
    """The same training on one GPU."""
    return replace(request, sharding="none", ranks=1)


@dataclass(frozen=True, slots=True)
class Doubt:
    """A reason why a prediction is less certain.

    ``code``: no_fake_kernel, data_dependent, custom_kernel, compiled, unmeasured…; ``operation``
    names the operator where one is to blame; ``percent`` is what it adds to the error bar, if
    ``upward`` to its upper side only: it can take more than predicted, not less.
    """

    code: str
    text: str
    operation: str = ""
    percent: float = 0.0
    upward: bool = False


@dataclass(slots=True)
class Traced:
    """What the child found.

    ``batch`` is the batch that was traced, also where the request left it open.
    """

    trace: Trace
    batch: int
    parameters: int
    """Numbers in all parameters, tied ones once."""
    torch: str
    doubts: list[Doubt] = field(default_factory=list)
    seconds: float = 0.0


class CannotPredict(UserError):
    """A prediction that cannot be made.

    ``code`` is as in :class:`Doubt`, or factory_failed, timeout, aborted, memory, no_torch.
    """

    def __init__(self, what: str, why: str, then: str, code: str = "factory_failed"):
        super().__init__(what, why, then, code)
