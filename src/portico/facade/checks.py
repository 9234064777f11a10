"""Whether the parts given to a facade go together."""

from transformers.trainer_utils import has_length

from portico.contract import Facade
from portico.distributed.sharded import refuse_own_backward, refuse_sharded_weights
from portico.errors import InputError, InputRuntimeError
from portico.evaluation.metrics import check_metrics


def check_parts(facade: Facade) -> None:
    """Refuse parts that do not go together, before anything is computed.

    Raises:
        InputError: Names the parts and what to set.
        TypeError: If the collator cannot be called.
    """
    args = facade.args
    check_metrics(facade.compute_metrics, args)
    if args.eval_strategy != "no" and facade.eval_dataset is None:
        raise InputError(
            f"`eval_strategy={args.eval_strategy.value!r}` asks for evaluations, but there is no `eval_dataset`; "
            "give one to the trainer, or set `eval_strategy='no'`."
        )
    if (args.save_strategy == "best" or args.load_best_model_at_end) and args.metric_for_best_model is None:
        raise InputError(
            "`save_strategy='best'` and `load_best_model_at_end` need a metric to compare checkpoints by; set "
            "`metric_for_best_model`, for example to 'loss'."
        )
    if facade.optimizer_cls_and_kwargs is not None and facade.optimizer is not None:
        raise InputRuntimeError(
            "`optimizers` and `optimizer_cls_and_kwargs` both choose an optimizer; give one of them."
        )
    if facade.model_init is not None and (facade.optimizer is not None or facade.lr_scheduler is not None):
        raise InputRuntimeError(
            "`optimizers` belong to one model, but `model_init` makes a new one for each run; override "
            "`create_optimizer_and_scheduler` in a subclass instead."
        )
    if not callable(facade.data_collator):
        raise TypeError(
            f"`data_collator` is a {type(facade.data_collator).__name__}, which cannot be called; give a function "
            "or an object with `__call__` that makes a batch of a list of examples."
        )
    if facade.train_dataset is not None and not has_length(facade.train_dataset) and args.max_steps <= 0:
        raise InputError(
            "The training set has no length, so nothing says when training ends; set `max_steps` to an int >= 1."
        )
    if facade._runs_own_backward:
        refuse_own_backward(facade.lightning_trainer.strategy)
    if args.save_strategy != "no":
        refuse_sharded_weights(facade.lightning_trainer.strategy)
