"""Trains in ONNX Runtime in one process or in several; run by a test."""

import sys

import torch

from models import Line, Points
from portico import ORTTrainer, ORTTrainingArguments


def main(folder: str, devices: int) -> None:
    args = ORTTrainingArguments(
        output_dir=folder,
        strategy="ort_ddp" if devices > 1 else "ort",
        devices=devices,
        # The same rows make each step.
        per_device_train_batch_size=4 // devices,
        num_train_epochs=2,
        learning_rate=0.1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        strict=True,
    )
    trainer = ORTTrainer(Line(), args, train_dataset=Points(12))
    trainer.train()
    if trainer.is_world_process_zero():
        torch.save(
            {
                "weights": trainer.model.state_dict(),
                "kinds": [graph.kind for graph in trainer.ort_report.graphs],
                "processes": trainer.accelerator.num_processes,
            },
            f"{folder}/{devices}.pt",
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
