"""Readers and generators whose weights are spread over processes answer as whole ones do."""

import os
import warnings
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import DataCollatorForSeq2Seq

import portico
from forked import run_in_processes
from portico.mrc import FiDDataCollator
from unit.mrc import small_readers, test_generative

# Some layers, and the heads for batches of one, return views, which nothing changes in place.
VIEWS = r"FSDP2-wrapped module \(.*\) returned a view tensor"
WHOLE = {"strategy": "ddp", "ddp_find_unused_parameters": False}
SHARDED = {"fsdp": True}
HYBRID = {"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}}
SPLIT = {"parallelism_config": {"tp_size": 2}}
BOTH = {"parallelism_config": {"dp_shard_size": 2, "tp_size": 2}}
# Clipping multiplies gradients by a norm, whose last bits depend on how the model is cut.
STEPS = {"max_steps": 4, "save_steps": 2, "save_strategy": "steps", "max_grad_norm": 0, "learning_rate": 1e-3}


class Runs:
    """The metrics and answers of runs of one model under several strategies; ``make`` returns their trainers."""

    def __init__(self, folder, make):
        self.folder, self.make, self.returned = folder, make, {}

    def train(self, name, strategy):
        trainer = self.make(self.folder / name, {**STEPS, **strategy})
        trainer.train()
        self.returned[name] = self.answered(trainer)

    def resume(self, name, strategy, checkpoint):
        trainer = self.make(self.folder / "resumed", {**STEPS, **strategy, "save_strategy": "no"})
        trainer.train(resume_from_checkpoint=str(self.folder / checkpoint / "checkpoint-2"))
        assert trainer.state.global_step == 4
        self.returned[f"{name} from {checkpoint}"] = self.answered(trainer)

    def answered(self, trainer):
        """Return metrics and answers of an evaluation and of a prediction."""
        metrics, rows = trainer.evaluate(), [*trainer.answered.predictions]
        metrics |= trainer.predict(trainer.eval_dataset, trainer.eval_examples).metrics
        rows += trainer.answered.predictions
        texts = [row["prediction_text"] for row in rows]
        assert len(set(texts)) > 1
        numbers = {name: value for name, value in metrics.items() if "per_second" not in name and "time" not in name}
        return SimpleNamespace(texts=texts, numbers=numbers)

    def assert_equal(self, *names, **tolerance):
        expected, *others = (self.returned[name] for name in names or self.returned)
        for one in others:
            assert one.texts == expected.texts
            assert one.numbers == (pytest.approx(expected.numbers, **tolerance) if tolerance else expected.numbers)


def readers(folder, new_model=None):
    """Spans of a small BERT, or of what ``new_model`` makes of the size of a vocabulary."""
    sets = small_readers.source(num_train=24, num_validation=11)
    made = small_readers.reader(sets.train)
    # The probability of each position depends on the length to which the batch is padded.
    featurizer = small_readers.featurizer(made.tokenizer, pad_to_max_length=True)
    train, validation = featurizer.train_features(sets.train), featurizer.eval_features(sets.validation, labels=True)

    def make(output_dir, arguments):
        model = new_model(len(made.tokenizer)) if new_model else small_readers.reader(sets.train).model
        return small_readers.make_trainer(
            portico.MRCTrainer,
            SimpleNamespace(model=model, tokenizer=made.tokenizer),
            output_dir,
            arguments=arguments,
            train_dataset=train,
            eval_dataset=validation,
            eval_examples=sets.validation,
        )

    return Runs(folder, make)


def generators(folder, num_passages=None):
    """Generated answers, from one passage at a time or from several that are fused in the decoder."""
    collator = DataCollatorForSeq2Seq if num_passages is None else FiDDataCollator

    def make(output_dir, arguments):
        made = test_generative.made(num_passages)
        # So large that what is generated depends on the question.
        for parameter in made.model.parameters():
            parameter.data *= 3
        return test_generative.trainer_of(made, output_dir, collator, {**arguments, "generation_num_beams": 2})

    return Runs(folder, make)


def new_llama(vocab_size):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    return transformers.LlamaForQuestionAnswering(transformers.LlamaConfig(vocab_size=vocab_size, **sizes, **heads))


def answer_from_shards(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    for runs in (readers(folder / "spans"), generators(folder / "generated")):
        runs.train("whole", WHOLE)
        runs.train("sharded", SHARDED)
        runs.resume("sharded", SHARDED, "whole")
        runs.assert_equal()


def test_sharded_models_answer_and_resume_as_whole_ones(tmp_path):
    run_in_processes(2, answer_from_shards, tmp_path)
    for name in ("spans", "generated"):
        places = [tmp_path / name / kind / "checkpoint-4/model.safetensors" for kind in ("whole", "sharded")]
        assert places[0].read_bytes() == places[1].read_bytes()


def answer_in_other_shapes(folder):
    """Train every kind of reader in each shape, and resume whole and spread ones from each other's checkpoints."""
    warnings.filterwarnings("ignore", message=VIEWS)
    number = int(os.environ.get("WORLD_SIZE", "1"))
    shapes = {1: {}, 2: {"sharded": SHARDED}, 4: {"hybrid": HYBRID, "sharded": SHARDED}}[number]
    by_plan = {1: {}, 2: {"split": SPLIT}, 4: {"both": BOTH}}[number]
    # Sums of two terms are the same in any order.
    tolerance = {"rel": 1e-6} if number == 4 else {}
    numbers = {}
    for name, runs in {
        "spans": readers(folder / f"{number}-spans"),
        "decoder": readers(folder / f"{number}-decoder", new_llama),
        "generated": generators(folder / f"{number}-generated"),
        "fused": generators(folder / f"{number}-fused", num_passages=3),
    }.items():
        runs.train("whole", {} if number == 1 else WHOLE)
        for shape, strategy in shapes.items():
            runs.train(shape, strategy)
            runs.resume(shape, strategy, "whole")
            runs.resume(shape, strategy, shape)
            runs.resume("whole", WHOLE, shape)
        runs.assert_equal(**tolerance)
        for shape, strategy in by_plan.items() if name == "decoder" else ():
            runs.train(shape, strategy)
            runs.resume(shape, strategy, shape)
            runs.assert_equal(shape, f"{shape} from {shape}")
            runs.resume("whole", WHOLE, shape)
            # Each group of two processes is one of half as many.
            runs.returned[shape].numbers = pytest.approx(runs.returned[shape].numbers, rel=1e-5)
            assert runs.returned[shape].numbers == torch.load(folder / f"{number // 2}.pt")["decoder"]
        numbers[name] = runs.returned["whole"].numbers
    if os.environ.get("RANK", "0") == "0":
        torch.save(numbers, folder / f"{number}.pt")


@pytest.mark.slow
def test_models_of_every_kind_answer_on_two_and_four_processes(tmp_path):
    answer_in_other_shapes(tmp_path)
    for number in (2, 4):
        run_in_processes(number, answer_in_other_shapes, tmp_path)


def resume_elsewhere(folder, checkpoint, strategy):
    """Resume a reader that another number of processes has saved, and save it again."""
    warnings.filterwarnings("ignore", message=VIEWS)
    number = int(os.environ.get("WORLD_SIZE", "1"))
    # Adam enlarges rounding where gradients are small.
    arguments = {
        **STEPS,
        "adam_epsilon": 1e-3,
        "max_steps": 6,
        "per_device_train_batch_size": 8 // number,
        "corrections": "all",
        **strategy,
    }
    # Without dropout: each process draws its own.
    trainer = readers(folder, new_llama).make(folder / str(number), arguments)
    trainer.train(resume_from_checkpoint=checkpoint and str(folder / checkpoint))


@pytest.mark.slow
def test_a_reader_moves_from_four_processes_to_one_and_to_two(tmp_path):
    """Every step has the same eight examples, so the weights are those of a run that stayed."""
    run_in_processes(4, resume_elsewhere, tmp_path, None, HYBRID)
    resume_elsewhere(tmp_path, "4/checkpoint-2", {})
    run_in_processes(2, resume_elsewhere, tmp_path, "1/checkpoint-4", SHARDED)
    ends = [
        transformers.LlamaForQuestionAnswering.from_pretrained(tmp_path / number / "checkpoint-6").state_dict()
        for number in ("4", "1", "2")
    ]
    torch.testing.assert_close(ends[1], ends[0], rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ends[2], ends[0], rtol=1e-4, atol=1e-6)
