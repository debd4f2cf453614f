"""Messages about tensors and modules on the wrong device, or of the wrong type."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule
from .rules_data import DOUBLE, WRONG_LABELS

INPUTS = "An input, index or target is not on the model's device"
MODEL = "The model, or a layer of it, was not moved"
HIDDEN = "A layer or tensor is not registered with its module, so moving the module leaves it behind"
CAST = "Half and full precision meet in one operation"
# The argument of a matrix product or convolution tells weight from input: addmm(bias, input, weight).
WEIGHT_ON_CPU = r"(?:got backend cpu|got device type cpu|is on cpu)[^.]{0,40}(?:mat2|weight|bias|batch2)"
GOT_CUDA = r"but got (?:backend|device type) cuda|but found type torch\.cuda"
GOT_CPU = r"but got (?:backend|device type) cpu|but found type torch\.(?!cuda)"
TYPES_DIFFER = (
    r"input type \([^)]*(?:half|bfloat16)[^)]*\) and (?:weight|bias) type \((?![^)]*(?:half|bfloat16))"
    r"|input type \((?![^)]*(?:half|bfloat16))[^)]*\) and (?:weight|bias) type \([^)]*(?:half|bfloat16)"
    r"|input type \([^)]*half[^)]*\) and (?:weight|bias) type \([^)]*bfloat|input type \([^)]*double[^)]*\) and"
)
# "found at least two devices, A and B! (when checking argument for argument X)": X is on B, what came before it on A.
# What a layer is called with and what it owns are told apart by the argument's name.
_CALLED = r"(?:mat1|input|index|indices|target|src|hx|vec)"
_OWNED = r"(?:mat2|weight|bias|running_mean|running_var)"
_CHECKED = r"!? ?\(when checking argument for argument "
_CARD = r"(?:cuda|xpu|hip|mps)(?::\d+)?"
INPUTS_BEHIND = (
    rf"{_CARD} and cpu{_CHECKED}{_CALLED} in method|cpu and {_CARD}{_CHECKED}{_OWNED} in method"
    rf"|(?:got|and) {_CALLED} is on cpu, different from other tensors on {_CARD}"
    rf"|got {_OWNED} is on {_CARD}, different from other tensors on cpu"
    rf"|got (?:target|index|indices|src) is on {_CARD}, different from other tensors on {_CARD}"
    rf"|found input tensor at cpu and|at {_CARD} and hidden tensor at cpu|'{_CALLED}' is on cpu, but expected"
    r"|for argument weight in method wrapper_(?:cuda_)?_?nll_loss"
)
MODEL_BEHIND = (
    rf"cpu and {_CARD}{_CHECKED}{_CALLED} in method|{_CARD} and cpu{_CHECKED}{_OWNED} in method"
    rf"|got {_CALLED} is on {_CARD}, different from other tensors on cpu"
    rf"|got {_OWNED} is on cpu, different from other tensors on {_CARD}"
    rf"|found input tensor at {_CARD} and parameter tensor at cpu|'{_OWNED}' is on cpu, but expected"
)
OWNED_ON_CARD = rf"(?:{GOT_CUDA})[^.]{{0,60}}for argument #\d+ '{_CALLED}'"
CALLED_ON_CPU = rf"(?:{GOT_CPU})[^.]{{0,60}}for argument #\d+ '{_CALLED}'"
LIBRARY = "A published tool or library leaves one of its tensors behind; a newer version moves it"
STATES = "The optimizer's states are where the model was when it was made or resumed, not where it is"
CPU_MODULE = r"on device:? ?cpu|them on device: ?cpu"
OTHER = r"found one of them on device: ?(?:cuda|hip)"
REPLICAS = "DataParallel's threads know that autocast is on, not that it is bf16: they compute in fp16"
BOTH_HALVES = r"bfloat16[^~]{0,300}(?<!b)(?:half|float16)|(?:half|(?<!b)float16)[^~]{0,300}bfloat16"

# "Missing key(s) in state_dict: ", up to the first name.
KEYS = r"keys?(?:\(s\))?(?: in state_dict)?[^:]{0,40}:[^:\"']{0,4}"

RULES = (
    Rule(
        "device.mixed",
        (
            "expected all tensors to be on the same device",
            "to have the same device as tensor",
            "different from other tensors on",
            "is not on the expected device",
            "tensors are not at the same device",
            "indices must be on the current device",
        ),
        (
            O("move-inputs-to-device", INPUTS, 0.82, "likely", words=INPUTS_BEHIND),
            O("move-model-to-device", MODEL, 0.82, "likely", words=MODEL_BEHIND),
            O("move-inputs-to-device", INPUTS, 0.70, "likely", unlike=MODEL_BEHIND),
            O(
                "buffers-not-registered",
                HIDDEN,
                0.75,
                "likely",
                words=r"cuda:\d+,? and cuda:\d|cuda:\d+, different from other tensors on cuda",
            ),
            O(
                "set-device-per-rank",
                "Ranks or modules use different devices",
                0.4,
                words=r"cuda:\d+,? and cuda:\d",
                when=("ddp",),
            ),
            O(
                "buffers-not-registered",
                HIDDEN,
                0.72,
                "likely",
                words=r"(?:self\.[a-z_0-9.]+\s?[-+*/@]|[-+*/@]\s?self\.|self\.[a-z_]*(?:mean|std|mask|table|grid"
                r"|anchor|pos|scale|buffer|const|weight)\w*)",
                unlike=f"{INPUTS_BEHIND}|{MODEL_BEHIND}",
            ),
            O("upgrade-library", LIBRARY, 0.72, "likely", when=("diffusion",)),
            O("move-model-to-device", STATES, 0.74, "likely", when=("optimizer",)),
            O("load-checkpoint-map-location-cpu", STATES, 0.58, when=("optimizer",)),
            O("move-inputs-to-device", INPUTS, 0.55),
            O("buffers-not-registered", HIDDEN, 0.50, unlike=r"when checking argument"),
            O("upgrade-library", LIBRARY, 0.47),
            O("buffers-not-registered", HIDDEN, 0.45),
            O("move-model-to-device", MODEL, 0.46, unlike=INPUTS_BEHIND),
            O("move-model-to-device", MODEL, 0.40),
        ),
    ),
    Rule(
        "device.mixed",
        (
            "expected object of backend",
            "expected object of device type",
            "expected a tensor of backend",
            "expected object of type torch",
            "expected it to be on gpu",
            "expected them to be on gpu",
        ),
        (
            O("move-inputs-to-device", INPUTS, 0.80, "likely", words=f"{CALLED_ON_CPU}|{INPUTS_BEHIND}"),
            O("move-model-to-device", MODEL, 0.80, "likely", words=f"{OWNED_ON_CARD}|{MODEL_BEHIND}"),
            O("move-model-to-device", MODEL, 0.76, "likely", words=WEIGHT_ON_CPU),
            O("move-model-to-device", MODEL, 0.74, "likely", words=GOT_CUDA),
            O("move-inputs-to-device", INPUTS, 0.74, "likely", words=GOT_CPU),
            O("buffers-not-registered", HIDDEN, 0.45),
            O("move-inputs-to-device", INPUTS, 0.44),
            O("move-model-to-device", MODEL, 0.40),
        ),
    ),
    Rule(
        "device.index",
        ("indices should be either on", "index is on cuda, self is on cpu", "expected index to be on"),
        (
            O("move-inputs-to-device", "An index is on another device than what it indexes", 0.95, "definite"),
            O("buffers-not-registered", HIDDEN, 0.3),
        ),
    ),
    Rule(
        "device.mixed",
        (
            "placeholder storage has not been allocated on mps",
            "cannot be accessed from triton",
            "device type for generator but found",
        ),
        (
            O("move-inputs-to-device", INPUTS, 0.72, "likely"),
            O("move-model-to-device", MODEL, 0.60),
            O("buffers-not-registered", HIDDEN, 0.45),
        ),
    ),
    Rule(
        "device.meta",
        ("cannot copy out of meta tensor", "tensor on device meta is not on the expected device"),
        (
            O("upgrade-library", "A library moves a model whose weights were not loaded yet", 0.6, "likely"),
            O("offload-cpu", "Weights that are offloaded are moved as if they were here", 0.5),
            O("move-model-to-device", MODEL, 0.40),
        ),
    ),
    Rule(
        "device.numpy",
        ("can't convert cuda", "can't convert cuda:0 device type tensor to numpy"),
        (O("move-inputs-to-device", "A tensor on the device is used where one on the host is needed", 0.8, "likely"),),
    ),
    Rule(
        "device.input-and-weight",
        ("and weight type (", "and bias type (", "should be the same or input should be a mkldnn"),
        (
            O(
                "move-model-to-device",
                MODEL,
                0.72,
                "likely",
                words=r"input type \((?:torch\.cuda|cuda|mps)[^)]*\) and (?:weight|bias) type \((?:torch\.(?!cuda)"
                r"|cpu)",
            ),
            O(
                "buffers-not-registered",
                "Layers in a plain list, or made later, are not moved with their module",
                0.66,
                "likely",
                words=r"input type \((?:torch\.cuda|cuda|mps)[^)]*\) and (?:weight|bias) type \((?:torch\.(?!cuda)"
                r"|cpu)",
            ),
            O(
                "move-inputs-to-device",
                INPUTS,
                0.95,
                "definite",
                words=r"input type \((?:torch\.(?!cuda)|cpu)[^)]*\) and (?:weight|bias) type \((?:torch\.cuda|cuda"
                r"|mps)",
            ),
            O("cast-to-model-dtype", CAST, 0.85, "likely", words=TYPES_DIFFER),
        ),
        pattern=r"input type \([^)]{1,60}\) and (?:weight|bias) type \([^)]{1,60}\)|input should be a mkldnn",
    ),
    Rule(
        "dp.module-device",
        ("module must have its parameters and buffers on device",),
        (
            O("move-model-to-device", "DataParallel finds the module on the CPU", 0.95, "definite", words=CPU_MODULE),
            O(
                "set-device-per-rank",
                "DataParallel inside a rank that owns one device",
                0.8,
                "likely",
                words=OTHER,
                when=("ddp",),
            ),
            O("move-model-to-device", "The module is not on device_ids[0]", 0.72, "likely", words=OTHER),
            O("visible-devices", "device_ids names other devices than the module is on", 0.6, words=OTHER),
            O("set-device-per-rank", "Each process must choose its device", 0.58, words=OTHER),
            O("ddp-instead-of-dp", "One process for each device needs no device_ids", 0.55, words=OTHER),
        ),
    ),
    Rule(
        "dtype.mixed",
        (
            "must have the same dtype",
            "expected scalar type",
            "expected dtype",
            "expected m1 and m2 to have the same dtype",
            "value cannot be converted to type at::half",
            "found dtype",
            "index put requires the source and destination dtypes match",
            "to have the same dtype",
            "unexpected floating scalartype",
            "to have same dtype",
            "to have scalar type",
            "expected object of scalar type",
            "invalid dtype for bias",
        ),
        (
            O("cast-to-model-dtype", CAST, 0.80, "likely", unless=("diffusion",)),
            O("cast-to-model-dtype", CAST, 0.60, "likely", when=("diffusion",)),
            O("upgrade-library", "A library mixes precisions by itself", 0.72, "likely", when=("diffusion", "lora")),
            O("upgrade-library", "A library mixes precisions by itself", 0.45),
            O("autocast-inside-forward", REPLICAS, 0.84, "likely", words=BOTH_HALVES, when=("dataparallel", "gather")),
            O("ddp-instead-of-dp", REPLICAS, 0.66, "likely", words=BOTH_HALVES, when=("dataparallel", "gather")),
            O("move-model-to-device", "A layer made later is neither moved nor cast with its model", 0.35),
            O("mixed-precision", "The forward pass is outside autocast", 0.3),
        ),
        pattern=r"floating scalartype|(?:dtype|scalar type|type)[^.]{0,80}?(?:half|bfloat16|float16|float|double|long)",
        unlike=f"{DOUBLE}|{WRONG_LABELS}",
    ),
    Rule(
        "dtype.half-on-cpu",
        ("not implemented for 'half'", 'not implemented for "half"'),
        (
            O("move-model-to-device", "A half-precision model runs on the CPU", 0.7, "likely"),
            O("cast-to-model-dtype", "The operation has no half-precision form on this device", 0.6, "likely"),
            O("wrong-torch-build-cpu-only", "The device was not found, so the model stayed on the CPU", 0.3),
        ),
    ),
    Rule(
        "dp.module-device",
        ("broadcast function not implemented for cpu tensors",),
        (O("move-model-to-device", "DataParallel finds the module on the CPU", 0.85, "likely"),),
    ),
    Rule(
        "dp.attribute",
        ("object has no attribute",),
        (
            O("use-module-attr", "The wrapper hides the model's attributes", 0.95, "definite"),
            O("ddp-instead-of-dp", "DataParallel wraps where one process for each device would do", 0.2),
        ),
        pattern=r"(?:dataparallel|distributeddataparallel|fullyshardeddataparallel)'? object has no attribute"
        r"|object has no attribute '?module'?(?![a-z0-9_])",
    ),
    Rule(
        "dp.saved-wrapped",
        ("in state_dict", "unexpected key"),
        (O("use-module-attr", "The checkpoint was saved from a wrapped model, and this one is not", 0.9, "likely"),),
        pattern=rf"unexpected {KEYS}[\"'](?:[a-z_]+\.)?module\.",
    ),
    Rule(
        "dp.saved-compiled",
        ("_orig_mod.",),
        (O("use-module-attr", "The checkpoint was saved from a compiled model, and this one is not", 0.9, "likely"),),
        pattern=rf"unexpected {KEYS}[\"'](?:[a-z_]+\.)?_orig_mod\.",
    ),
    Rule(
        "dp.loaded-wrapped",
        ("in state_dict", "missing key"),
        (O("use-module-attr", "The model is wrapped, and the checkpoint was saved without a wrapper", 0.85, "likely"),),
        pattern=rf"missing {KEYS}[\"'](?:[a-z_]+\.)?module\.",
    ),
    Rule(
        "dp.chunks",
        (
            "expects at least a 1-dimensional tensor",
            "chunk expects",
            "caught valueerror in replica",
            "caught runtimeerror in replica",
        ),
        (
            O(
                "dp-batch-multiple",
                "DataParallel's part of the last batch is one sample, too few for batch normalisation",
                0.9,
                "likely",
                words=r"expected more than 1 value per channel",
            ),
            O("dp-batch-multiple", "DataParallel splits a batch that does not divide among the devices", 0.5),
        ),
    ),
    Rule(
        "dp.devices",
        ("gather function not implemented for cpu tensors",),
        (
            O(
                "move-inputs-to-device",
                "What forward returns is on the CPU, and DataParallel gathers on devices",
                0.7,
                "likely",
            ),
            O("move-model-to-device", "The module is not on device_ids[0]", 0.5),
            O("ddp-instead-of-dp", "One process for each device gathers no outputs", 0.4),
        ),
    ),
    Rule(
        "dp.devices",
        ("arguments are located on different gpus", "tensors must be on devices[0]"),
        (
            O("buffers-not-registered", HIDDEN, 0.62, "likely"),
            O("move-inputs-to-device", INPUTS, 0.55, "likely"),
            O("move-model-to-device", "The module is not on device_ids[0]", 0.5),
            O("visible-devices", "device_ids names other devices than the module is on", 0.35),
        ),
    ),
    Rule(
        "dp.replica-parameters",
        ("stopiteration in replica",),
        (
            O("upgrade-library", "A library asks a replica for parameters that it has not", 0.75, "likely"),
            O("ddp-instead-of-dp", "One process for each device has no replicas", 0.6, "likely"),
        ),
    ),
    Rule(
        "dp.gather-size",
        ("gather got an input of invalid size",),
        (O("dp-batch-multiple", "The outputs of the last, smaller batch cannot be gathered", 0.7, "likely"),),
    ),
    Rule(
        "dtype.overflow",
        (
            "cannot be converted to type at::half without overflow",
            "cannot be converted to type c10::half without overflow",
        ),
        (
            O("cast-to-model-dtype", "A constant does not fit half precision", 0.72, "likely"),
            O("bf16-instead-of-fp16", "bf16 has the range of fp32", 0.6, "likely"),
            O("upgrade-library", "A library's mask value does not fit half precision", 0.5),
        ),
    ),
)
