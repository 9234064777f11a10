"""Trainers that fail late in a real run, and trainers that do not: each function makes one in a folder."""

import threading

import numpy as np
import torch
import transformers
from torch import nn
from torch.utils.data import DataLoader, Dataset
from transformers import TrainerCallback

import portico
from models import (
    Line,
    Pairs,
    Points,
    PointStream,
    Sequences,
    ToyDataset,
    ToyStream,
    pad_everything,
    tiny_bert,
    tiny_gpt2,
    tiny_masked_lm,
    tiny_t5,
    tiny_tagger,
    tiny_tokenizer,
    toy_arguments,
    two_layer_bert,
)
from portico.mrc import Featurizer, MRCTrainer, SpanPostProcessing, SquadMetrics
from portico.mrc.collators import head_collator
from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader

WHOLE = {"eval_strategy": "epoch", "save_strategy": "epoch", "logging_strategy": "epoch"}
ROWS = 61  # the last batch and the last window of an epoch are short


class Changed(Dataset):
    """A data set with some rows replaced by a function of the row."""

    def __init__(self, data, **changes):
        self.data = data
        self.changes = {int(name.removeprefix("row")): change for name, change in changes.items()}

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        row = dict(self.data[index])
        return self.changes[index](row) if index in self.changes else row


def classifier(folder, data=None, model=None, parts=None, **changes):
    parts = {"eval_dataset": ToyDataset(ROWS, seed=1), **(parts or {})}
    args = toy_arguments(folder, **{**WHOLE, "per_device_train_batch_size": 4, **changes})
    return portico.Trainer(model or tiny_bert(), args, train_dataset=data or ToyDataset(ROWS), **parts)


def changed(folder, change, row=57):
    return classifier(folder, Changed(ToyDataset(ROWS), **{f"row{row}": change}))


def with_callback(folder, event, **changes):
    def fail(self, args, state, control, **kwargs):
        raise FileNotFoundError("no such volume: /mnt/backup")

    return classifier(folder, parts={"callbacks": [type("Backup", (TrainerCallback,), {event: fail})()]}, **changes)


def with_metrics(folder, function, **changes):
    return classifier(folder, parts={"compute_metrics": function}, **changes)


FAULTS = {}


def fault(sentence):
    """Enter a function with what a rehearsal says of its trainer, a regular expression."""

    def enter(function):
        FAULTS[function.__name__] = (function, sentence)
        return function

    return enter


# ---- Evaluation ----


@fault(r"`top_five` \(late_faults.py:\d+\) raises ValueError: kth\(=-2\) out of bounds")
def metric_of_too_few_classes(folder):
    def top_five(prediction):
        return {"top5": float(np.argpartition(prediction.predictions, -5, axis=1).mean())}

    return with_metrics(folder, top_five)


@fault(
    r"`by_batch` \(late_faults.py:\d+\) raises ValueError: cannot reshape|`by_batch` .* shape '\[2, 3\]' is invalid"
)
def metric_of_full_batches(folder):
    def by_batch(prediction, compute_result):
        prediction.predictions.reshape(2, 3)
        return {"accuracy": 1.0}

    return with_metrics(folder, by_batch, batch_eval_metrics=True)


@fault(r"set to 'eval_f1', which is not found in the evaluation metrics")
def best_metric_that_no_evaluation_returns(folder):
    return with_metrics(
        folder, lambda prediction: {"accuracy": 1.0}, load_best_model_at_end=True, metric_for_best_model="f1"
    )


@fault(r"`compute_metrics` returned '?0.5'? \(float\); let it return a dict")
def metric_that_is_no_dict(folder):
    return with_metrics(folder, lambda prediction: 0.5)


@fault(r"is a list of shape \[3\]|is a ndarray of shape \[3\], which cannot be compared as `metric_for_best_model`")
def best_metric_of_several_values(folder):
    return with_metrics(
        folder, lambda prediction: {"f1": np.ones(3)}, load_best_model_at_end=True, metric_for_best_model="f1"
    )


@fault(r"`second` \(late_faults.py:\d+\) raises ZeroDivisionError")
def metric_that_fails_for_the_second_set(folder):
    def second(prediction):
        return {"ratio": 1 / (prediction.label_ids == 0).sum().item()}

    class Ones(ToyDataset):
        def __getitem__(self, index):
            return {**super().__getitem__(index), "labels": torch.tensor(1)}

    sets = {"first": ToyDataset(9, seed=1), "second": Ones(9)}
    return classifier(folder, parts={"compute_metrics": second, "eval_dataset": sets})


@fault(r"`first_of` \(late_faults.py:\d+\) raises IndexError")
def logits_that_are_no_tuple(folder):
    def first_of(logits, labels):
        return logits[7].argmax(-1)

    parts = {"compute_metrics": lambda prediction: {"a": 1.0}, "preprocess_logits_for_metrics": first_of}
    return classifier(folder, parts=parts)


class WideOutputs(nn.Module):
    def __init__(self, width=3_000_000):
        super().__init__()
        self.bag, self.width = nn.Linear(1, 3), width

    def forward(self, input_ids, labels=None):
        logits = self.bag(input_ids.float().mean(1, keepdim=True))
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits[:, :1].repeat(1, self.width)}


@fault(r"An evaluation would keep outputs of \d+.\d GB \(rows of \[3000000\] for 9,000 examples\)")
def evaluation_larger_than_the_memory(folder):
    parts = {"compute_metrics": lambda prediction: {"a": 1.0}, "eval_dataset": ToyDataset(9000)}
    return classifier(folder, model=WideOutputs(), parts=parts, per_device_eval_batch_size=1)


class GrowingOutputs(WideOutputs):
    def forward(self, input_ids, labels=None):
        output = super().forward(input_ids, labels)
        size = len(input_ids)
        return {"loss": output["loss"], "logits": torch.zeros(size, 2, size)}


@fault(r"outputs of an evaluation cannot be joined: rows of shape \[2, 1\] follow rows of shape \[2, 2\]")
def outputs_that_cannot_be_joined(folder):
    parts = {"compute_metrics": lambda prediction: {"a": 1.0}}
    return classifier(folder, model=GrowingOutputs(3), parts=parts)


# ---- Callbacks ----


@fault(r"`fail` \(late_faults.py:\d+\) raises FileNotFoundError: no such volume: /mnt/backup")
def callback_on_save(folder):
    return with_callback(folder, "on_save")


@fault(r"`fail` \(late_faults.py:\d+\) raises FileNotFoundError")
def callback_on_evaluate(folder):
    return with_callback(folder, "on_evaluate")


@fault(r"`fail` \(late_faults.py:\d+\) raises FileNotFoundError")
def callback_on_log(folder):
    return with_callback(folder, "on_log")


@fault(r"`fail` \(late_faults.py:\d+\) raises FileNotFoundError")
def callback_on_epoch_end(folder):
    return with_callback(folder, "on_epoch_end")


@fault(r"`fail` \(late_faults.py:\d+\) raises FileNotFoundError")
def callback_on_train_end(folder):
    return with_callback(folder, "on_train_end")


# ---- Data ----


@fault(r"`train_dataset`: 1 row with labels that the model does not have: row 57 has the label 7 \(the model has 3")
def label_beyond_the_classes(folder):
    return changed(folder, lambda row: {**row, "labels": torch.tensor(7)})


@fault(r"row 57 has the label -1 \(the model has 3 classes, 0 to 2\)")
def negative_label(folder):
    return changed(folder, lambda row: {**row, "labels": torch.tensor(-1)})


@fault(r"row with token ids outside of the vocabulary: row 57 has the id 50 \(the model has 50\)")
def id_beyond_the_vocabulary(folder):
    return changed(folder, lambda row: {**row, "input_ids": torch.full((6,), 50)})


def ragged(row=None, **change):
    data = Sequences(ROWS, classes=3)
    changes = {} if row is None else {f"row{row}": lambda example: {**example, **change}}
    return Changed(data, **changes)


def tagger(folder, data, **parts):
    return classifier(folder, data, tiny_tagger(), {"eval_dataset": Sequences(9, classes=3), **parts})


@fault(r"`train_dataset`: 1 row with more tokens than the model takes: row 57 has 17 tokens \(the model takes 16\)")
def row_longer_than_the_model_takes(folder):
    return tagger(folder, ragged(57, input_ids=[5] * 17, labels=[1] * 17), data_collator=pad_everything)


@fault(r"`train_dataset`: 1 row without tokens: row 57 has no `input_ids`")
def empty_row(folder):
    return tagger(folder, ragged(57, input_ids=[], labels=[]), data_collator=pad_everything)


@fault(r"row 57 has the label 3 \(the model has 3 classes")
def tag_beyond_the_classes(folder):
    return tagger(folder, ragged(57, labels=[3] * 6), data_collator=pad_everything)


@fault(r"`train_dataset`: 1 row without a column that others have, or with None in it: row 57 lacks `labels`")
def missing_column(folder):
    return changed(folder, lambda row: {"input_ids": row["input_ids"]})


@fault(r"row 57 has None in `labels`")
def missing_value(folder):
    return changed(folder, lambda row: {**row, "labels": None})


def unreadable(row):
    raise OSError("image file is truncated")


@fault(r"`train_dataset`: 1 row that cannot be read: row 57 raises OSError: image file is truncated")
def row_that_raises(folder):
    return changed(folder, unreadable)


@fault(r"`eval_dataset`: 1 row that cannot be read: row 43 raises OSError: image file is truncated")
def row_of_the_evaluation_that_raises(folder):
    return classifier(folder, parts={"eval_dataset": Changed(ToyDataset(ROWS), row43=unreadable)})


@fault(r"1 batch that the data collator cannot make: rows 56 to 59 raise")
def row_of_another_size(folder):
    return changed(folder, lambda row: {**row, "input_ids": torch.ones(9, dtype=torch.int64)})


@fault(r"1 row with labels that are not finite: row 57 has nan in `labels`")
def target_that_is_not_finite(folder):
    data = Changed(Points(ROWS), row57=lambda row: {**row, "labels": torch.tensor([float("nan")])})
    return classifier(folder, data, Line(), {"eval_dataset": Points(5)})


def unlabelled(folder, **changes):
    data = Changed(Sequences(ROWS), row57=lambda row: {**row, "labels": [-100] * 6})
    parts = {"eval_dataset": Sequences(9), "data_collator": pad_everything}
    return classifier(folder, data, tiny_gpt2(), parts, **changes)


@fault(r"row(s)? without a label that counts, since all are -100.*row 57 has labels of -100 only")
def row_without_a_label_that_counts(folder):
    return unlabelled(folder, per_device_train_batch_size=1)


@fault(r"row 57 has end position 9 and 6 tokens")
def answer_outside_of_its_tokens(folder):
    class Answers(Sequences):
        def __getitem__(self, index):
            end = 9 if index == 57 else 3
            return {"input_ids": self.tokens[index], "start_positions": 1, "end_positions": end}

    torch.manual_seed(7)
    model = transformers.BertForQuestionAnswering(tiny_bert().config)
    return classifier(folder, Answers(ROWS), model, {"eval_dataset": Answers(9)})


@fault(r"`train_dataset`: row \d+|1 row that cannot be read: row \d+ raises KeyError")
def row_of_a_stream_that_raises(folder):
    class Stream(ToyStream):
        def __iter__(self):
            yield from super().__iter__()
            raise KeyError("text")

    args = {"max_steps": 20, "eval_strategy": "no"}
    return classifier(folder, Stream(), parts={"eval_dataset": None}, **args)


# ---- Steps ----


@fault(r"`compute_loss` \(late_faults.py:\d+\) raises RuntimeError: shape '\[4, 3\]' is invalid")
def loss_of_full_batches(folder):
    class Own(portico.Trainer):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            outputs["logits"].view(4, 3)
            return (outputs["loss"], outputs) if return_outputs else outputs["loss"]

    args = toy_arguments(folder, per_device_train_batch_size=4, save_strategy="epoch")
    return Own(tiny_bert(), args, train_dataset=ToyDataset(ROWS))


@fault(r"`eval_examples`: 1 answer not in its context: row 3 has 'elsewhere' at 5")
def answer_that_is_not_in_its_context(folder):
    train, validation = generate(num_train=24, num_validation=8, seed=1)
    validation[3]["answers"] = {"text": ["elsewhere"], "answer_start": [5]}
    texts = [example["context"] for example in train]
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    made = new_reader(texts, vocab_size=300, max_length=96, model=shape)
    featurizer = Featurizer(made.tokenizer, max_seq_length=96, doc_stride=24)
    return MRCTrainer(
        made.model,
        toy_arguments(folder, **WHOLE),
        train_dataset=featurizer.train_features(train),
        eval_examples=validation,
        eval_dataset=featurizer.eval_features(validation, labels=True),
        processing_class=made.tokenizer,
        data_collator=head_collator("span", made.tokenizer),
        post_process_function=SpanPostProcessing(version_2_with_negative=True),
        compute_metrics=SquadMetrics(version_2_with_negative=True),
    )


# ---- Saving, resuming, the end ----


@fault(r"Greedy methods .* Make `model.generation_config` consistent")
def generation_config_that_is_refused(folder):
    model = tiny_gpt2()
    model.generation_config.do_sample, model.generation_config.temperature = False, 0.3
    model.generation_config.num_beams, model.generation_config.num_return_sequences = 1, 4
    parts = {"eval_dataset": Sequences(9), "data_collator": pad_everything}
    return classifier(folder, Sequences(ROWS), model, parts)


@fault(r"contained shared tensors .* not properly defined")
def weights_that_share_memory(folder):
    model = two_layer_bert()
    first, second = model.bert.encoder.layer
    second.output.dense.weight = first.output.dense.weight
    return classifier(folder, model=model)


class Unsavable(transformers.PreTrainedTokenizerFast):
    def save_pretrained(self, folder, **options):
        raise ValueError("the vocabulary file has moved")


@fault(r"`save_pretrained` \(late_faults.py:\d+\) raises ValueError: the vocabulary file has moved")
def tokenizer_that_cannot_be_saved(folder):
    tokenizer = Unsavable(tokenizer_object=tiny_tokenizer().backend_tokenizer, pad_token="[PAD]")
    return classifier(folder, parts={"processing_class": tokenizer})


@fault(r"TypeError: Object of type (set|Thread) is not JSON serializable.*return plain Python values")
def metric_that_is_no_json(folder):
    return with_metrics(folder, lambda prediction: {"classes": {0, 1}})


class Unreadable(torch.optim.SGD):
    def load_state_dict(self, state_dict):
        raise KeyError("momentum_buffer")


@fault(r"A resume from a checkpoint fails: .*optimizer.pt cannot be read: 'momentum_buffer'")
def optimizer_that_cannot_be_resumed(folder):
    model = tiny_bert()
    return classifier(folder, model=model, parts={"optimizers": (Unreadable(model.parameters(), 0.1), None)})


class Unpicklable(torch.optim.SGD):
    def state_dict(self):
        return {**super().state_dict(), "lock": threading.Lock()}


@fault(r"cannot pickle|can't pickle")
def optimizer_that_cannot_be_saved(folder):
    model = tiny_bert()
    return classifier(folder, model=model, parts={"optimizers": (Unpicklable(model.parameters(), 0.1), None)})


@fault(r"A resumed run trains step \d on other examples")
def data_that_change_by_themselves(folder):
    class Counting(ToyDataset):
        reads = 0

        def __getitem__(self, index):
            type(self).reads += 1
            row = super().__getitem__(index)
            return {**row, "input_ids": (row["input_ids"] + self.reads) % 50}

    return classifier(folder, Counting(ROWS))


@fault(r"A resumed run has the loss .* a part of the training is not in the checkpoint")
def state_outside_of_the_checkpoint(folder):
    class Forgetful(WideOutputs):
        passes = 0.0

        def forward(self, input_ids, labels=None):
            output = super().forward(input_ids, labels)
            if self.training:
                self.passes += 1
            return {**output, "loss": output["loss"] * self.passes}

    trainer = classifier(folder, parts={"compute_metrics": None}, model=None)
    model = Forgetful(3)
    trainer = classifier(folder, model=model)
    # In a notebook the model itself is resumed, so what it counts is what the next process lacks.
    trainer.add_callback(_Forgets(model))
    return trainer


class _Forgets(TrainerCallback):
    def __init__(self, model):
        self.model = model

    def on_train_begin(self, args, state, control, **kwargs):
        self.model.passes = 0.0


@fault(r"`push_to_hub=True` uploads the model, and nobody is logged in to the hub here")
def upload_without_a_login(folder):
    trainer = classifier(folder)
    trainer.args.push_to_hub = True
    return trainer


@fault(r"The checkpoints need \d+.\d GB, and \d+.\d GB are free for")
def disk_too_small(folder):
    return classifier(folder, max_steps=10**9, save_strategy="steps", save_steps=1)


@fault(r"eval_loss', which is not found|the dataset has no labels|requires an? .*eval_loss")
def best_loss_of_data_without_labels(folder):
    class Unlabelled(ToyDataset):
        def __getitem__(self, index):
            return {"input_ids": super().__getitem__(index)["input_ids"]}

    parts = {"eval_dataset": Unlabelled(9)}
    return classifier(folder, parts=parts, load_best_model_at_end=True, metric_for_best_model="loss")


# ---- Sound trainers ----

SOUND = {}


def sound(function):
    SOUND[function.__name__] = function
    return function


@sound
def classification(folder):
    return with_metrics(folder, lambda prediction: {"n": len(prediction.predictions)})


@sound
def best_model(folder):
    metrics = lambda prediction: {"a": float(prediction.predictions.mean())}  # noqa: E731
    return with_metrics(folder, metrics, load_best_model_at_end=True, metric_for_best_model="a", save_total_limit=1)


@sound
def early_stopping(folder):
    parts = {"callbacks": [transformers.EarlyStoppingCallback(1)]}
    return classifier(folder, parts=parts, load_best_model_at_end=True, metric_for_best_model="loss")


@sound
def metrics_of_the_whole_set(folder):
    gold = np.array([int(ToyDataset(ROWS, seed=1)[index]["labels"]) for index in range(ROWS)])
    return with_metrics(folder, lambda prediction: {"a": float((prediction.predictions.argmax(1) == gold).mean())})


@sound
def metrics_by_batch(folder):
    def count(prediction, compute_result):
        return {"n": float(len(prediction.predictions))}

    return with_metrics(folder, count, batch_eval_metrics=True)


@sound
def several_sets(folder):
    return classifier(folder, parts={"eval_dataset": {"a": ToyDataset(9), "b": ToyDataset(23)}})


@sound
def causal_model_with_accumulation(folder):
    parts = {"eval_dataset": Sequences(9), "data_collator": pad_everything}
    return classifier(folder, Sequences(ROWS, ragged=True), tiny_gpt2(), parts, gradient_accumulation_steps=4)


@sound
def masked_model(folder):
    parts = {"eval_dataset": Sequences(9), "data_collator": pad_everything}
    return classifier(folder, Sequences(ROWS), tiny_masked_lm(), parts)


@sound
def tags(folder):
    return tagger(folder, Sequences(ROWS, classes=3, ragged=True), data_collator=pad_everything)


@sound
def generation(folder):
    tokenizer = tiny_tokenizer()
    args = toy_arguments(folder, portico.Seq2SeqTrainingArguments, predict_with_generate=True, **WHOLE)
    collator = transformers.DataCollatorForSeq2Seq(tokenizer)
    data = {"train_dataset": Pairs(ROWS), "eval_dataset": Pairs(31, seed=1), "data_collator": collator}
    metrics = lambda prediction: {"n": len(prediction.predictions)}  # noqa: E731
    return portico.Seq2SeqTrainer(tiny_t5(), args, **data, compute_metrics=metrics)


@sound
def regression_of_a_plain_module(folder):
    return classifier(folder, Points(ROWS), Line(), {"eval_dataset": Points(33)})


@sound
def stream(folder):
    return classifier(folder, PointStream(), Line(), {"eval_dataset": PointStream()}, max_steps=40, save_steps=9)


@sound
def loaders_of_the_user(folder):
    loaders = {"eval_dataset": DataLoader(ToyDataset(9), batch_size=2)}
    return classifier(folder, DataLoader(ToyDataset(ROWS), batch_size=4, shuffle=True), parts=loaders)


@sound
def fewer_examples_than_a_window(folder):
    return classifier(folder, ToyDataset(3), gradient_accumulation_steps=4)


@sound
def nothing_but_steps(folder):
    return classifier(folder, eval_strategy="no", save_strategy="no", parts={"eval_dataset": None})


@sound
def only_full_batches(folder):
    return classifier(folder, dataloader_drop_last=True, gradient_accumulation_steps=2)


@sound
def plateau(folder):
    return classifier(folder, lr_scheduler_type="reduce_lr_on_plateau", metric_for_best_model="loss")


@sound
def best_checkpoints(folder):
    return classifier(folder, save_strategy="best", metric_for_best_model="loss", load_best_model_at_end=True)


@sound
def random_examples(folder):
    return classifier(folder, ToyDataset(ROWS, draws=True))


@sound
def model_made_by_a_function(folder):
    args = toy_arguments(folder, **WHOLE)
    data = {"train_dataset": ToyDataset(ROWS), "eval_dataset": ToyDataset(9)}
    return portico.Trainer(args=args, model_init=tiny_bert, **data)


@sound
def grouped_by_length(folder):
    parts = {"eval_dataset": Sequences(9), "data_collator": pad_everything}
    options = {"train_sampling_strategy": "group_by_length"}
    return classifier(folder, Sequences(ROWS, ragged=True), tiny_gpt2(), parts, **options)


@sound
def random_stream(folder):
    parts = {"eval_dataset": ToyDataset(9)}
    return classifier(folder, ToyStream(ROWS, draws=True), parts=parts, max_steps=40, save_steps=9)


@sound
def missing_values_of_a_series(folder):
    class Filling(Line):
        def forward(self, x, labels=None):
            return super().forward(torch.nan_to_num(x), labels)

    def unmeasured(row):
        return {**row, "x": torch.tensor([0.0, float("nan"), 1.0])}

    changes = {f"row{row}": unmeasured for row in range(0, ROWS, 3)}
    return classifier(folder, Changed(Points(ROWS), **changes), Filling(), {"eval_dataset": Points(9)})


@sound
def rows_that_the_collator_completes(folder):
    def collate(rows):
        nothing = torch.zeros(3)
        return {"x": torch.stack([row.get("x", nothing) for row in rows]), "labels": torch.ones(len(rows), 1)}

    data = Changed(Points(ROWS), row57=lambda row: {"labels": row["labels"]}, row58=lambda row: {**row, "note": None})
    return classifier(folder, data, Line(), {"eval_dataset": Points(9), "data_collator": collate})


@sound
def texts_of_which_nothing_is_left_to_learn(folder):
    return unlabelled(folder)
