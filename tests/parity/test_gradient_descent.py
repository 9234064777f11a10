"""AllenNLP's trainer and Hugging Face's make the same steps under the same settings."""

from typing import Any

import pytest
import torch
import transformers
from torch.utils.data import DataLoader

from models import ToyDataset, tiny_bert
from parity.peers import run
from portico.gradient_descent import GradientDescentTrainer


def means_of_batches(trainer: Any) -> Any:
    """Return a trainer that takes the plain mean of a window's losses, as AllenNLP does."""
    return type("MeansOfBatches", (trainer,), {"_get_num_items_in_batch": lambda *_: None})


@pytest.mark.parametrize("accumulation", [1, 3])
def test_same_steps_as_transformers(tmp_path, accumulation):
    theirs = run(
        transformers,
        tmp_path,
        base=means_of_batches,
        train_sampling_strategy="sequential",
        optim="adamw_torch",
        lr_scheduler_type="constant",
        max_grad_norm=0.5,
        gradient_accumulation_steps=accumulation,
    )
    model, norms = tiny_bert(), []
    trainer = GradientDescentTrainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0),
        DataLoader(ToyDataset(), batch_size=4),
        num_epochs=2,
        cuda_device=-1,
        grad_norm=0.5,
        num_gradient_accumulation_steps=accumulation,
        batch_callbacks=[lambda batch_grad_norm: norms.append(batch_grad_norm)],
    )
    transformers.set_seed(3)
    trainer.train()
    assert norms == [entry["grad_norm"] for entry in theirs.history if "grad_norm" in entry]
    assert len(norms) == 2 * -(-8 // accumulation)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, theirs.weights[name]), name
