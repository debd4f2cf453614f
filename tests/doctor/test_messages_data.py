"""What goes into a step and does not fit gets its cause and its first fix.

The messages are those of torch 2.13 on a CPU.

The frames are those of real failures, without what stands in every traceback.
"""

from __future__ import annotations

from gpuscope.doctor import report as reports
from gpuscope.doctor import table
from gpuscope.doctor.finding import Finding, Report
from gpuscope.doctor.messages import examine
from tests.fakes.cases import each

from . import message_templates as say

EMBEDDING = (
    "/v/site-packages/torch/nn/functional.py",
    2615,
    "embedding",
    "return torch.embedding(weight, input)",
)
LOSS = (
    "/v/site-packages/torch/nn/functional.py",
    3555,
    "cross_entropy",
    "return torch._C._nn.cross_entropy_loss(",
)
COLLATE = (
    "/v/site-packages/torch/utils/data/_utils/collate.py",
    275,
    "collate_tensor_fn",
    "return torch.stack(batch)",
)
LINEAR = (
    "/v/site-packages/torch/nn/modules/linear.py",
    134,
    "forward",
    "return F.linear(input, self.weight)",
)
LOAD = (
    "/v/site-packages/torch/serialization.py",
    1609,
    "load",
    "raise pickle.UnpicklingError(_get_wo_message(str(e)))",
)
TAKEN = (
    (
        "/v/site-packages/torch/utils/data/dataloader.py",
        1290,
        "_try_get_data",
        "data = self._data_queue.get()",
    ),
    (
        "/v/site-packages/torch/multiprocessing/reductions.py",
        607,
        "rebuild_storage_fd",
        "fd = df.detach()",
    ),
    (
        "/usr/lib/python3.11/multiprocessing/connection.py",
        395,
        "_recv",
        "chunk = read(handle, remaining)",
    ),
)


def frame(code: str) -> tuple[str, int, str, str]:
    return ("/w/train.py", 41, "forward", code)


# (traceback, pitfall, cause, what the first fix must hold)
CASES = {
    "embedding": (
        say.traceback(frame("return self.out(self.words(ids))"), EMBEDDING)
        + "IndexError: index out of range in self",
        ("bad-index-or-label", "index.embedding", "resize_token_embeddings"),
    ),
    "position": (
        say.traceback(frame("x = x + self.position_embeddings(places)"), EMBEDDING)
        + "IndexError: index out of range in self",
        ("bad-index-or-label", "index.position", "truncation=True"),
    ),
    "position, GPT-2": (
        say.traceback(frame("position_embeds = self.wpe(position_ids)"), EMBEDDING)
        + "IndexError: index out of range in self",
        ("bad-index-or-label", "index.position", "truncation=True"),
    ),
    "position, BERT": (
        say.traceback(
            frame("token_type_ids = buffered_token_type_ids.expand(batch_size, seq_length)")
        )
        + "RuntimeError: The expanded size of the tensor (700) must match the existing size (512) "
        "at non-singleton dimension 1.  Target sizes: [1, 700].  Tensor sizes: [1, 512]",
        ("bad-index-or-label", "index.position", "truncation=True"),
    ),
    "label": (
        say.traceback(frame("loss = criterion(logits, labels)"), LOSS)
        + "IndexError: Target 5 is out of bounds.",
        ("bad-index-or-label", "index.label", "num_labels="),
    ),
    "label, one_hot": (
        "RuntimeError: Class values must be smaller than num_classes.",
        ("bad-index-or-label", "index.label", "num_labels="),
    ),
    "padding label": (
        say.traceback(LOSS) + "IndexError: Target -1 is out of bounds.",
        ("bad-index-or-label", "index.negative-label", "ignore_index=-1"),
    ),
    "index": (
        "IndexError: index 7 is out of bounds for dimension 0 with size 4",
        ("bad-index-or-label", "index.bounds", "index.max()"),
    ),
    "float64": (
        say.traceback(LINEAR)
        + "RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float",
        ("cast-to-model-dtype", "dtype.double", ".float()"),
    ),
    "float64, convolution": (
        "RuntimeError: Input type (double) and bias type (float) should be the same",
        ("cast-to-model-dtype", "dtype.double", ".float()"),
    ),
    "float64, recurrent": (
        "ValueError: RNN input dtype (torch.float64) does not match weight dtype (torch.float32). "
        "Convert input: input.to(torch.float32), or convert model: model.to(torch.float64)",
        ("cast-to-model-dtype", "dtype.double", ".float()"),
    ),
    "float64, loss": (
        "RuntimeError: Found dtype Double but expected Float",
        ("cast-to-model-dtype", "dtype.double", ".float()"),
    ),
    "integer labels": (
        "RuntimeError: expected target dtype to be Long or Byte, but got Int",
        ("cast-to-model-dtype", "dtype.labels", "targets.long()"),
    ),
    "width": (
        say.traceback(LINEAR)
        + "RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x1152 and 288x10)",
        ("shape-mismatch", "shape.product", "LazyLinear"),
    ),
    "channels": (
        "RuntimeError: Given groups=1, weight of size [6, 3, 3, 3], expected input[9, 1, 30, 30] "
        "to have 3 channels, but got 1 channels instead",
        ("shape-mismatch", "shape.channels", "Grayscale"),
    ),
    "elements": (
        "RuntimeError: The size of tensor a (7) must match the size of tensor b (9) at "
        "non-singleton dimension 1",
        ("shape-mismatch", "shape.elements", "shape"),
    ),
    "targets": (
        "ValueError: Expected input batch_size (6) to match target batch_size (7).",
        ("shape-mismatch", "shape.batch", "targets.flatten()"),
    ),
    "collate": (
        say.traceback(COLLATE)
        + "RuntimeError: stack expects each tensor to be equal size, but got [3, 9, 9] at entry 0 "
        "and [3, 9, 7] at entry 1",
        ("collate-sizes", "loader.collate", "Resize"),
    ),
    "collate, tokens": (
        "ValueError: expected sequence of length 9 at dim 1 (got 7)",
        ("collate-sizes", "loader.ragged", "DataCollatorWithPadding"),
    ),
    "weights only": (
        say.traceback(LOAD)
        + "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do "
        "so you have two options.\n\tWeightsUnpickler error: Unsupported global: GLOBAL "
        "argparse.Namespace was not an allowed global by default.",
        ("weights-only-load", "load.weights-only", "safe_globals"),
    ),
    "pointer instead of weights": (
        say.traceback(LOAD)
        + "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the "
        "default value.\n"
        "WeightsUnpickler error: \n\nUnsupported operand 118",
        ("damaged-checkpoint", "load.no-checkpoint", "head -c"),
    ),
    "cut checkpoint": (
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central "
        "directory",
        ("damaged-checkpoint", "load.no-checkpoint", "head -c"),
    ),
    "no guard": (
        "RuntimeError: \n        An attempt has been made to start a new process before the\n"
        "        current process has finished its bootstrapping phase.\n"
        + say.traceback(frame("for batch in loader:"))
        + "RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
        ("main-guard", "loader.main-guard", '__name__ == "__main__"'),
    ),
    "killed worker": (
        say.traceback(*TAKEN) + "ConnectionResetError: [Errno 104] Connection reset by peer",
        ("host-memory-limit", "host.worker-vanished", ""),
    ),
    "killed worker, end of file": (
        say.traceback(*TAKEN) + "EOFError",
        ("host-memory-limit", "host.worker-vanished", ""),
    ),
    "prefix of a wrapper": (
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        '\tMissing key(s) in state_dict: "a.weight", "a.bias". \n'
        '\tUnexpected key(s) in state_dict: "module.a.weight", "module.a.bias".',
        ("use-module-attr", "dp.saved-wrapped", 'removeprefix("module.")'),
    ),
    "prefix of a compiled model": (
        "RuntimeError: Error(s) in loading state_dict for Net:\n"
        '\tMissing key(s) in state_dict: "a.weight". \n'
        '\tUnexpected key(s) in state_dict: "_orig_mod.a.weight".',
        ("use-module-attr", "dp.saved-compiled", 'removeprefix("_orig_mod.")'),
    ),
    "wrapper without prefix": (
        "RuntimeError: Error(s) in loading state_dict for DataParallel:\n"
        "\tMissing key(s) in state_dict: "
        '"module.a.weight". \n\tUnexpected key(s) in state_dict: "a.weight".',
        ("use-module-attr", "dp.loaded-wrapped", "model.module.load_state_dict"),
    ),
    "Lightning": (
        "RuntimeError: It looks like your LightningModule has parameters that were not used in "
        "producing the loss returned by training_step. If this is intentional, you must enable the "
        "detection of unused parameters in DDP, either by setting the string value "
        "`strategy='ddp_find_unused_parameters_true'` or by setting the flag in the strategy with "
        "`strategy=DDPStrategy(find_unused_parameters=True)`.",
        (
            "find-unused-parameters",
            "ddp.unused-lightning",
            'strategy="ddp_find_unused_parameters_true"',
        ),
    ),
}


def settled(text: str):
    return reports.finish(Report(findings=examine(text.split("\n"))[0]), table.load()).findings


@each("name", CASES)
def test_the_cause_and_its_first_fix(name):
    text, (pitfall, cause, fix) = CASES[name]
    first, *others = settled(text)
    assert (first.pitfall, first.cause, first.severity) == (pitfall, cause, "problem")
    assert fix in "".join((first.fixes[0].title, first.fixes[0].code, first.fixes[0].command))
    assert "CUDA" not in str(first.fixes)
    assert "half()" not in str(first.fixes)
    assert pitfall not in {one.pitfall for one in others}


def test_a_worker_that_fails_is_not_cured_by_more_workers():
    for name in ("no guard", "killed worker"):
        (one,) = (one for one in settled(CASES[name][0]) if one.pitfall == "num-workers")
        assert "num_workers=0" in one.fixes[0].code


def test_an_assert_on_cuda_is_first_made_to_name_its_line():
    one = settled("RuntimeError: CUDA error: device-side assert triggered")[0]
    assert one.fixes[0].environment == "export CUDA_LAUNCH_BLOCKING=1"


def test_a_connection_of_something_else_is_no_worker():
    text = say.traceback(("/w/client.py", 7, "ask", "return socket.recv(9)"))
    assert settled(text + "ConnectionResetError: [Errno 104] Connection reset by peer") == ()


def shape_mismatch(*lines: str) -> Finding:
    found, _ = examine(lines, "log")
    return next(one for one in found if one.pitfall == "shape-mismatch")


def test_a_size_mismatch_has_its_own_numbers_and_the_users_line():
    message = "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x63 and 64x32)"
    linear = 'File "/v/site-packages/torch/nn/modules/linear.py", line 134, in forward'
    found = shape_mismatch('File "/home/ada/train.py", line 6, in step', linear, message)
    first = found.fixes[0]
    assert found.where == "train.py:6"
    assert first.title.startswith("train.py:6: the input has 63 features, nn.Linear takes 64:")
    assert (first.before, first.code) == ("nn.Linear(64, 32)", "nn.Linear(63, 32)")
    assert "400" not in str(found.fixes)
    alone = shape_mismatch(message).fixes[0]
    assert alone.title.startswith("The input has 63 features, the layer takes 64:")


def test_pictures_that_were_not_flattened_are_flattened():
    found = shape_mismatch(
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (224x28 and 784x10)"
    )
    assert found.fixes[0].title.startswith("Where 784 = 28 × 28 is one sample")
    assert found.fixes[0].code == "x = x.flatten(start_dim=1)"


def test_without_numbers_those_of_the_table_are_called_an_example():
    found = shape_mismatch("the shapes cannot be multiplied")
    assert found.fixes == ()
    assert "for example" in table.load()["shape-mismatch"].fixes_for("shape.product")[0].title
