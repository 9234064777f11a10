"""The same losses, generated tokens, metrics and weights of encoder-decoders."""

import pytest
import torch
import transformers
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, GenerationConfig

import portico
from models import Pairs, tiny_t5, tiny_tokenizer
from parity.peers import SEQ2SEQ_MODELS, assert_identical, collating, compare_seq2seq, run_seq2seq, untimed

# An encoder-decoder warns at every loss that training has changed since transformers 4.11.
# Without a configured length a model generates 20 tokens, and transformers warns.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Version v4.12.0 introduces a better way:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Using the model-agnostic default `max_length`:UserWarning"),
]

EVALUATED = {"eval_strategy": "steps", "eval_steps": 2}
GENERATED = {"predict_with_generate": True, **EVALUATED}


def token_counts(prediction):
    """A metric that depends on every generated token and on all padding."""
    tokens, labels = prediction.predictions, prediction.label_ids
    return {"tokens": int((tokens * (1 + torch.arange(tokens.shape[1]).numpy())).sum()), "right": int(labels.sum())}


def with_metrics(make_model, **collation):
    return lambda model: {**collating(make_model, **collation), "compute_metrics": token_counts}


def predicting(**gen_kwargs):
    def after(trainer):
        output = trainer.predict(Pairs(6, seed=2), **gen_kwargs)
        return {
            "predictions": output.predictions,
            "labels": output.label_ids,
            "metrics": untimed(output.metrics),
            "evaluated": untimed(trainer.evaluate(**gen_kwargs)),
            "generation_config": trainer.model.generation_config.to_dict(),
        }

    return after


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
def test_same_run_without_generation(tmp_path, name):
    ours, _ = compare_seq2seq(tmp_path, make_model=SEQ2SEQ_MODELS[name], after=predicting(), **EVALUATED)
    assert isinstance(ours.extra["predictions"], tuple) or ours.extra["predictions"].ndim == 3


@pytest.mark.parametrize("name", SEQ2SEQ_MODELS)
@pytest.mark.parametrize("settings", [{}, {"generation_max_length": 9, "generation_num_beams": 3}], ids=str)
def test_same_generated_tokens(tmp_path, name, settings):
    ours, _ = compare_seq2seq(
        tmp_path,
        make_model=SEQ2SEQ_MODELS[name],
        trainer_options=with_metrics(SEQ2SEQ_MODELS[name]),
        after=predicting(),
        **GENERATED,
        **settings,
    )
    assert ours.extra["predictions"].shape == (6, 20)
    assert any("eval_tokens" in entry for entry in ours.history)


def test_same_tokens_with_decoder_inputs_from_collator(tmp_path):
    """Generation starts from scratch instead of continuing from the labels."""
    options = with_metrics(tiny_t5, with_model=True)
    compare_seq2seq(tmp_path, trainer_options=options, after=predicting(max_length=8), **GENERATED)


@pytest.mark.parametrize(
    "gen_kwargs",
    [
        {"max_new_tokens": 4},
        {"max_length": 5, "num_beams": 2},
        {"max_length": 30, "num_beams": None},
        {"do_sample": True, "top_k": 5, "max_length": 12},
        {"max_length": 7, "synced_gpus": False},
        {"max_length": 6, "num_beams": 3, "num_return_sequences": 3},
    ],
    ids=str,
)
def test_same_tokens_with_generation_arguments(tmp_path, gen_kwargs):
    settings = {"generation_max_length": 6, "generation_num_beams": 1}
    options = with_metrics(tiny_t5)
    compare_seq2seq(tmp_path, trainer_options=options, after=predicting(**gen_kwargs), **GENERATED, **settings)


def test_generation_arguments_last_one_evaluation(tmp_path):
    def after(trainer):
        short = trainer.predict(Pairs(6, seed=2), max_length=3)
        return {"short": short.predictions, **predicting()(trainer)}

    ours, _ = compare_seq2seq(tmp_path, after=after, generation_max_length=6, **GENERATED)
    assert (ours.extra["short"][:, 3:] == 0).all()
    assert not (ours.extra["predictions"][:, 3:] == 0).all()


def test_same_tokens_with_generation_config(tmp_path):
    tokens = {"pad_token_id": 0, "eos_token_id": 4, "decoder_start_token_id": 0}
    config = GenerationConfig(max_new_tokens=25, num_beams=2, **tokens)
    compare_seq2seq(
        tmp_path,
        trainer_options=with_metrics(tiny_t5),
        after=predicting(),
        generation_config=config,
        save_strategy="steps",
        save_steps=2,
        **GENERATED,
    )
    for step in ("checkpoint-2", "checkpoint-4"):
        ours, theirs = (tmp_path / side / step / "generation_config.json" for side in ("same", "theirs"))
        assert ours.read_bytes() == theirs.read_bytes()
        assert '"max_new_tokens": 25' in ours.read_text()


def unlabelled_collation(model):
    tokenizer = tiny_tokenizer()
    pad, pad_all = DataCollatorWithPadding(tokenizer), DataCollatorForSeq2Seq(tokenizer)
    return {"data_collator": lambda examples: (pad_all if "labels" in examples[0] else pad)(examples)}


def test_same_predictions_without_labels(tmp_path):
    def after(trainer):
        output = trainer.predict(Pairs(6, seed=2, labelled=False), max_length=9)
        assert output.label_ids is None
        return {"predictions": output.predictions, "metrics": untimed(output.metrics)}

    compare_seq2seq(tmp_path, after=after, predict_with_generate=True, trainer_options=unlabelled_collation)


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"prediction_loss_only": True},
        {"eval_accumulation_steps": 1, "gradient_accumulation_steps": 2},
        {"eval_do_concat_batches": False},
        {"include_for_metrics": ["inputs", "loss"]},
    ],
    ids=str,
)
def test_same_numbers_with_generation_and(tmp_path, settings):
    compare_seq2seq(tmp_path, after=predicting(max_length=10), **GENERATED, **settings)


def test_same_numbers_with_generation_and_label_smoothing(tmp_path):
    """Label smoothing removes the labels from the model's inputs, so the collator makes the decoder inputs."""
    options = {"trainer_options": with_metrics(tiny_t5, with_model=True), "label_smoothing_factor": 0.1}
    compare_seq2seq(tmp_path, after=predicting(max_length=10), **options, **GENERATED)


def test_same_metrics_of_named_datasets(tmp_path):
    def sets():
        return {"short": Pairs(3, seed=1), "long": Pairs(6, seed=2)}

    compare_seq2seq(tmp_path, eval_dataset=sets, trainer_options=with_metrics(tiny_t5), **GENERATED)


class CountedCalls:
    """A subclass in the style of the question answering example, which sets the generation arguments itself."""

    @staticmethod
    def base(trainer_class):
        class Answering(trainer_class):
            def evaluate(self, eval_dataset=None, ignore_keys=None, metric_key_prefix="eval", **gen_kwargs):
                self._gen_kwargs = {"max_length": 8, "num_beams": 2, **gen_kwargs}
                output = self.evaluation_loop(
                    self.get_eval_dataloader(eval_dataset),
                    description="Evaluation",
                    prediction_loss_only=None,
                    ignore_keys=ignore_keys,
                    metric_key_prefix=metric_key_prefix,
                )
                self.log(output.metrics)
                return output.metrics

            def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None, **gen_kwargs):
                chosen = {**self._gen_kwargs, "no_repeat_ngram_size": 2}
                return super().prediction_step(model, inputs, prediction_loss_only, ignore_keys=ignore_keys, **chosen)

        return Answering


def test_same_numbers_with_overridden_evaluation(tmp_path):
    compare_seq2seq(tmp_path, base=CountedCalls.base, trainer_options=with_metrics(tiny_t5), **GENERATED)


def test_same_best_model(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    compare_seq2seq(
        tmp_path,
        trainer_options=with_metrics(tiny_t5),
        metric_for_best_model="tokens",
        greater_is_better=True,
        **options,
        **GENERATED,
    )


@pytest.mark.parametrize(("first", "second"), [(transformers, portico), (portico, transformers)])
def test_either_library_resumes_the_other(tmp_path, first, second):
    """Compare with a resumed run: the first evaluation sets the generation config, and is not repeated."""
    options = {"trainer_options": with_metrics(tiny_t5), "save_strategy": "steps", "save_steps": 2, **GENERATED}
    for library in (first, second):
        run_seq2seq(library, tmp_path / library.__name__, **options)

    def resume(library, checkpoint_of):
        checkpoint = tmp_path / checkpoint_of.__name__ / "checkpoint-2"
        return run_seq2seq(library, tmp_path / "resumed", resume=str(checkpoint), **options)

    assert_identical(resume(second, first), resume(transformers, transformers))


def test_seq2seq_arguments_unpickle_as_transformers_class(tmp_path):
    args = portico.Seq2SeqTrainingArguments(
        output_dir=str(tmp_path), generation_max_length=6, use_cpu=True, report_to="none"
    )
    options = {"model": tiny_t5(), "args": args, "train_dataset": Pairs(), **collating(tiny_t5)}
    portico.Seq2SeqTrainer(**options).save_model()
    saved = torch.load(tmp_path / "training_args.bin", weights_only=False)
    assert type(saved) is transformers.Seq2SeqTrainingArguments
    assert saved.generation_max_length == 6
