"""Subclasses that override a hook: the same calls at the same moments, and the same numbers."""

from pathlib import Path

import pytest
import torch
import transformers
from torch.utils.data import DataLoader, RandomSampler, WeightedRandomSampler
from transformers.trainer_utils import EvalLoopOutput

import portico
from models import Sequences, ToyDataset, pad_everything, tiny_gpt2
from parity.peers import compare, untimed
from portico.loop.overrides import ADDED_ARGUMENTS, LEFT_OUT

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2, "gradient_accumulation_steps": 3, "max_steps": 5}
SAVED = {"save_strategy": "steps", "save_steps": 2, **EVALUATED}


def note(trainer, **values):
    """Record a call in the log history, which is compared."""
    trainer.state.log_history.append(values)


def overriding(**methods):
    """Return a function that makes a subclass; each method gets the hook it replaces as its first argument."""

    def base(trainer_class):
        def bound(name, method):
            return lambda self, *args, **kwargs: method(getattr(super(subclass, self), name), self, *args, **kwargs)

        subclass = type("Own", (trainer_class,), {name: bound(name, method) for name, method in methods.items()})
        return subclass

    return base


def doubled_error(model, inputs):
    labels = inputs.pop("labels")
    outputs = model(**inputs)
    return 2 * torch.nn.functional.cross_entropy(outputs.logits, labels), outputs


def loss_of_its_own(hook, self, model, inputs, return_outputs=False, **kwargs):
    loss, outputs = doubled_error(model, inputs)
    return (loss, outputs) if return_outputs else loss


def loss_with_outputs_of_its_own(hook, self, model, inputs, return_outputs=False, num_items_in_batch=None):
    loss, outputs = doubled_error(model, inputs)
    return (loss, {"twice": outputs.logits * 2}) if return_outputs else loss


def loss_that_logs(hook, self, model, inputs, return_outputs=False, **kwargs):
    loss, outputs = hook(model, inputs, return_outputs=True, **kwargs)
    self.log({"mine": loss.item()})
    return (loss.double(), outputs) if return_outputs else loss.double()


def step_with_two_backward_passes(hook, self, model, inputs, num_items_in_batch=None):
    model.train()
    inputs = self._prepare_inputs(inputs)
    loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
    self.accelerator.backward(loss, retain_graph=True)
    self.accelerator.backward(self.compute_loss(model, inputs))
    return loss.detach()


def step_without_sync(hook, self, model, inputs, num_items_in_batch=None):
    note(self, step_without_sync=self.state.global_step)
    with self.accelerator.no_sync(model):
        return hook(model, inputs, num_items_in_batch)


def step_that_leaves_some_out(hook, self, model, inputs, num_items_in_batch=None):
    if self.state.global_step % 2:
        return torch.tensor(0.0)
    return hook(model, inputs, num_items_in_batch)


def step_with_the_optimizer(hook, self, model, inputs, num_items_in_batch=None):
    hook(model, inputs, num_items_in_batch)
    self.optimizer.step()
    self.optimizer.zero_grad()
    return hook(model, inputs, num_items_in_batch)


def prediction_of_its_own(hook, self, model, inputs, prediction_loss_only, ignore_keys=None):
    inputs = self._prepare_inputs(inputs)
    with torch.no_grad():
        outputs = model(**inputs)
    errors = torch.nn.functional.cross_entropy(outputs.logits, inputs["labels"], reduction="none")
    return errors, outputs.logits, inputs["labels"]


def loop_of_its_own(hook, self, dataloader, description, *args, metric_key_prefix="eval", **kwargs):
    self.model.eval()
    losses = []
    for inputs in dataloader:
        loss, _, _ = self.prediction_step(self.model, inputs, True)
        losses.append(self.accelerator.gather_for_metrics(loss.repeat(self.args.eval_batch_size)))
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)
    return EvalLoopOutput(None, None, {f"{metric_key_prefix}_loss": torch.cat(losses).sum().item()}, len(losses))


def again(trainer):
    return {"metrics": untimed(trainer.evaluate())}


def evaluation_with_post_processing(hook, self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval"):
    compute_metrics, self.compute_metrics = self.compute_metrics, None
    loader = self.get_eval_dataloader(self.eval_dataset if eval_dataset is None else eval_dataset)
    output = self.evaluation_loop(
        loader, description="Evaluation", prediction_loss_only=None, metric_key_prefix=metric_key_prefix
    )
    self.compute_metrics = compute_metrics
    right = (output.predictions.argmax(-1) == output.label_ids).mean()
    metrics = {**output.metrics, "eval_right": float(right), "eval_samples": output.num_samples}
    metrics.pop("eval_model_preparation_time", None)
    self.log(metrics)
    self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
    return metrics


def evaluation_that_adds(hook, self, *args, **kwargs):
    metrics = hook(*args, **kwargs)
    self.log({"more": 1.0})
    return {**metrics, "eval_more": 1.0}


def optimizer_of_its_own(hook, self, *args):
    groups = [
        {"params": [parameter], "lr": 1e-3 * (depth + 1)} for depth, parameter in enumerate(self.model.parameters())
    ]
    self.optimizer = torch.optim.AdamW(groups)
    return self.optimizer


def optimizer_with_another_group(hook, self, *args):
    optimizer = hook(*args)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 1.0})
    note(self, groups=len(optimizer.param_groups))
    return optimizer


def schedule_of_its_own(hook, self, num_training_steps, optimizer=None):
    optimizer = self.optimizer if optimizer is None else optimizer
    self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return self.lr_scheduler


def batches_counted(hook, self, iterator, num_batches, device):
    window, count = hook(iterator, num_batches, device)
    note(self, window=len(window), asked=num_batches, count=None if count is None else float(count))
    return window, count


def count_of_its_own(hook, self, batches, device):
    note(self, counted=len(batches))
    return torch.tensor(7.0)


def examples_of_its_own(hook, self, loader):
    note(self, examples=12)
    return 12


def collator_of_its_own(hook, self, collator, description=None):
    # It keeps every column and reverses the batch, which shows in the numbers.
    return lambda examples: collator(examples[::-1])


def plain_loader(hook, self, eval_dataset=None):
    return DataLoader(self.eval_dataset, batch_size=4)


def whether_last(prediction, compute_result=False):
    return {"last": float(compute_result)}


def inputs_turned_round(hook, self, inputs):
    return {name: tensor.flip(0) for name, tensor in hook(inputs).items()}


def bfloat16_context(hook, self, *args, **kwargs):
    return torch.autocast("cpu", dtype=torch.bfloat16)


def save_noted(hook, self, output_dir=None, *args, **kwargs):
    note(self, saved=Path(output_dir or "final").name)
    return hook(output_dir, *args, **kwargs)


def log_save_evaluate_noted(hook, self, tr_loss, grad_norm, *args, **kwargs):
    note(self, loss_sum=tr_loss.item(), norm=float(grad_norm), rate=kwargs["learning_rate"])
    return hook(tr_loss, grad_norm, *args, **kwargs)


def noted(name):
    def method(hook, self, *args, **kwargs):
        note(self, called=name)
        return hook(*args, **kwargs)

    return method


def copied(name):
    """Return the method of ``transformers.Trainer``, as scripts copy it to change a line."""
    return lambda hook, self, *args, **kwargs: getattr(transformers.Trainer, name)(self, *args, **kwargs)


COPIED = [
    "training_step",
    "compute_loss",
    "prediction_step",
    "_clip_grad_norm",
    "_save_checkpoint",
    "_load_best_model",
]
BEST = {"load_best_model_at_end": True, **SAVED}
OVERRIDES = {
    "loss": ({"compute_loss": loss_of_its_own}, EVALUATED),
    "loss_and_outputs": ({"compute_loss": loss_with_outputs_of_its_own}, EVALUATED),
    "loss_logged": ({"compute_loss": loss_that_logs}, EVALUATED),
    "two_backward_passes": ({"training_step": step_with_two_backward_passes}, EVALUATED),
    "no_sync": ({"training_step": step_without_sync}, EVALUATED),
    "steps_left_out": ({"training_step": step_that_leaves_some_out}, EVALUATED),
    "optimizer_in_step": ({"training_step": step_with_the_optimizer}, {**EVALUATED, "gradient_accumulation_steps": 1}),
    "prediction": ({"prediction_step": prediction_of_its_own}, EVALUATED),
    "evaluation_loop": ({"evaluation_loop": loop_of_its_own}, EVALUATED),
    "evaluation_loop_in_bfloat16": ({"evaluation_loop": loop_of_its_own}, {**EVALUATED, "bf16": True, "after": again}),
    "post_processing": ({"evaluate": evaluation_with_post_processing}, EVALUATED),
    "more_metrics": ({"evaluate": evaluation_that_adds, "_evaluate": evaluation_that_adds}, EVALUATED),
    "optimizer": ({"create_optimizer": optimizer_of_its_own, "create_scheduler": schedule_of_its_own}, EVALUATED),
    "another_group": ({"create_optimizer": optimizer_with_another_group}, EVALUATED),
    "decay": ({"get_decay_parameter_names": lambda hook, self, model: ["classifier.weight"]}, {"weight_decay": 0.3}),
    "learning_rate": ({"_get_learning_rate": lambda hook, self: 42.0}, EVALUATED),
    "batches": ({"get_batch_samples": batches_counted}, EVALUATED),
    "count": ({"_get_num_items_in_batch": count_of_its_own}, EVALUATED),
    "inputs": ({"_prepare_inputs": inputs_turned_round}, EVALUATED),
    "autocast": ({"autocast_smart_context_manager": bfloat16_context}, EVALUATED),
    "loader_of_batch_metrics": (
        {"get_eval_dataloader": plain_loader},
        {"eval_strategy": "epoch", "batch_eval_metrics": True, "trainer_options": {"compute_metrics": whether_last}},
    ),
    "loss_context": ({"compute_loss_context_manager": bfloat16_context}, EVALUATED),
    "operations": ({"floating_point_ops": lambda hook, self, inputs: 1000}, EVALUATED),
    "examples": ({"num_examples": examples_of_its_own}, EVALUATED),
    "columns": ({"_get_collator_with_removed_columns": collator_of_its_own}, EVALUATED),
    "save": ({"_save": save_noted}, SAVED),
    "save_model": ({"save_model": save_noted}, SAVED),
    "save_checkpoint": ({"_save_checkpoint": noted("_save_checkpoint")}, SAVED),
    "load_best": ({"_load_best_model": noted("best"), "_determine_best_metric": noted("metric")}, BEST),
    "log_save_evaluate": ({"_maybe_log_save_evaluate": log_save_evaluate_noted}, SAVED),
    "flos": ({"store_flos": noted("store_flos")}, SAVED),
    "copies": ({name: copied(name) for name in COPIED}, BEST),
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_same_numbers_with_overridden(name, tmp_path):
    methods, arguments = OVERRIDES[name]
    compare(tmp_path, base=overriding(**methods), **arguments)


class Batches:
    """Batches that do not come from a ``DataLoader``."""

    def __init__(self, dataset, size):
        self.dataset, self.size = dataset, size

    def __len__(self):
        return len(self.dataset) // self.size

    def __iter__(self):
        for start in range(0, len(self) * self.size, self.size):
            yield torch.utils.data.default_collate([self.dataset[start + place] for place in range(self.size)])


LOADERS = {
    "plain": lambda dataset: DataLoader(dataset, batch_size=5, shuffle=True),
    "list": lambda dataset: list(DataLoader(dataset, batch_size=5)),
    "own_class": lambda dataset: Batches(dataset, 4),
    "of_batches": lambda dataset: DataLoader(list(DataLoader(dataset, batch_size=4)), batch_size=None, shuffle=True),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LOADERS)
def test_same_numbers_with_loaders_that_are(name, tmp_path):
    make = LOADERS[name]
    methods = {
        "get_train_dataloader": lambda hook, self: make(self.train_dataset),
        "get_eval_dataloader": lambda hook, self, eval_dataset=None: make(self.eval_dataset),
    }
    compare(tmp_path, base=overriding(**methods), **EVALUATED)


SAMPLERS = {
    "weighted": lambda dataset: WeightedRandomSampler([1.0] * len(dataset), len(dataset)),
    "with_replacement": lambda dataset: RandomSampler(dataset, replacement=True, num_samples=13),
    "none": lambda dataset: None,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLERS)
def test_same_numbers_with_overridden_sampler(name, tmp_path):
    make = SAMPLERS[name]
    methods = {
        "_get_train_sampler": lambda hook, self, train_dataset=None: make(self.train_dataset),
        "_get_eval_sampler": lambda hook, self, eval_dataset: make(eval_dataset),
    }
    compare(tmp_path, base=overriding(**methods), **EVALUATED)


def old_loss_alone(trainer_class):
    class Old(trainer_class):
        def compute_loss(self, model, inputs):
            return model(**inputs).loss

    return Old


def old_loss_below_a_current_one(trainer_class):
    class Old(trainer_class):
        def compute_loss(self, model, inputs):
            return doubled_error(model, dict(inputs))[0]

    class Current(Old):
        def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    return Current


def old_loss(trainer_class):
    class Old(trainer_class):
        def compute_loss(self, model, inputs, return_outputs=False):
            outputs = model(**inputs)
            return (outputs.loss, outputs) if return_outputs else outputs.loss

    return Old


def old_loss_around_the_hook(trainer_class):
    class Old(trainer_class):
        def compute_loss(self, model, inputs, return_outputs=False):
            loss, outputs = super().compute_loss(model, inputs, return_outputs=True)
            return (loss, outputs) if return_outputs else loss

    return Old


def old_step(trainer_class):
    class Old(trainer_class):
        def training_step(self, model, inputs):
            return super().training_step(model, inputs)

    return Old


def old_log(trainer_class):
    class Old(trainer_class):
        def log(self, logs):
            super().log({**logs, "mine": 2.0})

    return Old


def old_sampler(trainer_class):
    class Old(trainer_class):
        def _get_train_sampler(self):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    return Old


def old_saving(trainer_class):
    class Old(trainer_class):
        def save_model(self, output_dir=None):
            super().save_model(output_dir)

        def _save_checkpoint(self, model, trial, metrics=None):
            super()._save_checkpoint(model, trial, metrics=metrics)

    return Old


def old_evaluation(trainer_class):
    class Old(trainer_class):
        def evaluate(self, eval_dataset=None, metric_key_prefix="eval"):
            return super().evaluate(eval_dataset, metric_key_prefix=metric_key_prefix)

    return Old


def old_log_save_evaluate(trainer_class):
    class Old(trainer_class):
        def _maybe_log_save_evaluate(self, tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval):
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval)

    return Old


def oldest_log_save_evaluate(trainer_class):
    class Old(trainer_class):
        def _maybe_log_save_evaluate(self, tr_loss, model, trial, epoch, ignore_keys_for_eval):
            super()._maybe_log_save_evaluate(tr_loss, model, trial, epoch, ignore_keys_for_eval)

    return Old


def old_batches(trainer_class):
    class Old(trainer_class):
        def get_batch_samples(self, epoch_iterator, num_batches):
            return super().get_batch_samples(epoch_iterator, num_batches)

    return Old


# The current equivalent: a loss without a count is a mean, which is divided by the batches of its window.
WITHOUT_COUNT = {"_get_num_items_in_batch": lambda hook, self, batches, device: None}
OLD = {
    old_loss_alone: WITHOUT_COUNT,
    old_loss_below_a_current_one: {"compute_loss": loss_of_its_own},
    old_loss: WITHOUT_COUNT,
    old_loss_around_the_hook: WITHOUT_COUNT,
    old_step: WITHOUT_COUNT,
    old_log: {"log": lambda hook, self, logs, *args: hook({**logs, "mine": 2.0}, *args)},
    old_sampler: {
        "_get_train_sampler": lambda hook, self, *args: torch.utils.data.SequentialSampler(self.train_dataset)
    },
    old_saving: {},
    old_evaluation: {},
    old_log_save_evaluate: {"_maybe_log_save_evaluate": lambda hook, self, *args, **kwargs: hook(*args)},
    oldest_log_save_evaluate: {
        "_maybe_log_save_evaluate": lambda hook, self, *args, **kwargs: hook(*args[:-1], start_time=None)
    },
    old_batches: {},
}


@pytest.mark.parametrize("old", OLD)
def test_override_with_old_signature_warns_once(old, tmp_path):
    def base(trainer_class):
        if trainer_class is transformers.Trainer:
            return overriding(**OLD[old])(trainer_class)
        with pytest.warns(FutureWarning, match=r"in older versions of transformers.* Give it the signature") as seen:
            subclass = old(trainer_class)
        assert len(seen) == 1
        return type("Derived", (subclass,), {})

    compare(tmp_path, base=base, **SAVED)


@pytest.mark.filterwarnings("ignore:.*in older versions of transformers:FutureWarning")
def test_every_added_argument_is_left_out_by_an_override():
    left_out = {hook: set() for hook in ADDED_ARGUMENTS}
    for old in OLD:
        subclass = old(portico.Trainer)
        for hook in ADDED_ARGUMENTS:
            left_out[hook] |= getattr(getattr(subclass, hook), LEFT_OUT, set())
    assert left_out == ADDED_ARGUMENTS


def test_old_compute_loss_is_mean_over_window(tmp_path):
    def base(trainer_class):
        if trainer_class is transformers.Trainer:
            return overriding(**WITHOUT_COUNT)(trainer_class)
        with pytest.warns(FutureWarning, match="does not take `num_items_in_batch`"):
            return old_loss(trainer_class)

    options = {"make_model": tiny_gpt2, "trainer_options": {"data_collator": pad_everything}}
    data = {"train_dataset": lambda: Sequences(ragged=True), "eval_dataset": lambda: Sequences(ragged=True)}
    compare(tmp_path, base=base, **options, **data, **EVALUATED)


def test_override_may_rename_arguments():
    class Renamed(portico.Trainer):
        def training_step(self, model, batch, count=None):
            return super().training_step(model, batch, count)

        def _get_train_sampler(self, dataset=None):
            return super()._get_train_sampler(dataset)

    assert not hasattr(Renamed.training_step, "__wrapped__")
    assert not hasattr(Renamed._get_train_sampler, "__wrapped__")


@pytest.mark.parametrize("given", [None, 1.5])
def test_loss_must_be_tensor(given, tmp_path):
    class Lossless(portico.Trainer):
        def compute_loss(self, *args, **kwargs):
            return given

    args = portico.TrainingArguments(output_dir=str(tmp_path), report_to="none", disable_tqdm=True, use_cpu=True)
    trainer = Lossless(model=torch.nn.Linear(1, 1), args=args, train_dataset=ToyDataset(4))
    trainer.model.forward = lambda input_ids, labels: None
    with pytest.raises(TypeError, match=rf"`compute_loss` returned '{given}' .*a tensor with one element"):
        trainer.train()
