"""Messages about what goes into a step: indices and labels out of range, shapes, kinds of numbers, and loaded files."""

from __future__ import annotations

from .rule import Option as O
from .rule import Rule

LABEL = "An index or label is outside its range"
# The call of a layer for positions, as its frame shows it: self.position_embeddings(…), self.wpe(…).
POSITIONS = r"(?:position|wpe|pos_emb)\w*\("
FLOAT64 = "float64, which numpy makes by default, meets the float32 of the weights"
LABEL_KIND = "Labels are of a kind that this loss does not take"
_DOUBLE_TYPES = r"(?:(?:torch\.)?(?:cuda\.)?(?:double|float)(?:tensor)?)"
DOUBLE = (
    r"got:? ?(?:double (?:and|!=) float|float (?:and|!=) double)"
    r"|scalar type (?:float but (?:found|got)(?: scalar type)? double|double but (?:found|got)(?: scalar type)? float)"
    r"|dtype (?:double but expected float|float but expected double|double but got dtype float)"
    rf"|input type \((?=[^)]*double|[^)]*\)[^)]*double){_DOUBLE_TYPES}\) and (?:weight|bias) type \({_DOUBLE_TYPES}\)"
    r"|input dtype \(torch\.float64\) does not match weight dtype|to float64 dtype as the mps"
    r"|must have the type torch\.float32, got type torch\.float64"
)
WRONG_LABELS = (
    r"scalar type long but (?:found|got)(?: scalar type)? (?:int|float|double|short)|target dtype to be long"
    r"|dtype long but expected float|scalar type float but (?:found|got)(?: scalar type)? (?:long|int)"
    r"|can't be cast to the desired output type long"
)
GONE = r"(?:connectionreseterror|connectionrefusederror|brokenpipeerror|eoferror)"

RULES = (
    Rule(
        "index.embedding",
        ("index out of range in self",),
        (O("bad-index-or-label", "An index is not below the number of rows of its embedding", 0.95, "definite"),),
    ),
    Rule(
        "index.position",
        ("index out of range in self", "the expanded size of the tensor"),
        (
            O(
                "bad-index-or-label",
                "The sequence is longer than the model has positions",
                0.97,
                "definite",
                words=POSITIONS + r"[^~]{0,1500}index out of range in self",
            ),
            O(
                "bad-index-or-label",
                "The sequence is longer than the model has positions",
                0.9,
                "likely",
                words=r"buffered_token_type_ids\.expand\([^~]{0,600}the expanded size of the tensor",
            ),
        ),
    ),
    Rule(
        "index.label",
        ("is out of bounds.", "class values must be smaller"),
        (O("bad-index-or-label", "A label is not below the number of classes", 0.95, "definite"),),
        pattern=r"target \d+ is out of bounds|class values must be smaller",
    ),
    Rule(
        "index.negative-label",
        ("is out of bounds.", "class values must be non-negative"),
        (O("bad-index-or-label", "A label is negative, and the loss counts it as a class", 0.96, "definite"),),
        pattern=r"target -\d+ is out of bounds|class values must be non-negative",
    ),
    Rule(
        "index.bounds",
        ("is out of bounds for dimension",),
        (O("bad-index-or-label", "An index is not below the size of its dimension", 0.85, "likely"),),
        pattern=r"index -?\d+ is out of bounds for dimension",
    ),
    Rule(
        "label.range",
        (
            "device-side assert triggered",
            "srcindex < srcselectdimsize",
            "t >= 0 && t < n_classes",
            "cur_target >= 0",
            "indexing.cu",
            "scattergatherkernel",
            "class values must be in",
        ),
        (
            O(
                "bad-index-or-label",
                LABEL,
                0.95,
                "definite",
                words=r"srcselectdimsize|n_classes|cur_target|indexing\.cu|target_val",
            ),
            O("bad-index-or-label", LABEL, 0.85, "likely"),
        ),
        pattern=r"device-side assert triggered|srcindex < srcselectdimsize"
        r"|t >= 0 && t < n_classes|cur_target >= 0|index out of bounds[`'\x22] ?failed|class values must be in",
    ),
    Rule(
        "dtype.double",
        ("double", "float64"),
        (O("cast-to-model-dtype", FLOAT64, 0.92, "definite"),),
        pattern=DOUBLE,
    ),
    Rule(
        "dtype.labels",
        ("long", "desired output type"),
        (O("cast-to-model-dtype", LABEL_KIND, 0.85, "likely"),),
        pattern=WRONG_LABELS,
    ),
    Rule(
        "shape.product",
        ("shapes cannot be multiplied", "size mismatch, m1", "mat1 dim 1 must match mat2 dim 0"),
        (O("shape-mismatch", "The input has another width than the layer takes", 0.95, "definite"),),
    ),
    Rule(
        "shape.channels",
        ("channels, but got",),
        (O("shape-mismatch", "The input has another number of channels than the layer takes", 0.95, "definite"),),
        pattern=r"weight of size \[[\d, ]+\], expected input\[[\d, ]+\] to have \d+ channels, but got",
    ),
    Rule(
        "shape.batch",
        ("to match target batch_size", "using a target size (", "target size ("),
        (O("shape-mismatch", "Outputs and targets have different sizes", 0.85, "likely"),),
        pattern=r"expected input batch_size \(\d+\) to match target batch_size|target size \(.{0,60}\) must be the same"
        r" as input size",
    ),
    Rule(
        "shape.elements",
        (
            "must match the size of tensor b",
            "the expanded size of the tensor",
            "' is invalid for input of size",
            "sizes of tensors must match except in dimension",
        ),
        (
            O(
                "shape-mismatch",
                "Two shapes that have to agree do not",
                0.8,
                "likely",
                unlike=r"buffered_token_type_ids\.expand\(",
            ),
        ),
        pattern=r"size of tensor a \(\d+\) must match the size of tensor b|the expanded size of the tensor \(\d+\) must"
        r"|shape '\[[-\d, ]+\]' is invalid for input of size|sizes of tensors must match except in dimension",
    ),
    Rule(
        "loader.collate",
        (
            "stack expects each tensor to be equal size",
            "in list of batch should be of equal size",
            "trying to resize storage that is not resizable",
        ),
        (O("collate-sizes", "Samples of one batch have different sizes", 0.92, "definite"),),
    ),
    Rule(
        "loader.ragged",
        ("expected sequence of length", "activate truncation and/or padding"),
        (O("collate-sizes", "Token lists of one batch have different lengths", 0.93, "definite"),),
        pattern=r"expected sequence of length \d+ at dim \d+ \(got|activate truncation and/or padding",
    ),
    Rule(
        "load.weights-only",
        ("weights only load failed", "unsupported global: global"),
        (
            O(
                "weights-only-load",
                "The file holds more than tensors, and torch.load takes only tensors since 2.6",
                0.95,
                "definite",
                words=r"unsupported global|unsupported class|was not an allowed global",
            ),
            O(
                "weights-only-load",
                "torch.load takes only tensors since 2.6, and refuses this file",
                0.8,
                "likely",
                unlike=r"unsupported operand",
            ),
        ),
    ),
    Rule(
        "load.no-checkpoint",
        ("unsupported operand", "invalid load key", "failed finding central directory", "invalid magic number"),
        (
            O(
                "damaged-checkpoint",
                "The file is text, not a checkpoint: the pointer that Git LFS leaves, or a page of the web",
                0.95,
                "definite",
                words=r"unsupported operand (?:118|60)(?!\d)|invalid load key, '[v<]'",
            ),
            O("damaged-checkpoint", "The file is no checkpoint, or cut short", 0.85, "likely"),
        ),
        pattern=r"weightsunpickler error: unsupported operand \d+|unpicklingerror: invalid load key"
        r"|zip archive: failed finding central directory|invalid magic number; corrupt file",
    ),
    Rule(
        "loader.main-guard",
        ("before the current process has finished its bootstrapping phase",),
        (
            O(
                "main-guard",
                'The program starts processes outside of if __name__ == "__main__"',
                0.96,
                "definite",
            ),
            O("num-workers", "With 0 workers the loader starts no process", 0.4),
        ),
    ),
    Rule(
        "host.worker-vanished",
        ("connectionreseterror", "connectionrefusederror", "brokenpipeerror", "eoferror"),
        (
            O(
                "host-memory-limit",
                "A loader worker was gone before its batch was taken: killed, mostly for the host's memory",
                0.74,
                "likely",
            ),
            O("num-workers", "A loader worker died; with 0 workers its error is shown", 0.6, "likely"),
            O("shm-size", "A worker dies without a word where /dev/shm is full", 0.35),
        ),
        pattern=rf"(?:_try_get_data|rebuild_storage_fd|multiprocessing/reductions\.py)[^~]{{0,4000}}{GONE}",
    ),
)
