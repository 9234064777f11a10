"""The sequence of PrimeQA's training notebooks, as a user of them would write it here."""

import json

import datasets
from transformers import AutoConfig, DataCollatorWithPadding

from portico import TrainingArguments
from portico.mrc import primeqa
from portico.mrc.corpus import generate
from unit.mrc.small_readers import QUIET, reader, source


def test_the_squad_notebook(tmp_path):
    made = reader(source().train)
    made.model.save_pretrained(tmp_path / "pretrained")
    train, validation = (
        datasets.Dataset.from_list(
            [
                {key: one[key] for key in ("id", "title", "context", "question", "answers")}
                for one in part
                if one["answers"]["text"]
            ]
        )
        for part in generate(num_train=40, num_validation=24, seed=1)
    )

    args = TrainingArguments(str(tmp_path / "run"), max_steps=3, **QUIET)
    task_heads = primeqa.EXTRACTIVE_HEAD
    model = primeqa.ModelForDownstreamTasks.from_config(
        AutoConfig.from_pretrained(tmp_path / "pretrained"), tmp_path / "pretrained", task_heads=task_heads
    )
    model.set_task_head(next(iter(task_heads)))
    preprocessor = primeqa.SQUADPreprocessor(
        stride=24, tokenizer=made.tokenizer, max_seq_len=96, load_from_cache_file=False
    )
    _, train_features = preprocessor.process_train(train)
    eval_examples, eval_features = preprocessor.process_eval(validation)
    postprocessor = primeqa.SQUADPostProcessor(
        k=5,
        n_best_size=10,
        max_answer_length=12,
        scorer_type=primeqa.SupportedSpanScorers.WEIGHTED_SUM_TARGET_TYPE_AND_SCORE_DIFF,
        single_context_multiple_passages=preprocessor._single_context_multiple_passages,
    )
    metric = primeqa.SQUAD()

    def compute_metrics(answered):
        return metric.compute(predictions=answered.processed_predictions, references=answered.label_ids)

    trainer = primeqa.MRCTrainer(
        model=model,
        args=args,
        train_dataset=train_features,
        eval_dataset=eval_features,
        eval_examples=eval_examples,
        processing_class=made.tokenizer,
        data_collator=DataCollatorWithPadding(made.tokenizer),
        post_process_function=postprocessor.process_references_and_predictions,
        compute_metrics=compute_metrics,
    )
    trained = trainer.train()
    trainer.save_model()
    trainer.save_metrics("train", trained.metrics)
    trainer.save_state()
    metrics = trainer.evaluate()
    trainer.save_metrics("eval", metrics)

    assert {"eval_f1", "eval_exact_match", "eval_runtime"} <= set(metrics)
    for name in ("predictions", "predictions_processed", "references"):
        assert json.loads((tmp_path / "run" / f"eval_{name}.json").read_text())
    ids = {example["example_id"] for example in eval_examples}
    assert set(json.loads((tmp_path / "run" / "eval_predictions.json").read_text())) == ids
    again = primeqa.ModelForDownstreamTasks.from_pretrained(tmp_path / "run")
    assert type(again.task_head) is primeqa.ExtractiveQAHead
