"""Messages about tensors and modules on the wrong device or of the wrong type, and about labels out of range."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

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
CPU_MODULE = r"on device:? ?cpu|them on device: ?cpu"
OTHER = r"found one of them on device: ?(?:cuda|hip)"
LABEL = "An index or label is outside its range"

RULES = (
    Rule(
        "device.mixed",
        (
            "expected all tensors to be on the same device",
            "to have the same device as tensor",
            "different from other tensors on",
            "is not on the expected device",
        ),
        (
            O("move-inputs-to-device", INPUTS, 0.70, "likely"),
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
            ),
            O(
                "move-model-to-device",
                MODEL,
                0.74,
                "likely",
                words=r"argument (?:weight|bias|mat2|'?mat2|running_mean|running_var)|expected '?mat2|mat2 is on cpu"
                r"|weight is on cpu",
            ),
            O("buffers-not-registered", HIDDEN, 0.45),
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
        ),
        (
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
        ),
        (
            O("cast-to-model-dtype", CAST, 0.80, "likely", unless=("diffusion",)),
            O("cast-to-model-dtype", CAST, 0.60, "likely", when=("diffusion",)),
            O("upgrade-library", "A library mixes precisions by itself", 0.72, "likely", when=("diffusion", "lora")),
            O("upgrade-library", "A library mixes precisions by itself", 0.45),
            O("mixed-precision", "The forward pass is outside autocast", 0.3),
        ),
        pattern=r"(?:dtype|scalar type|type)[^.]{0,80}?(?:half|bfloat16|float16|float|double|long)",
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
        "label.range",
        (
            "device-side assert triggered",
            "index out of range in self",
            "srcindex < srcselectdimsize",
            "t >= 0 && t < n_classes",
            "cur_target >= 0",
            "indexing.cu",
            "out of bounds for dimension",
            "scattergatherkernel",
            "is out of bounds.",
        ),
        (
            O(
                "bad-index-or-label",
                LABEL,
                0.95,
                "definite",
                words=r"srcselectdimsize|n_classes|cur_target|index out of range in self|indexing\.cu"
                r"|target \d+ is out of bounds|target_val",
            ),
            O("bad-index-or-label", LABEL, 0.85, "likely"),
        ),
        pattern=r"device-side assert triggered|index out of range in self|srcindex < srcselectdimsize"
        r"|t >= 0 && t < n_classes|cur_target >= 0|index out of bounds[`'\x22] ?failed|target -?\d+ is out of bounds"
        r"|index -?\d+ is out of bounds for dimension",
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
        "dp.state-dict",
        ("in state_dict", "unexpected key", "missing key"),
        (O("use-module-attr", "The checkpoint was saved from, or is loaded into, a wrapped model", 0.85, "likely"),),
        pattern=r"(?:missing|unexpected) key\(?s?\)? in state_dict: ?[\"']?module\.|(?:missing"
        r"|unexpected)[^:]{0,40}:[^:]{0,4}\"module\.",
    ),
    Rule(
        "dp.chunks",
        (
            "expects at least a 1-dimensional tensor",
            "chunk expects",
            "caught valueerror in replica",
            "caught runtimeerror in replica",
        ),
        (O("dp-batch-multiple", "DataParallel splits a batch that does not divide among the devices", 0.5),),
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
