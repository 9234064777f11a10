"""Parity in the corners: other models, collators, metrics, prediction, and arguments that change the model."""

import numpy as np
import pytest
import torch
import transformers
from tests.parity.peers import ToyDataset, compare, run, tiny_bert, untimed
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    T5Config,
    T5ForConditionalGeneration,
)

import portico

EVALUATED = {"eval_strategy": "steps", "eval_steps": 3}


def tiny_tokenizer():
    words = ["[PAD]", "[UNK]", "[MASK]", "[CLS]", "[SEP]", *(f"w{index}" for index in range(45))]
    core = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=core, cls_token="[CLS]", sep_token="[SEP]", **special)


def tiny_gpt2():
    torch.manual_seed(7)
    return GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=2, n_head=2))


def tiny_t5():
    torch.manual_seed(7)
    return T5ForConditionalGeneration(
        T5Config(vocab_size=50, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    )


def tiny_masked():
    torch.manual_seed(7)
    return BertForMaskedLM(_bert_config())


def tiny_tagger():
    torch.manual_seed(7)
    return BertForTokenClassification(_bert_config())


def _bert_config():
    return BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=3,
    )


class Sequences(Dataset):
    """Tokens with a label for each, some of them not counted; with ``ragged``, of many lengths."""

    def __init__(self, size=19, *, ragged=False, classes=50, labelled=True, seed=0):
        generator = np.random.default_rng(seed)
        lengths = generator.integers(3, 9, size) if ragged else np.full(size, 6)
        self.tokens = [generator.integers(5, 50, length).tolist() for length in lengths]
        self.labels = [np.where(generator.random(n) < 0.3, -100, generator.integers(0, classes, n)) for n in lengths]
        self.labelled = labelled

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        item = {"input_ids": self.tokens[index]}
        return {**item, "labels": self.labels[index].tolist()} if self.labelled else item


def pad_everything(examples):
    longest = max(len(example["input_ids"]) for example in examples)

    def padded(name, value):
        return torch.tensor([list(example[name]) + [value] * (longest - len(example[name])) for example in examples])

    batch = {"input_ids": padded("input_ids", 0)}
    if "labels" in examples[0]:
        batch["labels"] = padded("labels", -100)
    return batch


class Unlabelled(Dataset):
    def __len__(self):
        return 7

    def __getitem__(self, index):
        return {"input_ids": ToyDataset(7, seed=5).tokens[index]}


MODELS = {
    "gpt2": (tiny_gpt2, lambda: Sequences()),
    "t5": (tiny_t5, lambda: Sequences()),
    "tagger_ragged": (tiny_tagger, lambda: Sequences(ragged=True, classes=3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_same_numbers_with_labels_that_do_not_all_count(name, accumulation, tmp_path):
    make_model, data = MODELS[name]

    def after(trainer):
        output = trainer.predict(data())
        return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}

    compare(
        tmp_path,
        make_model=make_model,
        train_dataset=data,
        eval_dataset=data,
        trainer_options={"data_collator": pad_everything},
        gradient_accumulation_steps=accumulation,
        after=after,
        **EVALUATED,
    )


def test_same_numbers_with_label_smoothing_of_a_causal_model(tmp_path):
    compare(
        tmp_path,
        make_model=tiny_gpt2,
        train_dataset=Sequences,
        eval_dataset=Sequences,
        trainer_options={"data_collator": pad_everything},
        label_smoothing_factor=0.1,
        gradient_accumulation_steps=2,
        **EVALUATED,
    )


def test_same_numbers_with_a_collator_that_masks_at_random(tmp_path):
    def data():
        return Sequences(ragged=True, labelled=False)

    compare(
        tmp_path,
        make_model=tiny_masked,
        train_dataset=data,
        eval_dataset=data,
        trainer_options={"data_collator": DataCollatorForLanguageModeling(tiny_tokenizer(), mlm_probability=0.3)},
        gradient_accumulation_steps=3,
        **EVALUATED,
    )


def test_same_numbers_with_a_collator_that_pads(tmp_path):
    class Sentences(Sequences):
        def __getitem__(self, index):
            return {"input_ids": self.tokens[index], "label": index % 3}

    compare(
        tmp_path,
        train_dataset=lambda: Sentences(ragged=True),
        eval_dataset=lambda: Sentences(ragged=True, seed=1),
        trainer_options={"data_collator": DataCollatorWithPadding(tiny_tokenizer())},
        **EVALUATED,
    )


def test_same_numbers_with_a_processing_class(tmp_path):
    class Sentences(Sequences):
        def __getitem__(self, index):
            return {"input_ids": self.tokens[index], "label": index % 3}

    compare(
        tmp_path,
        train_dataset=lambda: Sentences(ragged=True),
        eval_dataset=lambda: Sentences(ragged=True, seed=1),
        trainer_options={"processing_class": tiny_tokenizer()},
        train_sampling_strategy="group_by_length",
        include_num_input_tokens_seen="non_padding",
        **EVALUATED,
    )


def described(prediction):
    return {
        "losses": float(prediction.losses.sum()),
        "inputs": float(prediction.inputs.sum()),
        "logits": float(prediction.predictions.sum()),
        "rows": len(prediction.label_ids),
    }


def test_same_metrics_of_inputs_and_losses(tmp_path):
    options = {"trainer_options": {"compute_metrics": described}, "include_for_metrics": ["inputs", "loss"]}
    ours, _ = compare(tmp_path, **options, **EVALUATED)
    assert any("eval_inputs" in entry for entry in ours.history)


class StreamedAccuracy:
    """Keeps counts over the batches of an evaluation, as ``batch_eval_metrics`` asks for."""

    def __init__(self):
        self.right = self.seen = 0

    def __call__(self, prediction, compute_result=False):
        self.right += int((prediction.predictions.argmax(-1) == prediction.label_ids).sum())
        self.seen += len(prediction.label_ids)
        if not compute_result:
            return {}
        result = {"accuracy": self.right / self.seen, "seen": self.seen}
        self.right = self.seen = 0
        return result


def test_same_metrics_of_batches(tmp_path):
    def after(trainer):
        output = trainer.predict(ToyDataset(10, seed=5))
        return {"predictions": output.predictions, "metrics": untimed(output.metrics)}

    def options():
        return {"compute_metrics": StreamedAccuracy()}

    ours, _ = compare(tmp_path, trainer_options=options, batch_eval_metrics=True, after=after, **EVALUATED)
    assert ours.history[-2]["eval_seen"] == 11


def test_same_lists_without_concatenation(tmp_path):
    seen = []

    def keep_shapes(prediction):
        seen.append([batch.shape for batch in prediction.predictions])
        return {"batches": len(prediction.predictions)}

    def after(trainer):
        output = trainer.predict(ToyDataset(10, seed=5))
        return {"predictions": output.predictions, "labels": output.label_ids, "metrics": untimed(output.metrics)}

    options = {"trainer_options": {"compute_metrics": keep_shapes}, "eval_do_concat_batches": False, "after": after}
    compare(tmp_path, **options, **EVALUATED)
    half = len(seen) // 2
    assert seen[:half] == seen[half:] != []


def test_same_predictions_without_labels(tmp_path):
    def after(trainer):
        output = trainer.predict(Unlabelled())
        assert output.label_ids is None
        return {"predictions": output.predictions, "metrics": untimed(output.metrics)}

    compare(tmp_path, after=after, max_steps=2)


def test_same_predictions_before_any_training(tmp_path):
    def base(trainer_class):
        class PredictsFirst(trainer_class):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                self.first = self.predict(ToyDataset(10, seed=5))
                self.metrics = untimed(self.evaluate())

        return PredictsFirst

    def after(trainer):
        return {"predictions": trainer.first.predictions, "metrics": trainer.metrics}

    compare(tmp_path, base=base, after=after, max_steps=2)


def test_same_numbers_with_preprocessed_logits(tmp_path):
    def classes(logits, labels):
        return logits.argmax(-1) + labels

    def mean(prediction):
        return {"mean": float(prediction.predictions.mean())}

    options = {"preprocess_logits_for_metrics": classes, "compute_metrics": mean}
    compare(tmp_path, trainer_options=options, **EVALUATED)


class TwoTargets(torch.nn.Module):
    """Takes its labels under two names of its own."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, first=None, second=None):
        logits = self.head(self.embedding(input_ids).mean(1))
        if first is None:
            return {"logits": logits}
        cross_entropy = torch.nn.functional.cross_entropy
        return {"loss": cross_entropy(logits, first) + cross_entropy(logits, second), "logits": logits}


def two_targets():
    torch.manual_seed(7)
    return TwoTargets()


class TwoLabels(ToyDataset):
    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "first": self.labels[index], "second": (self.labels[index] + 1) % 3}


def test_same_numbers_with_label_names(tmp_path):
    def after(trainer):
        output = trainer.predict(TwoLabels(10, seed=5))
        assert len(output.label_ids) == 2
        return {"predictions": output.predictions, "labels": output.label_ids}

    compare(
        tmp_path,
        make_model=two_targets,
        train_dataset=TwoLabels,
        eval_dataset=TwoLabels,
        label_names=["first", "second"],
        after=after,
        **EVALUATED,
    )


@pytest.mark.parametrize("options", [None, {"use_reentrant": True}, {"every_n_layers": 2}])
def test_same_numbers_with_activation_checkpointing(options, tmp_path):
    ours, _ = compare(
        tmp_path, activation_checkpointing=True, activation_checkpointing_kwargs=options, max_steps=3, **EVALUATED
    )
    assert ours.trainer.model.is_activation_checkpointing


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing` is deprecated:FutureWarning")
def test_same_numbers_with_gradient_checkpointing(tmp_path):
    ours, _ = compare(tmp_path, gradient_checkpointing=True, max_steps=3)
    assert ours.trainer.model.is_activation_checkpointing


def test_same_numbers_with_noisy_embeddings(tmp_path):
    ours, _ = compare(tmp_path, neftune_noise_alpha=5.0, max_steps=3, **EVALUATED)
    plain = run(portico, tmp_path / "plain", max_steps=3, **EVALUATED)
    assert ours.history[0]["loss"] != plain.history[0]["loss"]
    assert not ours.trainer.model.get_input_embeddings()._forward_hooks


def test_same_memory_figures_by_name(tmp_path):
    pytest.importorskip("psutil")

    def base(trainer_class):
        class Named(trainer_class):
            def log(self, logs, *args, **kwargs):
                super().log({key: 0 if "_mem_" in key else value for key, value in logs.items()}, *args, **kwargs)

        return Named

    def after(trainer):
        return {"train": sorted(key for key in trainer.state.log_history[-1])}

    theirs = run(transformers, tmp_path / "theirs", base=base, skip_memory_metrics=False, max_steps=2, after=after)
    ours = run(portico, tmp_path / "ours", base=base, skip_memory_metrics=False, max_steps=2, after=after)
    assert ours.extra == theirs.extra
    assert ours.train_output.metrics.keys() == theirs.train_output.metrics.keys()
    assert any("_mem_" in key for key in ours.train_output.metrics)


def adam_and_schedule(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    return optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def test_same_numbers_with_a_given_optimizer_and_schedule(tmp_path):
    models = []

    def make_model():
        models.append(tiny_bert())
        return models[-1]

    def options():
        return {"optimizers": adam_and_schedule(models[-1])}

    compare(tmp_path, make_model=make_model, trainer_options=options, **EVALUATED)


def test_same_numbers_with_an_optimizer_class(tmp_path):
    options = {"optimizer_cls_and_kwargs": (torch.optim.RMSprop, {"lr": 1e-3})}
    compare(tmp_path, trainer_options=options, weight_decay=0.1)


SAVING = {"save_strategy": "steps", "save_steps": 1, "max_steps": 6}


def _files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "arguments",
    [
        {"save_only_model": True},
        {"save_total_limit": 2},
        {
            "save_total_limit": 2,
            "eval_strategy": "steps",
            "eval_steps": 1,
            "load_best_model_at_end": True,
            "learning_rate": 0.5,
        },
    ],
)
def test_same_files_of_checkpoints(arguments, tmp_path):
    ours, theirs = compare(tmp_path, **SAVING, **arguments)
    assert _files(tmp_path / "same") == _files(tmp_path / "theirs")
    assert ours.trainer.state.best_model_checkpoint == theirs.trainer.state.best_model_checkpoint


def test_same_numbers_after_a_model_init(tmp_path):
    def base(trainer_class):
        class Remade(trainer_class):
            def __init__(self, model, **kwargs):
                super().__init__(model_init=tiny_bert, **kwargs)

        return Remade

    def after(trainer):
        return {"second": trainer.train().training_loss}

    compare(tmp_path, base=base, after=after)


def test_same_numbers_on_a_columned_data_set(tmp_path):
    datasets = pytest.importorskip("datasets")

    def columned(size, seed):
        toy = ToyDataset(size, seed=seed)
        columns = {"input_ids": toy.tokens.tolist(), "labels": toy.labels.tolist(), "title": ["x"] * size}
        columns["length"] = [1 + index % 5 for index in range(size)]
        return datasets.Dataset.from_dict(columns)

    compare(
        tmp_path,
        train_dataset=lambda: columned(29, 0),
        eval_dataset=lambda: columned(11, 1),
        train_sampling_strategy="group_by_length",
        **EVALUATED,
    )


def test_same_numbers_in_bfloat16(tmp_path):
    def after(trainer):
        return {"predictions": trainer.predict(ToyDataset(10, seed=5)).predictions}

    compare(tmp_path, bf16=True, gradient_accumulation_steps=3, after=after, **EVALUATED)
