"""Hugging Face's Trainer on a model that was compiled in place, so that nothing else changes.

    python examples/torch_compile_trainer.py

Needs ``pip install "campo-onnx[torch]" transformers accelerate``. A small BERT learns from random weights
which of two words a sentence holds more often.
"""

import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

from campo_onnx.integrations.torch_compile import report

WORDS, LENGTH, ROWS = 50, 16, 256


class Sentences(torch.utils.data.Dataset):
    """Random sentences; the label says whether word 1 is more frequent than word 2."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.words = torch.randint(1, 4, (ROWS, LENGTH), generator=generator)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        words = self.words[i]
        return {
            "input_ids": words,
            "attention_mask": torch.ones_like(words),
            "labels": ((words == 1).sum() > (words == 2).sum()).long(),
        }


def train(steps: int = 60) -> list[float]:
    """Train, and return the losses that the Trainer logged."""
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=WORDS,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
        )
    )
    # In place: names in checkpoints stay. (Trainer's own torch_compile_backend takes no name but torch's.)
    model.compile(backend="campo_onnx")
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=32,
            learning_rate=1e-3,
            logging_steps=max(1, steps // 6),
            save_strategy="no",
            report_to=[],
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=Sentences())
        trainer.train()
    print(report(model))
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


if __name__ == "__main__":
    losses = train()
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f}")
