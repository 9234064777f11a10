"""The same training under both libraries: losses, rates, norms, events, history and weights are equal with ``==``."""

import pytest
import torch
from transformers import EarlyStoppingCallback, TrainerCallback

from models import ToyDataset, ToyStream
from parity.peers import compare, untimed


class PlainModel(torch.nn.Module):
    """A plain module that does not take `num_items_in_batch`, so its loss is a mean of means."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(50, 8)
        self.dropout = torch.nn.Dropout(0.1)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, input_ids, labels=None):
        logits = self.head(self.dropout(self.embedding(input_ids).mean(1)))
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def plain_model():
    torch.manual_seed(7)
    return PlainModel()


def accuracy(prediction):
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


ARGUMENTS = {
    "basic": {},
    "accumulation": {"gradient_accumulation_steps": 2},
    "partial_window": {"gradient_accumulation_steps": 3},
    "accumulation_four": {"gradient_accumulation_steps": 4},
    "accumulation_five": {"gradient_accumulation_steps": 5, "logging_steps": 2},
    "no_clipping": {"max_grad_norm": 0.0},
    "tight_clipping": {"max_grad_norm": 0.01},
    "weight_decay": {"weight_decay": 0.1, "adam_beta2": 0.95},
    "max_steps": {"max_steps": 5},
    "max_steps_over_epochs": {"max_steps": 11, "gradient_accumulation_steps": 3},
    "fractional_epochs": {"num_train_epochs": 1.4, "gradient_accumulation_steps": 2},
    "drop_last": {"dataloader_drop_last": True},
    "cosine_with_warmup": {"lr_scheduler_type": "cosine", "warmup_steps": 4},
    "warmup_share": {"warmup_steps": 0.3},
    "adafactor": {"optim": "adafactor"},
    "sgd": {"optim": "sgd"},
    "data_seed": {"data_seed": 11},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "sequential": {"train_sampling_strategy": "sequential"},
    "eval_steps": {"eval_strategy": "steps", "eval_steps": 3, "gradient_accumulation_steps": 2},
    "eval_epoch": {"eval_strategy": "epoch", "gradient_accumulation_steps": 3},
    "eval_on_start": {"eval_strategy": "epoch", "eval_on_start": True},
    "eval_delay": {"eval_strategy": "steps", "eval_steps": 2, "eval_delay": 5},
    "eval_accumulation": {"eval_strategy": "epoch", "eval_accumulation_steps": 2},
    "save_and_eval_mid_epoch": {
        "eval_strategy": "steps",
        "eval_steps": 3,
        "save_strategy": "steps",
        "save_steps": 3,
        "gradient_accumulation_steps": 3,
    },
    "best_model": {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "load_best_model_at_end": True,
        "save_total_limit": 1,
    },
    "save_best": {"eval_strategy": "epoch", "save_strategy": "best", "metric_for_best_model": "loss"},
    "plateau": {
        "eval_strategy": "epoch",
        "lr_scheduler_type": "reduce_lr_on_plateau",
        "lr_scheduler_kwargs": {"patience": 0},
        "num_train_epochs": 4,
    },
    "label_smoothing": {"label_smoothing_factor": 0.1},
    "log_first_step": {"logging_steps": 5, "logging_first_step": True},
    "log_epoch": {"logging_strategy": "epoch"},
    "tokens_seen": {"include_num_input_tokens_seen": "all"},
    # Each worker has its own generator.
    "workers": {"dataloader_num_workers": 2, "train_dataset": lambda: ToyDataset(draws=True)},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_same_numbers_with(name, tmp_path):
    compare(tmp_path, scenario=name, **ARGUMENTS[name])


DATA = {
    "dataset_that_draws": {"train_dataset": lambda: ToyDataset(draws=True)},
    "dataset_that_draws_accumulated": {
        "train_dataset": lambda: ToyDataset(draws=True),
        "gradient_accumulation_steps": 3,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "eval_dataset": lambda: ToyDataset(11, draws=True),
    },
    "stream": {"train_dataset": ToyStream, "max_steps": 6},
    "stream_gone_through": {"train_dataset": ToyStream, "max_steps": 19},
    "stream_that_draws": {"train_dataset": lambda: ToyStream(draws=True), "max_steps": 6},
    "stream_with_open_window": {"train_dataset": ToyStream, "max_steps": 5, "gradient_accumulation_steps": 4},
    "stream_for_evaluation": {"eval_dataset": lambda: ToyStream(11), "eval_strategy": "epoch"},
    "named_sets": {
        "eval_dataset": lambda: {"a": ToyDataset(7, seed=2), "b": ToyDataset(9, seed=3)},
        "eval_strategy": "epoch",
    },
    "named_sets_of_streams": {
        "eval_dataset": lambda: {"a": ToyStream(7), "b": ToyStream(9, draws=True)},
        "eval_strategy": "steps",
        "eval_steps": 4,
        "eval_on_start": True,
        "trainer_options": {"compute_metrics": accuracy},
    },
    "best_of_named_sets": {
        "eval_dataset": lambda: {"a": ToyDataset(7, seed=2), "b": ToyDataset(9, seed=3)},
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "metric_for_best_model": "b_loss",
        "load_best_model_at_end": True,
        "learning_rate": 0.5,
    },
    "plain_module": {"make_model": plain_model, "gradient_accumulation_steps": 3},
    "metrics": {"eval_strategy": "epoch", "trainer_options": {"compute_metrics": accuracy}},
    "early_stopping": {
        "callbacks": [lambda: EarlyStoppingCallback(1)],
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "loss",
        "num_train_epochs": 4,
    },
}


@pytest.mark.parametrize("name", DATA)
@pytest.mark.filterwarnings("ignore:Using EarlyStoppingCallback without load_best_model_at_end")
def test_same_numbers_on(name, tmp_path):
    compare(tmp_path, scenario=name, **DATA[name])


class StopEpoch(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_epoch_stop = state.global_step in (2, 3)


class StopTrainingInSubstep(TrainerCallback):
    def on_substep_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= 2


class ForceEverything(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_evaluate = control.should_save = control.should_log = state.global_step % 3 == 1


@pytest.mark.parametrize("callback", [StopEpoch, StopTrainingInSubstep, ForceEverything])
def test_same_numbers_with_steering_callback(callback, tmp_path):
    compare(tmp_path, callbacks=[callback], gradient_accumulation_steps=3, logging_steps=100)


def evaluating_at(event):
    class EvaluateAt(TrainerCallback):
        trainer = None

        def _evaluate(self, args, state, control, **kwargs):
            self.trainer.evaluate()
            self.trainer.predict(ToyDataset(5, seed=9))

    setattr(EvaluateAt, event, EvaluateAt._evaluate)
    return EvaluateAt


@pytest.mark.parametrize("event", ["on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end", "on_train_end"])
def test_same_numbers_when_callback_evaluates(event, tmp_path):
    callback_class = evaluating_at(event)

    def base(trainer_class):
        class Introduced(trainer_class):
            def __init__(self, *args, **kwargs):
                super().__init__(*args, **kwargs)
                for callback in self.callback_handler.callbacks:
                    if isinstance(callback, callback_class):
                        callback.trainer = self

        return Introduced

    compare(tmp_path, callbacks=[callback_class], base=base, gradient_accumulation_steps=2)


def overriding_compute_loss(trainer_class):
    class Doubled(trainer_class):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            outputs = model(**inputs)
            loss = outputs["loss"] * 2
            return (loss, outputs) if return_outputs else loss

    return Doubled


def overriding_training_step(trainer_class):
    class Whole(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, self._prepare_inputs(inputs))
            loss = loss / self.current_gradient_accumulation_steps
            self.accelerator.backward(loss)
            return loss.detach()

    return Whole


def calling_super(trainer_class):
    class Super(trainer_class):
        def training_step(self, *args, **kwargs):
            return super().training_step(*args, **kwargs)

    return Super


def raw_backward(trainer_class):
    class Raw(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            model.train()
            loss = self.compute_loss(model, inputs) / self.current_gradient_accumulation_steps
            loss.backward()
            return loss.detach()

    return Raw


def adversarial(trainer_class):
    class Adversarial(trainer_class):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = super().training_step(model, inputs, num_items_in_batch)
            # Several processes train a wrapped model.
            weight = getattr(model, "module", model).bert.embeddings.word_embeddings.weight
            nudge = 0.1 * weight.grad / (weight.grad.norm() + 1e-8)
            weight.data.add_(nudge)
            super().training_step(model, inputs, num_items_in_batch)
            weight.data.sub_(nudge)
            return loss

    return Adversarial


def many_small(trainer_class):
    class Many(trainer_class):
        def get_train_dataloader(self):
            return torch.utils.data.DataLoader(self.train_dataset, batch_size=5, shuffle=True)

        def create_optimizer(self, *args, **kwargs):
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
            return self.optimizer

        def create_scheduler(self, num_training_steps, optimizer=None):
            self.lr_scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.5)
            return self.lr_scheduler

        def log(self, logs, *args, **kwargs):
            logs["mine"] = len(self.state.log_history)
            super().log(logs, *args, **kwargs)

        def evaluate(self, *args, **kwargs):
            self.model.evaluations = getattr(self.model, "evaluations", 0) + 1
            metrics = super().evaluate(*args, **kwargs)
            self.log({"evaluations": self.model.evaluations})
            return metrics

        def prediction_step(self, *args, **kwargs):
            loss, logits, labels = super().prediction_step(*args, **kwargs)
            return (loss * 3 if loss is not None else None), logits, labels

    return Many


def own_evaluation_loop(trainer_class):
    class Own(trainer_class):
        def evaluation_loop(self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
            output = super().evaluation_loop(dataloader, description, *args, metric_key_prefix=metric_key_prefix)
            output.metrics[f"{metric_key_prefix}_extra"] = 1.5
            return output

    return Own


OVERRIDES = [
    overriding_compute_loss,
    overriding_training_step,
    calling_super,
    raw_backward,
    adversarial,
    many_small,
    own_evaluation_loop,
]


@pytest.mark.parametrize("base", OVERRIDES)
def test_same_numbers_with_subclass(base, tmp_path):
    compare(tmp_path, base=base, gradient_accumulation_steps=3, eval_strategy="steps", eval_steps=3)


def test_same_numbers_with_compute_loss_func(tmp_path):
    def summed(outputs, labels, num_items_in_batch=None):
        return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch

    compare(tmp_path, trainer_options={"compute_loss_func": summed}, gradient_accumulation_steps=3)


def test_same_numbers_with_nonfinite_loss(tmp_path):
    def base(trainer_class):
        class Breaks(trainer_class):
            def compute_loss(self, *args, **kwargs):
                loss = super().compute_loss(*args, **kwargs)
                return loss * float("nan") if self.state.global_step == 4 else loss

        return Breaks

    ours, _ = compare(tmp_path, base=base, max_steps=4, logging_steps=2)
    assert all(entry["loss"] == entry["loss"] for entry in ours.history if "loss" in entry)


def test_same_predictions_after_training(tmp_path):
    def after(trainer):
        metrics = untimed(trainer.evaluate())
        prediction = trainer.predict(ToyDataset(10, seed=5))
        return {
            "metrics": metrics,
            "predictions": prediction.predictions,
            "labels": prediction.label_ids,
            "test": untimed(prediction.metrics),
        }

    compare(tmp_path, after=after, trainer_options={"compute_metrics": accuracy})


def test_same_numbers_in_second_run(tmp_path):
    def after(trainer):
        output = trainer.train()
        return {"loss": output.training_loss, "weights": dict(trainer.model.state_dict())}

    compare(tmp_path, after=after)
