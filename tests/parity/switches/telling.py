"""Switches of what a run tells, and of whom it asks."""

import functools

import portico
from portico.gradient_descent.trainer import rescale_gradients


def mistakes_of_one_kind(patch):
    """Whatever goes wrong is told by the same plain exception."""
    for owner, names in (
        (portico.Trainer, ("__init__", "train", "evaluate", "predict")),
        (portico.Trainer, ("get_eval_dataloader", "get_learning_rates", "get_optimizer_group")),
        (portico.TrainingArguments, ("__post_init__",)),
    ):
        for name in names:
            patch.setattr(owner, name, _told_plainly(getattr(owner, name)))


def _told_plainly(method):
    @functools.wraps(method)
    def plain(self, *args, **kwargs):
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            raise Exception("something went wrong") from error

    return plain


def nothing_said(patch):
    """A run announces nothing."""
    for place in ("trainer.running.log_training_start", "evaluation.session.log_evaluation_start"):
        patch.setattr(f"portico.{place}", lambda *args, **kwargs: None)


def nothing_uploaded(patch):
    """The hub hears of nothing but the repository, and there is no card."""
    for name in ("push_to_hub", "_push_from_checkpoint", "create_model_card"):
        patch.setattr(portico.Trainer, name, lambda self, *args, **kwargs: None)


def nothing_rescaled(patch):
    """AllenNLP's trainer measures gradients and leaves them as they are."""
    descent = "portico.gradient_descent.trainer.rescale_gradients"
    patch.setattr(descent, lambda model, grad_norm: rescale_gradients(model, True))


def overrides_unheard(patch):
    """What a subclass has in the place of a method of the trainer is not called."""

    def forget(subclass, **options):
        own = {name for name in vars(subclass) if not name.startswith("__")}
        for name in own & set(dir(portico.Trainer)):
            delattr(subclass, name)

    patch.setattr(portico.Trainer, "__init_subclass__", classmethod(forget))
