"""Training, from ``train()`` to the end of Lightning's fit."""

from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import TrainOutput, align_special_tokens

from portico.callbacks import EventBridge
from portico.checkpoint.resume import find_checkpoint, resumed_batch_size
from portico.distributed.processes import connect, ending_together
from portico.distributed.workers import in_every_process
from portico.facade.preparation import compiled_for_training, prepared_for_training
from portico.facade.training import TrainingMethods
from portico.hub.uploads import quiet_uploads
from portico.lightning_internals import makes_workers
from portico.lightning_trainer import build_lightning_trainer
from portico.memory import with_batches_that_fit
from portico.plan import ResumePoint, RunPlan
from portico.precision import casting_forward
from portico.quiet import quiet_lightning
from portico.run_log import announce_training
from portico.state import TrainingRun
from portico.termination import exiting_on_termination


class RunningMethods(TrainingMethods):
    """How the facade runs a training."""

    _carried_from_workers: tuple[str, ...] = ("state", "control")

    @in_every_process
    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Train, and return step count, mean loss and metrics.

        Args:
            resume_from_checkpoint: Folder of a checkpoint (of either library), or ``True`` for the last in
                ``args.output_dir``.
            trial: Trial of a hyperparameter search.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out.

        Raises:
            InputError: If there is no checkpoint where one was named, or the data give no number of steps.
        """
        checkpoint = find_checkpoint(resume_from_checkpoint, self.args.output_dir)
        self._memory_tracker.start()
        self.is_in_train = True
        try:
            self._renew_model(trial)
            with prepared_for_training(self.model, self.args), quiet_uploads(self.args):
                self._hp_search_setup(trial)
                if checkpoint is not None:
                    self._load_from_checkpoint(checkpoint)
                    self._train_batch_size = resumed_batch_size(checkpoint, self.args) or self._train_batch_size
                loop = partial(
                    self._inner_training_loop,
                    args=self.args,
                    resume_from_checkpoint=checkpoint,
                    trial=trial,
                    ignore_keys_for_eval=ignore_keys_for_eval,
                )
                if self.args.auto_find_batch_size:
                    return with_batches_that_fit(loop, self._train_batch_size)
                return loop(self._train_batch_size)
        finally:
            self.is_in_train = False

    def _renew_model(self, trial: Any) -> None:
        if self.model_init is not None:
            self._seed_everything()
            self.model = self.call_model_init(trial)
            self._place_model()
            self.model_wrapped = self.model
            self.optimizer, self.lr_scheduler = None, None
        if isinstance(self.processing_class, PreTrainedTokenizerBase) and hasattr(self.model, "config"):
            align_special_tokens(self.model, self.processing_class)

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> TrainOutput:
        """Count a run, set its state up and let Lightning run it.

        Args:
            batch_size: Examples in a batch of this process; by default as before.
            args: Training arguments; by default the trainer's.
            resume_from_checkpoint: Folder of the checkpoint that the run goes on from.
            trial: Trial of a hyperparameter search.
            ignore_keys_for_eval: Model outputs that evaluations during training leave out.
        """
        args = self.args if args is None else args
        self._train_batch_size = self._train_batch_size if batch_size is None else batch_size
        run = self._plan_run(args, resume_from_checkpoint, trial, ignore_keys_for_eval)
        self.model_wrapped = compiled_for_training(self._wrap_model(self.model), self.model_wrapped, self.args)
        announce_training(self, run.plan, run.resume_point if resume_from_checkpoint is not None else None)
        return self._fit(run)

    def _plan_run(
        self, args: Any, checkpoint: str | None, trial: Any, ignore_keys_for_eval: list[str] | None
    ) -> TrainingRun:
        """Count a run and set its state up."""
        loader = self.get_train_dataloader()
        plan = RunPlan.of_training_values(
            self.set_initial_training_values(args, loader),
            gradient_accumulation_steps=args.gradient_accumulation_steps,
        )
        point = self._init_training_state(
            plan.max_steps, plan.num_update_steps_per_epoch, plan.num_train_epochs, checkpoint, trial
        )
        self.callback_handler.train_dataloader = loader
        return TrainingRun(
            self,
            loader=loader,
            plan=plan,
            checkpoint=checkpoint,
            resume_point=ResumePoint(*point),
            trial=trial,
            ignore_keys_for_eval=ignore_keys_for_eval,
        )

    def _fit(self, run: TrainingRun) -> TrainOutput:
        self._use_lightning_trainer(run)
        self.module.take(self.model)
        self.module.run = self.datamodule.run = run
        at_once = self.accelerator.backward_now
        self.accelerator.backward_now = self._backward_now if self._runs_own_backward else None
        try:
            with (
                ending_together(),
                quiet_lightning(),
                casting_forward(self.model, self.lightning_trainer.strategy),
                exiting_on_termination(self.lightning_trainer),
            ):
                connect(self.lightning_trainer.strategy)
                self.lightning_trainer.fit(self.module, datamodule=self.datamodule)
        except SystemExit as exit_:
            # Lightning turns an interrupt into an exit, which notebooks and callers that clean up cannot catch.
            if isinstance(exit_.__context__, KeyboardInterrupt):
                raise KeyboardInterrupt from exit_
            raise
        finally:
            self.accelerator.backward_now = at_once
            if self.place_model_on_device:
                self.model.to(self.args.device)
        if run.output is None:
            # The checkpoint was at the end already, so Lightning ran no loop and no hook.
            run.begin()
            run.finish()
        assert run.output is not None
        return run.output

    # Lightning

    def _use_lightning_trainer(self, run: TrainingRun | None = None) -> None:
        """Make the ``lightning.Trainer`` of a run: one that has fitted goes on counting, so each run gets its own."""
        parts = self._lightning_parts
        bridge: list[Any] = [EventBridge(run)] if run is not None else []
        self.lightning_trainer = build_lightning_trainer(
            self.args,
            plan=run.plan if run is not None else None,
            model=self.__dict__.get("model"),
            callbacks=bridge + parts["callbacks"],
            loggers=parts["loggers"],
            plugins=parts["plugins"],
        )
        self.args.lightning_strategy = self.lightning_trainer.strategy

    def _current_strategy(self) -> Any:
        return self.lightning_trainer.strategy

    # Processes

    def _place_model(self) -> None:
        """Move the model to this process's device, unless others, that the strategy makes, are to have it."""
        if self.place_model_on_device and not makes_workers(self.lightning_trainer.strategy):
            self._move_model_to_device(self.model, self.args.device)

    def _enter_worker(self) -> None:
        """Take part in a run, in a process made for it."""
        self._use_lightning_trainer()
        connect(self.lightning_trainer.strategy)
        self._place_model()
        self.state.is_world_process_zero = self.is_world_process_zero()
        self.state.is_local_process_zero = self.is_local_process_zero()

    def __getstate__(self) -> dict[str, Any]:
        # The process that takes the facade over makes a Lightning trainer of its own.
        return {name: value for name, value in self.__dict__.items() if name != "lightning_trainer"}
