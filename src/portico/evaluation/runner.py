"""An evaluation session put through Lightning's evaluation loop, inside a fit or outside one."""

from typing import TYPE_CHECKING

from transformers.trainer_utils import EvalLoopOutput

from portico.distributed.processes import connect, ending_together
from portico.lightning_internals import evaluate_inside, has_data, keeping_gradients
from portico.loading.feeds import EvaluationFeed
from portico.quiet import quiet_lightning
from portico.termination import exiting_on_termination

if TYPE_CHECKING:
    from portico.evaluation.session import EvaluationSession


def run_evaluation(session: "EvaluationSession") -> EvalLoopOutput:
    """Run ``session`` and return its output.

    The same loop serves at any point of a fit (from any callback or hook), inside another evaluation, and outside.

    Raises:
        SystemExit: If the process was told to terminate meanwhile.
    """
    facade = session.facade
    trainer, module = facade.lightning_trainer, facade.module
    feed = EvaluationFeed(session.loader)
    predicts = session.description == "Prediction"
    enclosing, module.evaluation = module.evaluation, session
    try:
        session.start()
        if len(feed) == 0:
            # Lightning would warn, then skip its loop and with it the hook that finishes. A loader draws a seed
            # from the global generator when it is asked, also for nothing.
            next(iter(session.loader), None)
            session.finish()
        elif enclosing is not None or (facade.is_in_train and has_data(trainer)):
            evaluate_inside(trainer, feed, predicts=predicts)
        else:
            with (
                ending_together(),
                quiet_lightning(),
                keeping_gradients(module),
                exiting_on_termination(trainer),
            ):
                connect(trainer.strategy)
                run = trainer.test if predicts else trainer.validate
                run(module, dataloaders=feed, verbose=False)
    finally:
        module.evaluation = enclosing
    assert session.output is not None, "the end of the loop finishes the session"
    return session.output
