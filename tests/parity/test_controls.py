"""Negative controls: each parity test fails when the behaviour it tests is broken.

A control runs the body of a parity test with one switch of :mod:`parity.switches` thrown (in portico alone), and
requires the comparison with transformers to fail. ``CONTROLS`` below is the whole table, a row for each case of each
parity test; ``test_every_parity_test_has_a_control`` keeps it whole. By family:

========================================  =====================================================================
cases                                     switched off
========================================  =====================================================================
basic, data_seed, prepared loaders        seeded order, its epoch, the single look into a loader
datasets and collators that draw         look-ahead of one batch, fetching a window at once
streams                                   length of the feed, the guard of open windows, remainder of the last batch
accumulation, partial windows             division by the real window and by nobody else, count of items
clipping, decay, schedules, optimizers    order of the norm, parameter groups, step of the schedule, rate logged
training steps of the user's own          backward passes at once
evaluation, metrics, predictions          truncation of the last batch, evaluation mode, padding, names
callbacks that steer or evaluate          stopping either way, mode after an evaluation
checkpoints and resuming                  states of optimizer, random numbers (and their moment), callbacks
arguments and parts                       the argument or the part itself: portico ignores it
========================================  =====================================================================
"""

import inspect

import pytest

from parity import peers, test_metrics, test_models, test_more, test_resume, test_training
from parity.switches import evaluation, gradients, order, steering
from parity.switches.given import ignoring, ignoring_part

ARGUMENTS = [
    ("basic", order.order_not_seeded),
    ("basic", order.same_order_each_epoch),
    ("basic", order.extra_iterator),
    ("basic", gradients.gradients_zeroed_late),
    ("basic", gradients.next_learning_rate_logged),
    ("accumulation", gradients.loss_divided_by_lightning),
    ("partial_window", gradients.labels_not_counted),
    ("accumulation_four", gradients.loss_divided_by_lightning),
    ("accumulation_five", gradients.labels_not_counted),
    ("no_clipping", gradients.no_norm_without_clipping),
    ("tight_clipping", gradients.clipping_by_groups),
    ("weight_decay", gradients.all_parameters_decayed),
    ("max_steps", ignoring("max_steps")),
    ("max_steps_over_epochs", ignoring("max_steps")),
    ("fractional_epochs", ignoring("num_train_epochs")),
    ("drop_last", ignoring("dataloader_drop_last")),
    ("cosine_with_warmup", gradients.schedule_not_stepped),
    ("warmup_share", ignoring("warmup_steps")),
    ("adafactor", ignoring("optim")),
    ("sgd", ignoring("optim")),
    ("data_seed", ignoring("data_seed")),
    ("group_by_length", ignoring("train_sampling_strategy")),
    ("sequential", ignoring("train_sampling_strategy")),
    ("eval_steps", evaluation.last_batch_left_whole),
    ("eval_epoch", evaluation.last_batch_left_whole),
    ("eval_on_start", ignoring("eval_on_start")),
    ("eval_delay", ignoring("eval_delay")),
    ("eval_accumulation", evaluation.last_batch_left_whole),
    ("save_and_eval_mid_epoch", ignoring("save_strategy", "save_steps")),
    ("best_model", steering.best_model_not_loaded),
    ("save_best", ignoring("save_strategy")),
    ("plateau", gradients.plateau_not_stepped),
    ("label_smoothing", ignoring("label_smoothing_factor")),
    ("log_first_step", ignoring("logging_first_step")),
    ("log_epoch", ignoring("logging_strategy")),
    ("tokens_seen", ignoring("include_num_input_tokens_seen")),
    ("workers", ignoring("dataloader_num_workers")),
]

DATA = [
    ("dataset_that_draws", order.no_look_ahead),
    ("dataset_that_draws_accumulated", order.windows_batch_by_batch),
    ("stream", order.feed_without_length),
    ("stream_gone_through", order.feed_without_length),
    ("stream_that_draws", order.no_look_ahead),
    ("stream_with_open_window", gradients.open_window_stepped),
    ("stream_for_evaluation", evaluation.last_batch_left_whole),
    ("named_sets", evaluation.last_batch_left_whole),
    ("named_sets_of_streams", evaluation.last_batch_left_whole),
    ("best_of_named_sets", steering.best_model_not_loaded),
    ("plain_module", gradients.partial_windows_counted_as_full),
    ("metrics", evaluation.names_without_prefix),
    ("early_stopping", steering.training_not_stopped),
]

TRAINING = [
    *(((test_training.test_same_numbers_with, name), switch) for name, switch in ARGUMENTS),
    *(((test_training.test_same_numbers_on, name), switch) for name, switch in DATA),
    (
        (test_training.test_same_numbers_with_steering_callback, test_training.StopEpoch),
        steering.epoch_not_stopped,
    ),
    (
        (test_training.test_same_numbers_with_steering_callback, test_training.StopTrainingInSubstep),
        steering.training_not_stopped,
    ),
    (
        (test_training.test_same_numbers_with_steering_callback, test_training.ForceEverything),
        steering.nothing_between_steps,
    ),
    *(
        ((test_training.test_same_numbers_when_callback_evaluates, event), evaluation.training_mode_restored)
        for event in ("on_epoch_begin", "on_step_begin", "on_step_end", "on_epoch_end", "on_train_end")
    ),
    *(
        ((test_training.test_same_numbers_with_subclass, base), switch)
        for base, switch in (
            (test_training.overriding_compute_loss, ignoring("base")),
            (test_training.overriding_training_step, gradients.partial_windows_counted_as_full),
            (test_training.calling_super, gradients.labels_not_counted),
            (test_training.raw_backward, gradients.backward_deferred),
            (test_training.adversarial, gradients.backward_deferred),
            (test_training.many_small, ignoring("base")),
            (test_training.own_evaluation_loop, ignoring("base")),
        )
    ),
    ((test_training.test_same_numbers_with_compute_loss_func,), gradients.losses_divided_twice),
    ((test_training.test_same_numbers_with_nonfinite_loss,), gradients.infinite_losses_summed),
    ((test_training.test_same_predictions_after_training,), evaluation.dropout_left_on),
    ((test_training.test_same_numbers_in_second_run,), order.same_order_each_epoch),
]

METRICS = [
    ((test_metrics.test_same_metrics_of_inputs_and_losses,), evaluation.last_batch_left_whole),
    ((test_metrics.test_same_metrics_of_batches,), order.no_look_ahead),
    ((test_metrics.test_same_lists_without_concatenation,), ignoring("eval_do_concat_batches")),
    ((test_metrics.test_same_predictions_without_labels,), evaluation.dropout_left_on),
    ((test_metrics.test_same_predictions_before_training,), evaluation.dropout_left_on),
    ((test_metrics.test_same_numbers_with_preprocessed_logits,), ignoring_part("preprocess_logits_for_metrics")),
    ((test_metrics.test_same_numbers_with_label_names,), evaluation.dropout_left_on),
    ((test_metrics.test_same_predictions_of_stream,), evaluation.last_batch_left_whole),
    ((test_metrics.test_same_nested_predictions_of_varying_width, None), evaluation.padded_with_zero),
    ((test_metrics.test_same_nested_predictions_of_varying_width, 2), evaluation.padded_with_zero),
]

_UNCOUNTED = test_models.test_same_numbers_with_ignored_labels
MODELS = [
    ((_UNCOUNTED, "gpt2", 1), evaluation.last_batch_left_whole),
    ((_UNCOUNTED, "gpt2", 3), gradients.labels_not_counted),
    ((_UNCOUNTED, "t5", 1), evaluation.last_batch_left_whole),
    ((_UNCOUNTED, "t5", 3), gradients.labels_not_counted),
    ((_UNCOUNTED, "tagger_ragged", 1), evaluation.padded_with_zero),
    ((_UNCOUNTED, "tagger_ragged", 3), gradients.labels_not_counted),
    ((test_models.test_same_numbers_with_causal_label_smoothing,), gradients.smoothing_not_shifted),
    ((test_models.test_same_numbers_with_random_masking_collator,), order.windows_batch_by_batch),
    ((test_models.test_same_numbers_with_padding_collator,), evaluation.last_batch_left_whole),
    ((test_models.test_same_numbers_with_processing_class,), ignoring("train_sampling_strategy")),
    ((test_models.test_same_numbers_on_columned_dataset,), ignoring("train_sampling_strategy")),
    *(
        ((test_models.test_same_numbers_with_overridden_loader, make_loader), switch)
        for make_loader, switch in (
            (test_models.collated_list, gradients.labels_not_counted),
            (test_models.generated_loader, gradients.labels_not_counted),
            (test_models.prepared_loader, order.order_not_seeded),
            (test_models.weighted_loader, gradients.labels_not_counted),
        )
    ),
]

_SAVED = {"save_total_limit": 2}
_SAVED_BEST = {
    **_SAVED,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "learning_rate": 0.5,
}
MORE = [
    *(
        ((test_more.test_same_numbers_with_activation_checkpointing, options), ignoring("activation_checkpointing"))
        for options in (None, {"use_reentrant": True}, {"every_n_layers": 2})
    ),
    ((test_more.test_same_numbers_with_gradient_checkpointing,), ignoring("gradient_checkpointing")),
    ((test_more.test_same_numbers_with_neftune,), ignoring("neftune_noise_alpha")),
    ((test_more.test_same_memory_metric_names,), ignoring("skip_memory_metrics")),
    ((test_more.test_same_numbers_with_given_optimizers,), ignoring_part("optimizers")),
    ((test_more.test_same_numbers_with_optimizer_cls_and_kwargs,), ignoring_part("optimizer_cls_and_kwargs")),
    ((test_more.test_same_checkpoint_files, {"save_only_model": True}), ignoring("save_only_model")),
    ((test_more.test_same_checkpoint_files, _SAVED), ignoring("save_total_limit")),
    ((test_more.test_same_checkpoint_files, _SAVED_BEST), ignoring("save_total_limit")),
    ((test_more.test_same_numbers_with_model_init,), steering.model_kept),
    ((test_more.test_same_numbers_in_bfloat16,), ignoring("bf16")),
]

_RESUMED = test_resume.test_resumed_run_equals_uninterrupted_run
RESUME = [
    ((_RESUMED, "transformers", "portico", 1), steering.rng_not_restored),
    ((_RESUMED, "transformers", "portico", 3), steering.optimizer_not_restored),
    ((_RESUMED, "portico", "transformers", 2), steering.other_rng_saved),
    ((_RESUMED, "portico", "portico", 4), steering.optimizer_not_restored),
    ((test_resume.test_same_events_after_resume, False), steering.rng_restored_early),
    ((test_resume.test_same_events_after_resume, True), steering.rng_not_restored),
    ((test_resume.test_resume_of_finished_run,), ignoring("resume")),
    ((test_resume.test_callback_states_are_restored,), steering.callbacks_not_restored),
    ((test_resume.test_same_checkpoint_files,), steering.other_rng_saved),
    ((test_resume.test_arguments_unpickle_as_transformers_class,), steering.arguments_pickled_as_ours),
]

CONTROLS = TRAINING + METRICS + MODELS + MORE + RESUME


def _name(value):
    if isinstance(value, tuple):
        return "-".join(_name(part) for part in value).removeprefix("test_")
    return getattr(value, "__name__", str(value))


uninterrupted = test_resume.uninterrupted

# Switches under which the run itself fails, before there is anything to compare.
BROKEN_RUNS = {gradients.backward_deferred: (RuntimeError, TypeError)}


@pytest.mark.parametrize(("case", "switch"), CONTROLS, ids=_name)
@pytest.mark.filterwarnings("ignore")
def test_comparison_fails_with(case, switch, monkeypatch, request, tmp_path):
    test, *arguments = case
    if "uninterrupted" in inspect.signature(test).parameters:
        arguments.append(request.getfixturevalue("uninterrupted"))
    switch(monkeypatch)
    for module in (test_more, test_resume):
        monkeypatch.setattr(module, "run", peers.run)
    with pytest.raises(BROKEN_RUNS.get(switch, AssertionError)) as caught:
        test(*arguments, tmp_path)
    if switch not in BROKEN_RUNS:
        assert "parity" in caught.traceback[-1].path.parts, "the comparison itself fails"


def test_every_parity_test_has_a_control():
    tests = {
        test
        for module in (test_training, test_metrics, test_models, test_more, test_resume)
        for name, test in vars(module).items()
        if name.startswith("test_") and inspect.isfunction(test)
    }
    # It compares two files of portico.
    tests.remove(test_resume.test_weights_round_trip)
    assert {case[0] for case, _ in CONTROLS} == tests


@pytest.mark.parametrize(
    ("controls", "scenarios"), [(ARGUMENTS, test_training.ARGUMENTS), (DATA, test_training.DATA)], ids=["args", "data"]
)
def test_every_scenario_has_a_control(controls, scenarios):
    assert {name for name, _ in controls} == set(scenarios)
