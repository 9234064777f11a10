"""Controls of messages, uploads and user hooks."""

import functools

import torch

import portico
from portico.compat.transformers import logger
from portico.gradient_descent import GradientDescentTrainer


def all_errors_alike(patch):
    """Every error becomes the same plain exception."""
    for owner, names in (
        (portico.Trainer, ("__init__", "train", "evaluate", "predict")),
        (portico.Trainer, ("get_eval_dataloader", "get_learning_rates", "get_optimizer_group")),
        (portico.TrainingArguments, ("__post_init__",)),
    ):
        for name in names:
            patch.setattr(owner, name, _with_plain_error(getattr(owner, name)))


def _with_plain_error(method):
    @functools.wraps(method)
    def plain(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            raise Exception("something went wrong") from error

    return plain


def nothing_logged(patch):
    """The logger, which both libraries share, is silent while a method of portico's trainer runs."""
    for name in ("train", "evaluate", "predict"):
        patch.setattr(portico.Trainer, name, _silent(getattr(portico.Trainer, name)))


def _silent(method):
    @functools.wraps(method)
    def run(self, *args, **kwargs):
        was_disabled, logger.disabled = logger.disabled, True
        try:
            return method(self, *args, **kwargs)
        finally:
            logger.disabled = was_disabled

    return run


def nothing_uploaded(patch):
    """Nothing but the repository is created on the hub, and there is no model card."""
    for name in ("push_to_hub", "_push_from_checkpoint", "create_model_card"):
        patch.setattr(portico.Trainer, name, lambda self, *args, **kwargs: None)


def gradients_not_rescaled(patch):
    """AllenNLP's trainer measures the gradient norm without clipping."""

    def measured(self):
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), float("inf")).item()

    patch.setattr(GradientDescentTrainer, "rescale_gradients", measured)


def overrides_ignored(patch):
    """A subclass's overrides of the trainer's methods are not called."""

    def forget(subclass, **options):
        own = {name for name in vars(subclass) if not name.startswith("__")}
        for name in own & set(dir(portico.Trainer)):
            delattr(subclass, name)

    patch.setattr(portico.Trainer, "__init_subclass__", classmethod(forget))
