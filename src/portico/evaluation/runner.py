"""An evaluation session put through Lightning's evaluation loop, inside a fit or outside one."""

from typing import TYPE_CHECKING

from transformers.trainer_utils import EvalLoopOutput

from portico.feeds import EvaluationFeed
from portico.lightning_internals import evaluate_inside_fit, has_data
from portico.processes import connect, ending_together
from portico.quiet import quiet_lightning

if TYPE_CHECKING:
    from portico.evaluation.session import EvaluationSession


def run_evaluation(session: "EvaluationSession") -> EvalLoopOutput:
    """Run ``session`` and return its output.

    The same loop serves at any point of a fit (from any callback or hook, nested evaluations too) and outside.
    """
    facade = session.facade
    trainer, module = facade.lightning_trainer, facade.module
    feed = EvaluationFeed(session.loader)
    enclosing, module.evaluation = module.evaluation, session
    try:
        with facade.accelerator.iterating(session.loader):
            session.start()
            if len(feed) == 0:
                # Lightning would warn, then skip its loop and with it the hook that finishes.
                session.finish()
            elif facade.is_in_train and has_data(trainer):
                evaluate_inside_fit(trainer, feed)
            else:
                with ending_together(), quiet_lightning():
                    connect(trainer.strategy)
                    run = trainer.test if session.description == "Prediction" else trainer.validate
                    run(module, dataloaders=feed, verbose=False)
    finally:
        module.evaluation = enclosing
    assert session.output is not None, "the end of the loop finishes the session"
    return session.output
