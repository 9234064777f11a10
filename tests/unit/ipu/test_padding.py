"""A last batch that is not full is evaluated as what is real of it."""

import pytest
import torch
from transformers import BertForSequenceClassification

from ipu_trainers import Sentences, bert_config, ipu_trainer
from portico.errors import InputError
from portico.ipu.config import IPUConfig


class Ratings(Sentences):
    """Random tokens with a real number each."""

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index, 0].float() / 50}


def rater():
    torch.manual_seed(7)
    return BertForSequenceClassification(bert_config(num_labels=1, problem_type="regression")).eval()


@pytest.mark.parametrize("size", [1, 3, 5, 7, 8, 13])
@pytest.mark.parametrize("factors", [{}, {"inference_replication_factor": 2, "inference_device_iterations": 2}])
def test_losses_of_real_numbers_count_each_row_once(tmp_path, size, factors):
    model, data = rater(), Ratings(size, seed=4)
    with torch.no_grad():
        logits = model(input_ids=data.tokens).logits.squeeze(-1)
    expected = (logits - data.tokens[:, 0].float() / 50).square().mean()
    trainer = ipu_trainer(tmp_path, IPUConfig(**factors), model, per_device_eval_batch_size=4)
    prediction = trainer.predict(data)
    assert prediction.metrics["test_loss"] == pytest.approx(float(expected), rel=1e-6)
    assert prediction.predictions.squeeze(-1) == pytest.approx(logits.numpy(), rel=1e-5)


@pytest.mark.parametrize(
    ("is_training", "rows", "message"),
    [
        (
            True,
            3,
            r"A batch has 3 rows, but one call of the program that trains takes 2; .*`dataloader_drop_last=True`",
        ),
        (
            True,
            1,
            r"A batch has 1 rows, but one call of the program that trains takes 2; .*`dataloader_drop_last=True`",
        ),
        (False, 3, "A batch has 3 rows, but one call of the program that evaluates takes 2; .*or fewer"),
    ],
)
def test_batches_that_do_not_fit_are_refused(tmp_path, is_training, rows, message):
    trainer = ipu_trainer(tmp_path)
    data = Sentences()
    batch = {"input_ids": data.tokens[:rows], "labels": torch.zeros(rows, dtype=torch.int64)}
    with pytest.raises(InputError, match=message):
        trainer.call_model(trainer.model, batch, is_training=is_training)
