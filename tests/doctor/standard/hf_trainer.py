"""Fine-tune a classifier in the style of Transformers' documentation.

It uses Trainer and TrainingArguments.
"""

import numpy as np
import torch
from datasets import load_dataset
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)


class Weighted(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = torch.tensor([1.0, 2.0], device=outputs.logits.device)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels, weight=weight)
        return (loss, outputs) if return_outputs else loss


def compute_metrics(prediction):
    return {
        "accuracy": float(
            (np.argmax(prediction.predictions, axis=-1) == prediction.label_ids).mean()
        )
    }


tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
model = AutoModelForSequenceClassification.from_pretrained("bert-base-cased", num_labels=2)
data = load_dataset("imdb").map(
    lambda batch: tokenizer(batch["text"], truncation=True), batched=True
)
trainer = Weighted(
    model=model,
    args=TrainingArguments(
        "out", per_device_train_batch_size=16, fp16=torch.cuda.is_available(), eval_strategy="epoch"
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=compute_metrics,
)
trainer.train()
