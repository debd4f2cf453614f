"""TRL's SFTTrainer with a tokenizer and a model made here, and a LoRA adapter of PEFT."""

import tempfile

import truth

truth.declare_vision_operators()
from datasets import Dataset  # noqa: E402
from peft import LoraConfig  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402
from tokenizers.models import WordLevel  # noqa: E402
from tokenizers.pre_tokenizers import Whitespace  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, TrainerCallback  # noqa: E402
from trl import SFTConfig, SFTTrainer  # noqa: E402

total = truth.steps(0.8)
words = ["<pad>", "<eos>", *(f"w{n}" for n in range(126))]
backend = Tokenizer(WordLevel({word: n for n, word in enumerate(words)}, unk_token="<pad>"))
backend.pre_tokenizer = Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>")
model = GPT2LMHeadModel(
    GPT2Config(
        n_layer=2,
        n_head=2,
        n_embd=32,
        vocab_size=128,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=1,
    )
)
truth.slow(model)
texts = Dataset.from_dict(
    {"text": [" ".join(words[2 + (n * k) % 126] for k in range(20)) for n in range(512)]}
)


class Watch(TrainerCallback):
    def on_train_begin(self, args, state, control, **more):
        truth.begin(total=state.max_steps, no_input=True, unpoisoned=True)

    def on_optimizer_step(self, args, state, control, **more):
        if state.global_step == 30:
            truth.count_bytes(trainer.model, trainer.optimizer)

    def on_step_end(self, args, state, control, **more):
        truth.note(step=state.global_step, done=state.global_step)

    def on_log(self, args, state, control, logs=None, **more):
        if "loss" in logs:
            truth.note(loss=float(logs["loss"]))


with tempfile.TemporaryDirectory() as folder:
    arguments = SFTConfig(
        folder,
        max_steps=total,
        per_device_train_batch_size=2,
        logging_steps=4,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        max_length=32,
        learning_rate=1e-3,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=texts,
        processing_class=tokenizer,
        callbacks=[Watch()],
        peft_config=LoraConfig(
            r=4, target_modules=["c_attn"], task_type="CAUSAL_LM", fan_in_fan_out=True
        ),
    )
    trainer.train()
