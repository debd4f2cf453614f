"""Fine-tune a language model in the style of Transformers' scripts without Trainer.

It uses accelerate and one loop.
"""

import argparse
import math

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, default_data_collator, get_scheduler


def main():
    args = argparse.Namespace(model="gpt2", batch_size=8, epochs=3, accumulate=4, lr=5e-5)
    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    model = AutoModelForCausalLM.from_pretrained(args.model)
    train_data, eval_data = load(tokenizer)
    train_loader = DataLoader(
        train_data,
        shuffle=True,
        collate_fn=default_data_collator,
        batch_size=args.batch_size,
        num_workers=4,
    )
    eval_loader = DataLoader(
        eval_data, collate_fn=default_data_collator, batch_size=args.batch_size
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    scheduler = get_scheduler("linear", optimizer, 100, args.epochs * len(train_loader))
    model, optimizer, train_loader, eval_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, eval_loader, scheduler
    )
    if accelerator.device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    bar = tqdm(
        range(args.epochs * len(train_loader)), disable=not accelerator.is_local_main_process
    )
    for epoch in range(args.epochs):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_loader):
            with accelerator.accumulate(model):
                loss = model(**batch).loss
                total_loss += loss.detach().float()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            bar.update(1)
            logs = {"loss": loss.detach().item(), "lr": scheduler.get_last_lr()[0]}
            bar.set_postfix(**logs)
            accelerator.log(logs, step=step)
        model.eval()
        losses = []
        for batch in eval_loader:
            with torch.no_grad():
                loss = model(**batch).loss
            losses.append(accelerator.gather_for_metrics(loss.repeat(args.batch_size)))
        print(f"epoch {epoch}: perplexity {math.exp(torch.mean(torch.cat(losses)))}")


def load(tokenizer):
    texts = [
        tokenizer(f"sentence {number}", padding="max_length", max_length=16)
        for number in range(1000)
    ]
    return texts[100:], texts[:100]


if __name__ == "__main__":
    main()
