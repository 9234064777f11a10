"""What the trainer refuses, announces and passes on; its numbers are in the parity suite."""

from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import DataCollatorForSeq2Seq, GenerationConfig

import portico
from parity.language import tiny_t5, tiny_tokenizer
from parity.texts import Pairs
from portico.errors import InputError
from portico.seq2seq.trainer import shards_weights, whole_weights
from unit.toy import Line, toy_arguments


def arguments(output_dir, **changes):
    return toy_arguments(output_dir, portico.Seq2SeqTrainingArguments, **changes)


def seq2seq_trainer(output_dir, parts=None, trainer_class=portico.Seq2SeqTrainer, **changes):
    tokenizer = tiny_tokenizer()
    options = {
        "model": tiny_t5(),
        "args": arguments(output_dir, **{"generation_max_length": 6, **changes}),
        "data_collator": DataCollatorForSeq2Seq(tokenizer),
        "eval_dataset": Pairs(5),
        "train_dataset": Pairs(6),
        "processing_class": tokenizer,
        **(parts or {}),
    }
    return trainer_class(**options)


def test_plain_training_arguments_are_refused(tmp_path):
    with pytest.raises(InputError, match="`args` is a TrainingArguments, which has no settings of generation; give"):
        seq2seq_trainer(tmp_path, {"args": toy_arguments(tmp_path)})


def test_something_that_is_no_arguments_is_refused(tmp_path):
    with pytest.raises(TypeError, match="`args` is a dict; give"):
        seq2seq_trainer(tmp_path, {"args": {}})


def test_arguments_of_transformers_are_taken(tmp_path):
    args = toy_arguments(tmp_path, transformers.Seq2SeqTrainingArguments, predict_with_generate=True)
    trainer = seq2seq_trainer(tmp_path, {"args": args})
    assert trainer.args is args
    assert trainer.predict(Pairs(2), max_length=4).predictions.dtype.name == "int64"


def test_arguments_are_made_where_there_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert isinstance(portico.Seq2SeqTrainer(model=tiny_t5()).args, portico.Seq2SeqTrainingArguments)


def test_a_model_that_cannot_generate_is_refused(tmp_path):
    with pytest.raises(InputError, match="`predict_with_generate=True`, but Line has no `generate`; give a model"):
        seq2seq_trainer(tmp_path, {"model": Line()}, predict_with_generate=True)


def test_a_missing_padding_token_is_refused_before_training(tmp_path):
    model = tiny_t5()
    model.config.pad_token_id = None
    with pytest.raises(InputError, match="Pad_token_id must be set"):
        seq2seq_trainer(tmp_path, {"model": model, "processing_class": None}, predict_with_generate=True)


def test_an_own_prediction_step_need_not_generate_in_our_way(tmp_path):
    class OwnStep(portico.Seq2SeqTrainer):
        def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
            return None, inputs["labels"], inputs["labels"]

    parts = {"model": Line(), "processing_class": None}
    assert seq2seq_trainer(tmp_path, parts, trainer_class=OwnStep, predict_with_generate=True) is not None


def test_each_model_of_model_init_gets_the_generation_config(tmp_path):
    config = GenerationConfig(max_length=5, pad_token_id=0, decoder_start_token_id=0)
    parts = {"model": None, "model_init": tiny_t5}
    trainer = seq2seq_trainer(tmp_path, parts, generation_config=config, max_steps=1)
    first = trainer.model
    trainer.train()
    assert trainer.model is not first
    assert trainer.model.generation_config.max_length == 5


def test_settings_of_one_evaluation_reach_every_set_of_a_dict(tmp_path):
    seen = []

    class Watched(portico.Seq2SeqTrainer):
        def prediction_step(self, *args, **kwargs):
            seen.append(dict(self._gen_kwargs))
            return super().prediction_step(*args, **kwargs)

    trainer = seq2seq_trainer(tmp_path, trainer_class=Watched, predict_with_generate=True)
    metrics = trainer.evaluate({"short": Pairs(2), "long": Pairs(2)}, num_beams=2)
    assert {"eval_short_loss", "eval_long_loss"} <= set(metrics)
    assert seen == [{"max_length": 6, "num_beams": 2}] * 2


def test_metrics_get_tokens(tmp_path):
    shapes = []

    def count(prediction):
        shapes.append((prediction.predictions.shape, prediction.label_ids.shape))
        return {"rows": len(prediction.predictions)}

    trainer = seq2seq_trainer(tmp_path, {"compute_metrics": count}, predict_with_generate=True)
    assert trainer.evaluate()["eval_rows"] == 5
    assert shapes == [((5, 20), (5, 20))]


def test_processes_wait_for_each_other_where_weights_are_spread(monkeypatch):
    class Spread:
        zero_stage_3 = True
        model = None

    assert not shards_weights(SimpleNamespace(model=None))
    for kind in ("DeepSpeedStrategy", "FSDPStrategy", "ModelParallelStrategy"):
        monkeypatch.setattr(f"portico.seq2seq.trainer.{kind}", Spread)
        assert shards_weights(Spread())
        monkeypatch.undo()
    Spread.zero_stage_3 = False
    monkeypatch.setattr("portico.seq2seq.trainer.DeepSpeedStrategy", Spread)
    assert not shards_weights(Spread())


def test_spread_weights_are_brought_together(monkeypatch):
    class Wrapped(torch.nn.Module):
        @classmethod
        def summon_full_params(cls, module):
            return ("whole", module)

    monkeypatch.setattr("portico.seq2seq.trainer.FullyShardedDataParallel", Wrapped)
    wrapped = Wrapped()
    assert whole_weights(SimpleNamespace(model=wrapped)) == ("whole", wrapped)
    with whole_weights(SimpleNamespace(model=torch.nn.Linear(1, 1))):
        pass
