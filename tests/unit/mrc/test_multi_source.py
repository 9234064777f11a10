import json
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import BatchSampler, ConcatDataset

from portico import InputError, Trainer
from portico.data.sharding import BatchSamplerShard, DataLoaderConfig
from portico.mrc import (
    IndividualDomainBatchSampler,
    MultiSourceMixin,
    MultiSourceMRCTrainer,
)
from releases import forks_after_training
from unit.mrc.small_readers import EvaluationRecorder, featurized, make_trainer, reader, source


@pytest.fixture(scope="module")
def data():
    sources = [source(1, 24, 12), source(2, 40, 16)]
    made = reader(sources[1].train)
    features = [featurized(one, made.tokenizer) for one in sources]
    return SimpleNamespace(
        sources=sources,
        reader=made,
        train=[one.train for one in features],
        validation=[one.validation for one in features],
        examples=[one.validation for one in sources],
    )


@pytest.fixture
def trainer_of(data, tmp_path):
    def make(trainer_class=MultiSourceMRCTrainer, **options):
        sets = {"train_dataset": data.train, "eval_dataset": data.validation, "eval_examples": data.examples}
        made = SimpleNamespace(model=reader(data.sources[1].train).model, tokenizer=data.reader.tokenizer)
        return make_trainer(trainer_class, made, options.pop("folder", tmp_path), **{**sets, **options})

    return make


def test_each_source_is_evaluated_separately_and_means_are_returned(trainer_of, tmp_path):
    recorder = EvaluationRecorder()
    trainer = trainer_of(callbacks=[recorder])
    metrics = trainer.evaluate()
    each = [json.loads((tmp_path / f"eval_{number}_results.json").read_text()) for number in range(2)]
    assert [one["eval_total"] for one in each] == [12, 16]
    for name in ("eval_f1", "eval_loss", "eval_runtime"):
        assert metrics[name] == (each[0][name] + each[1][name]) / 2
    assert recorder.metrics == [metrics]
    assert [entry["eval_f1"] for entry in trainer.state.log_history] == [metrics["eval_f1"]]
    assert len(trainer.answered) == 2
    names = {path.name for path in tmp_path.glob("eval_*_predictions.json")}
    assert {"eval_0_predictions.json", "eval_1_predictions.json"} <= names


def test_files_of_primeqa_end_in_the_number_of_the_source(trainer_of, tmp_path):
    def process(examples, features, predictions):
        return SimpleNamespace(predictions=[len(examples)], label_ids=[], processed_predictions=[])

    trainer_of(post_process_function=process, compute_metrics=None).evaluate()
    for number, count in enumerate((12, 16)):
        assert json.loads((tmp_path / f"eval_predictions_{number}.json").read_text()) == [count]
        assert (tmp_path / f"eval_predictions_processed_{number}.json").is_file()
        assert (tmp_path / f"eval_references_{number}.json").is_file()


def test_one_data_set_is_evaluated_as_usual(trainer_of, data, tmp_path):
    trainer = trainer_of(eval_dataset=data.validation[0], eval_examples=data.examples[0])
    assert trainer.evaluate()["eval_total"] == 12
    assert (tmp_path / "eval_predictions.json").is_file()
    assert trainer.evaluate(data.validation, data.examples)["eval_total"] == 14


def test_a_prediction_needs_one_data_set(trainer_of, data):
    trainer = trainer_of()
    with pytest.raises(InputError, match="one dataset, and there are 2; call `predict` for each"):
        trainer.predict()
    assert len(trainer.predict(data.validation[0], data.examples[0]).predictions) == 12


def test_each_source_needs_a_list_of_examples(trainer_of, data):
    with pytest.raises(InputError, match="2 datasets to evaluate on and 1 lists of examples"):
        trainer_of(eval_examples=data.examples[:1]).evaluate()
    with pytest.raises(InputError, match="no examples to answer; give `eval_examples`"):
        trainer_of(eval_examples=None).evaluate()
    trainer = trainer_of(eval_examples=None, post_process_function=None, compute_metrics=None)
    assert "eval_loss" in trainer.evaluate()


class Recording(MultiSourceMRCTrainer):
    def training_step(self, model, inputs, num_items_in_batch=None):
        self.__dict__.setdefault("seen", []).append(inputs["input_ids"].clone())
        return super().training_step(model, inputs, num_items_in_batch)


def sources_of(batch, data):
    rows = [row[row > 0].tolist() for row in batch]
    texts = [[features[index]["input_ids"] for index in range(len(features))] for features in data.train]
    return {number for row in rows for number, known in enumerate(texts) if row in known}


def test_training_batches_come_from_one_source_in_turn(trainer_of, data):
    trainer = trainer_of(Recording, arguments={"num_train_epochs": 1})
    trainer.train()
    rounds = -(-max(map(len, data.train)) // 8)
    assert [sources_of(batch, data) for batch in trainer.seen] == [{0}, {1}] * rounds


def test_a_run_is_resumed_where_it_stopped(trainer_of, tmp_path):
    arguments = {"max_steps": 16, "save_steps": 7, "learning_rate": 1e-2}
    whole = trainer_of(folder=tmp_path / "whole", arguments=arguments)
    whole.train()
    # In the middle of the first epoch, and of a round.
    rest = trainer_of(Recording, folder=tmp_path / "rest", arguments=arguments)
    rest.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-7"))
    assert len(rest.seen) == 9
    weights = whole.model.state_dict()
    assert all(torch.equal(value, weights[name]) for name, value in rest.model.state_dict().items())
    assert rest.state.global_step == 16


@forks_after_training
def test_two_processes_train_on_single_domain_batches(trainer_of):
    arguments = {"max_steps": 3, "strategy": "ddp_fork", "devices": 2}
    trainer = trainer_of(arguments=arguments)
    assert trainer.train().global_step == 3
    assert trainer.evaluate()["eval_total"] == 14


def test_other_sampling_strategies_are_refused(trainer_of):
    with pytest.raises(InputError, match=r"orders one dataset, and there are 2.*set it to 'random'"):
        trainer_of(arguments={"train_sampling_strategy": "group_by_length"}).train()


def test_an_empty_source_is_refused(trainer_of, data):
    with pytest.raises(InputError, match=r"Dataset 1 of 2 \(counting from 0\) is empty"):
        trainer_of(train_dataset=[data.train[0], []])


class PlainMultiSource(MultiSourceMixin, Trainer):
    pass


def test_any_trainer_can_train_on_several_sources(data, tmp_path):
    rows = [{"input_ids": [5, 6, 7], "start_positions": 1, "end_positions": 1} for _ in range(6)]
    model = reader(data.sources[1].train).model
    for train_dataset in ([rows[:4], rows[4:]], ConcatDataset([rows[:4], rows[4:]]), rows):
        trainer = PlainMultiSource(model, train_dataset=train_dataset)
        assert isinstance(trainer.train_dataset, ConcatDataset) is (train_dataset is not rows)
        assert len(trainer.train_dataset) == 6


def sampler(sizes=(10, 3, 7), batch_size=4, seed=5):
    return IndividualDomainBatchSampler(ConcatDataset([range(size) for size in sizes]), batch_size, seed)


def source_of(index, sizes=(10, 3, 7)):
    return 0 if index < sizes[0] else 1 if index < sizes[0] + sizes[1] else 2


def batches(indices, size=4):
    return list(BatchSampler(indices, size, drop_last=True))


def test_the_largest_source_sets_the_number_of_rounds():
    assert len(sampler()) == len(list(sampler())) == 4 * 3 * 3
    assert len(sampler(sizes=(8, 1))) == 4 * 2 * 2


def test_an_exhausted_source_is_reshuffled():
    of_second = [index for index in sampler() if source_of(index) == 1]
    assert len(of_second) == 12
    for start in range(0, 12, 3):
        assert sorted(of_second[start : start + 3]) == [10, 11, 12]
    assert len({tuple(of_second[start : start + 3]) for start in range(0, 12, 3)}) > 1


def test_the_largest_source_is_seen_completely():
    of_first = [index for index in sampler() if source_of(index) == 0]
    assert Counter(of_first[:10]) == Counter(range(10))
    assert of_first[:10] != list(range(10))


def test_the_order_depends_only_on_seed_and_epoch():
    first, same, other = sampler(), sampler(), sampler(seed=99)
    assert list(first) == list(same)
    assert list(other) != list(same)
    second = list(first)
    assert second != list(sampler())
    fresh = sampler()
    fresh.set_epoch(1)
    assert list(fresh) == second


@pytest.mark.parametrize("num_processes", [2, 3])
def test_each_process_gets_batches_of_one_source(num_processes):
    parts = []
    for rank in range(num_processes):
        whole = BatchSampler(sampler(), 4, drop_last=False)
        part = list(BatchSamplerShard(whole, DataLoaderConfig(num_processes=num_processes, process_index=rank)))
        assert all(len({source_of(index) for index in batch}) == 1 for batch in part)
        parts.append(part)
    in_turn = [batch for batch_of_each in zip(*parts, strict=True) for batch in batch_of_each]
    assert in_turn[:9] == batches(sampler())
