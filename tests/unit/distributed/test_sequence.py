"""Sequences that are split over processes: the numbers, files and resumed runs of one process."""

import os
import re
from dataclasses import dataclass
from itertools import chain

import accelerate
import pytest
import torch
import transformers
from torch.utils.data import IterableDataset

import portico
from forked import run_in_processes
from models import Sequences, tiny_llama, tiny_masked_lm, tiny_t5, toy_arguments, toy_trainer
from portico.distributed.model_parallel import full_tensor, is_sharded
from releases import since_transformers

SPLIT = {"parallelism_config": {"sp_size": 2}, "ddp_timeout": 60}
GATHERED = {**SPLIT, "parallelism_config": {"cp_size": 2}}
NEAR = {"rtol": 1e-6, "atol": 1e-6}


def tiny_llama_with_flex_attention():
    model = tiny_llama()
    model.config._attn_implementation = "flex_attention"
    return model


def tiny_qwen():
    """A model in which two heads of queries share one head of keys, which two processes need."""
    torch.manual_seed(7)
    sizes = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 1, "max_position_embeddings": 32}
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes, **heads, use_sliding_window=False))


def three_heads():
    config = {**tiny_qwen().config.to_dict(), "hidden_size": 12, "num_attention_heads": 3}
    torch.manual_seed(7)
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**config))


def masked_lm():
    config = tiny_masked_lm().config
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = 0.0
    config.num_attention_heads = 4
    torch.manual_seed(7)
    return transformers.BertForMaskedLM(config)


def with_mask(examples):
    """Collate sequences of 3 to 8 tokens, which two processes do not always divide."""
    longest = max(len(example["input_ids"]) for example in examples)
    rows = {"input_ids": 0, "attention_mask": 0, "labels": -100}
    padded = {
        name: [
            [*example.get(name, [1] * len(example["input_ids"]))] + [value] * (longest - len(example["input_ids"]))
            for example in examples
        ]
        for name, value in rows.items()
        if name in examples[0] or name == "attention_mask"
    }
    return {name: torch.tensor(values) for name, values in padded.items()}


def packed(examples):
    """Collate all sequences into one row, whose positions begin again with each."""
    rows = {name: [*chain.from_iterable(one[name] for one in examples)] for name in ("input_ids", "labels")}
    positions = [index for example in examples for index in range(len(example["input_ids"]))]
    return {name: torch.tensor([row]) for name, row in {**rows, "position_ids": positions}.items()}


def masked_at_random(examples):
    """Collate with labels that differ between processes, unless they have the random numbers of the first."""
    batch = with_mask(examples)
    torch.manual_seed(int(os.environ.get("RANK", 0)))
    return {**batch, "labels": batch["input_ids"].masked_fill(torch.rand(batch["input_ids"].shape) < 0.5, -100)}


def classifier():
    torch.manual_seed(7)
    return transformers.BertForSequenceClassification(masked_lm().config)


def counting_positions():
    """A model whose positions skip padding, which it counts in the sequence that it gets."""
    config = {**masked_lm().config.to_dict(), "max_position_embeddings": 34}
    return transformers.RobertaForMaskedLM(transformers.RobertaConfig(**config))


def with_extra_column(examples):
    return {**with_mask(examples), "start_positions": torch.zeros(len(examples), dtype=torch.int64)}


def restarting(examples):
    batch = with_mask(examples)
    positions = torch.arange(batch["input_ids"].shape[1]) % 2
    return {"input_ids": batch["input_ids"], "labels": batch["labels"], "position_ids": positions[None]}


class Stream(IterableDataset):
    def __iter__(self):
        return iter([*Sequences(20, ragged=True)])


MODELS = {
    "llama": tiny_llama,
    "qwen": tiny_qwen,
    "three_heads": three_heads,
    "bert": masked_lm,
    "classifier": classifier,
    "roberta": counting_positions,
}
# The model, and what differs from the plain run.
CASES = {
    "llama": ("llama", {}),
    "qwen": ("qwen", {"gradient_accumulation_steps": 3, "max_grad_norm": 0.5}),
    # The biases of its keys have a gradient of zero, of which Adam would make a step from the rounding.
    "three_heads": ("three_heads", {}),
    "bert": ("bert", {"gradient_accumulation_steps": 2, "max_grad_norm": 0.5, "optim": "sgd", "learning_rate": 0.1}),
    "packed": ("llama", {"collator": packed}),
    "grouped": ("llama", {"train_sampling_strategy": "group_by_length"}),
    "smoothed": ("llama", {"label_smoothing_factor": 0.1}),
    "recomputed": ("qwen", {"activation_checkpointing": True}),
    "eager": ("qwen", {"attention": "eager"}),
    "stream": ("llama", {"data": Stream}),
    "random": ("bert", {"collator": masked_at_random, "optim": "sgd", "learning_rate": 0.1}),
    "classifier": ("classifier", {}),
    "roberta": ("roberta", {}),
}


GATHERED_RUNS = [case for case in CASES if case not in ("random", "classifier", "roberta")]
LONG_RUNS = [case for case in GATHERED_RUNS if case != "three_heads"]  # which two processes cannot exchange


def trainer_of(case, folder, **changes):
    name, own = CASES[case]
    options = {"learning_rate": 1e-3, "eval_strategy": "steps", "eval_steps": 5, "max_steps": 10, **own, **changes}
    model = MODELS[name]()
    model.set_attn_implementation(options.pop("attention", "sdpa"))
    return portico.Trainer(
        model,
        data_collator=options.pop("collator", with_mask),
        train_dataset=options.pop("data", lambda: Sequences(20, ragged=True))(),
        args=toy_arguments(folder, **options),
        eval_dataset=Sequences(7, ragged=True, seed=4),
        compute_metrics=lambda prediction: {
            "right": (prediction.predictions.argmax(-1) == prediction.label_ids).sum()
        },
    )


class Continuations(transformers.TrainerCallback):
    """Generates text after each step."""

    def __init__(self):
        self.texts = []

    def on_step_end(self, args, state, control, *, model, **kwargs):
        if model.can_generate():
            was_training = model.training
            text = model.eval().generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, do_sample=False)
            self.texts.append(text.tolist())
            model.train(was_training)


def numbers(trainer, checkpoint=None):
    """Train, and return everything that must be equal."""
    continuations = Continuations()
    trainer.add_callback(continuations)
    trainer.train(resume_from_checkpoint=checkpoint)
    rows = [
        {key: float(value) for key, value in row.items() if not key.endswith(("runtime", "per_second"))}
        # The last row has the mean loss of the run, which begins again when it is resumed.
        for row in trainer.state.log_history[:-1]
    ]
    data = Sequences(7, ragged=True, seed=4)
    trainer.data_collator = with_mask  # a row for each example
    predicted = zip(trainer.predict(data).predictions, data.tokens, strict=True)
    logits = torch.cat([torch.from_numpy(row[: len(tokens)]) for row, tokens in predicted])
    weights = {name: full_tensor(tensor).detach().clone() for name, tensor in trainer.model.state_dict().items()}
    return {"rows": rows, "weights": weights, "logits": logits, "texts": continuations.texts}


def assert_alike(mine, theirs, case):
    torch.testing.assert_close(mine["weights"], theirs["weights"], **NEAR, msg=lambda text: f"{case}: {text}")
    for one, other in zip(mine["rows"], theirs["rows"], strict=True):
        assert one == pytest.approx(other, rel=2e-6, abs=1e-6), case
    torch.testing.assert_close(mine["logits"], theirs["logits"], rtol=1e-5, atol=1e-5)
    # A resumed run generates after fewer steps.
    assert mine["texts"] == theirs["texts"][-len(mine["texts"]) :], case


def split_equals_whole(folder, cases, changes):
    for case in cases:
        trainer = trainer_of(case, folder / "split", **{**SPLIT, **changes})
        sizes = {"sp_size": trainer.get_sp_size(), "cp_size": trainer.get_cp_size()}
        assert sizes == {"sp_size": 1, "cp_size": 1, **trainer.args.parallelism_config}
        assert_alike(numbers(trainer), torch.load(folder / f"{case}.pt"), case)
        assert trainer.model.config._attn_implementation in ("sdpa", "eager")


REFUSED_IN_TRAINING = [
    ("classifier", {}, "BertForSequenceClassification computes something else from parts than from whole sequences"),
    ("roberta", {}, r"RobertaForMaskedLM computes .* \(they differ by \S+ of the largest value\); leave it out"),
    ("llama", {"collator": with_extra_column}, r"has `start_positions` of shape \[2\]; leave it out of the batch"),
    ("bert", {"collator": restarting}, "only causal language models keep them apart; give an `attention_mask`"),
]


@dataclass
class ScoredOutput(transformers.utils.ModelOutput):
    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    largest: torch.Tensor | None = None
    is_best: torch.Tensor | None = None


class ScoredLlamaForCausalLM(transformers.LlamaForCausalLM):
    """Also returns the largest logit of each token, and what a library on top asks for: whether it is the next label.

    As with trl's fused head, that is a value for each label, and so one less than there are tokens.
    """

    def forward(self, input_ids, attention_mask=None, position_ids=None, labels=None, ranked=False, **options):
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, "position_ids": position_ids}
        outputs = super().forward(**inputs, labels=labels, **options)
        largest, best = outputs.logits.max(-1)
        is_best = None
        if ranked:
            shifted = options.get("shift_labels")
            is_best = best[:, :-1] == labels[:, 1:] if shifted is None else best == shifted
        return ScoredOutput(outputs.loss, outputs.logits, largest, is_best)


class RankingTrainer(portico.Trainer):
    """Asks for the values of each token in every batch, as trl's trainers do."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        inputs = {**inputs, "ranked": True, "cu_seq_lens_q": torch.tensor([0, inputs["input_ids"].shape[1]])}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if model.training:
            vars(self).setdefault("values", []).append((outputs["largest"].detach(), outputs["is_best"]))
        return (loss, outputs) if return_outputs else loss


def values_per_token(folder, **changes):
    torch.manual_seed(7)
    args = toy_arguments(folder, max_steps=4, **changes)
    data = Sequences(20, ragged=True)
    trainer = RankingTrainer(
        ScoredLlamaForCausalLM(tiny_llama().config),
        args,
        data_collator=with_mask,
        train_dataset=data,
        eval_dataset=data,
    )
    trainer.train()
    predicted = trainer.predict(data).predictions
    return trainer.values, [torch.from_numpy(array) for array in predicted[1:]]


def two_processes(folder):
    """What takes no long run: equal numbers, processes that draw different numbers, and what is refused."""
    split_equals_whole(folder, ["llama", "random"], {})
    split_equals_whole(folder, ["three_heads", "bert", "packed"], GATHERED)
    torch.testing.assert_close(values_per_token(folder / "split", **SPLIT), torch.load(folder / "values.pt"))
    for case, changes, message in REFUSED_IN_TRAINING:
        trainer = trainer_of(case, folder / "refused", **SPLIT, **changes, remove_unused_columns=False)
        with pytest.raises(portico.InputError, match=message):
            trainer.train()
        assert trainer.model.config._attn_implementation == "sdpa"


@since_transformers("5.4")
def test_split_sequences_train_as_whole_sequences(tmp_path):
    for case in ("llama", "random", "three_heads", "bert", "packed"):
        torch.save(numbers(trainer_of(case, tmp_path / "one")), tmp_path / f"{case}.pt")
    torch.save(values_per_token(tmp_path / "one"), tmp_path / "values.pt")
    run_in_processes(2, two_processes, tmp_path)


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (tiny_llama, 8, "`sp_size=8` does not divide the 4 heads (`num_attention_heads`) of LlamaForCausalLM; set a"),
        (tiny_t5, 2, "T5ForConditionalGeneration takes no `position_ids`; leave it out, or use a model for causal"),
        (tiny_llama_with_flex_attention, 2, "LlamaForCausalLM uses 'flex_attention'; load it with `attn_impl"),
    ],
)
def test_model_whose_sequences_cannot_be_split_is_rejected(model, size, message, tmp_path):
    args = toy_arguments(tmp_path, devices=size, parallelism_config={"sp_size": size})
    with pytest.raises(portico.InputError, match=re.escape(message)):
        toy_trainer(tmp_path, parts={"args": args, "model": model()})


def test_parallelism_config_of_accelerate_names_a_backend_without_effect(tmp_path, caplog):
    config = accelerate.ParallelismConfig(sp_size=2)
    args = toy_arguments(tmp_path, devices=4, parallelism_config=config)
    assert args.lightning_strategy.sequence_sharing.size == 2
    assert "`sp_backend` and `sp_handler` of `parallelism_config` have no effect: portico exchanges" in caplog.text


def test_another_way_to_gather_keys_is_announced(tmp_path, caplog):
    for strategy in ("allgather", "alltoall"):
        handler = accelerate.utils.TorchContextParallelConfig(cp_comm_strategy=strategy)
        config = accelerate.ParallelismConfig(cp_size=2, cp_handler=handler)
        args = toy_arguments(tmp_path, devices=2, parallelism_config=config)
        assert args.lightning_strategy.sequence_sharing == (2, True)
        is_announced = "`cp_comm_strategy` of `cp_handler` in `parallelism_config` has no effect" in caplog.text
        assert is_announced == (strategy == "alltoall")


def saved_bytes(folder, length=8192):
    """Return the memory of what a step on one long sequence keeps for its backward pass."""
    config = {**tiny_llama().config.to_dict(), "hidden_size": 64, "max_position_embeddings": length}
    trainer = portico.Trainer(
        transformers.LlamaForCausalLM(transformers.LlamaConfig(**config)),
        toy_arguments(folder, max_steps=1, **(SPLIT if "RANK" in os.environ else {})),
        train_dataset=[{"input_ids": [5] * length, "labels": [6] * length}],
    )
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in trainer.model.parameters()}
    return sum(size for address, size in kept.items() if address not in weights)


def keeps_half(folder):
    assert saved_bytes(folder) <= 0.55 * torch.load(folder / "one.pt")


@pytest.mark.slow
def test_memory_of_activations_halves_on_two_processes(tmp_path):
    torch.save(saved_bytes(tmp_path), tmp_path / "one.pt")
    run_in_processes(2, keeps_half, tmp_path)


@pytest.mark.slow
def test_split_sequences_with_every_setting(tmp_path):
    for case in GATHERED_RUNS:
        torch.save(numbers(trainer_of(case, tmp_path / "one", max_steps=50)), tmp_path / f"{case}.pt")
    run_in_processes(2, split_equals_whole, tmp_path, LONG_RUNS, {"max_steps": 50})
    run_in_processes(2, split_equals_whole, tmp_path, GATHERED_RUNS, {**GATHERED, "max_steps": 50})


# The means of an evaluation do not depend on the number of processes that see different examples.
LONG = {
    "max_steps": 50,
    "save_strategy": "steps",
    "save_steps": 25,
    "corrections": ["eval_batch_means", "eval_duplicates"],
}
QUARTERS = {"parallelism_config": {"sp_size": 4}}
PAIRS = {"parallelism_config": {"dp_replicate_size": 2, "sp_size": 2}}
SHARDED_PAIRS = {"parallelism_config": {"dp_shard_size": 2, "sp_size": 2}}
HALF_BATCHES = {"per_device_train_batch_size": 1, "per_device_eval_batch_size": 1}
GATHERED_QUARTERS = {"parallelism_config": {"cp_size": 4}}
GATHERED_SHARDED_PAIRS = {"parallelism_config": {"dp_shard_size": 2, "cp_size": 2}}
ON_FOUR = [
    ("llama", QUARTERS),
    ("qwen", QUARTERS),
    ("bert", QUARTERS),
    ("llama", {**PAIRS, **HALF_BATCHES}),
    ("qwen", {**SHARDED_PAIRS, **HALF_BATCHES}),
    ("three_heads", GATHERED_QUARTERS),
    ("bert", GATHERED_QUARTERS),
    ("qwen", {**GATHERED_SHARDED_PAIRS, **HALF_BATCHES}),
]


def on_four_processes(folder):
    for number, (case, changes) in enumerate(ON_FOUR):
        trainer = trainer_of(case, folder / f"four-{number}", **{**LONG, **SPLIT, **changes})
        assert_alike(numbers(trainer), torch.load(folder / f"{case}.pt"), f"{case} {changes}")
        assert trainer.accelerator.data_parallel_size == (1 if changes in (QUARTERS, GATHERED_QUARTERS) else 2)
        assert is_sharded(trainer.model) == ("dp_shard_size" in changes["parallelism_config"])
        resumed = trainer_of(case, folder / "resumed", **{**LONG, **SPLIT, **changes, "save_strategy": "no"})
        checkpoint = str(folder / case / "checkpoint-25")
        assert_alike(numbers(resumed, checkpoint), torch.load(folder / f"{case}.pt"), f"{case} {changes} resumed")


@pytest.mark.slow
def test_split_sequences_on_four_processes_resume_and_are_resumed(tmp_path):
    for case in ("llama", "qwen", "bert", "three_heads"):
        torch.save(numbers(trainer_of(case, tmp_path / case, **LONG)), tmp_path / f"{case}.pt")
    run_in_processes(4, on_four_processes, tmp_path)
    for number, (case, _) in enumerate(ON_FOUR):
        trainer = trainer_of(case, tmp_path / "resumed", **{**LONG, "save_strategy": "no"})
        checkpoint = tmp_path / f"four-{number}" / "checkpoint-25"
        assert (checkpoint / "config.json").read_bytes() == (
            tmp_path / case / "checkpoint-25" / "config.json"
        ).read_bytes()
        assert_alike(numbers(trainer, str(checkpoint)), torch.load(tmp_path / f"{case}.pt"), f"{case} resumed on one")
