"""A script in the style of the examples of transformers, run in bfloat16 by both libraries."""

import json

import numpy as np
import pytest
import transformers
from transformers import DataCollatorWithPadding, set_seed

import portico
from models import ToyDataset, tiny_bert, tiny_tokenizer
from parity.peers import untimed
from portico.checkpoint.manifest import OWN_FILES

COMMAND = (
    "--do_train --do_eval --do_predict --bf16 --use_cpu --max_steps 6 --gradient_accumulation_steps 2 --eval_steps 3 "
    "--eval_strategy steps --save_strategy steps --save_steps 3 --load_best_model_at_end --logging_steps 1 --seed 11 "
    "--per_device_train_batch_size 4 --learning_rate 1e-2 --report_to none --disable_tqdm true"
)


def main(library, line):
    """Train, evaluate and predict like the text classification script of transformers."""
    parser = transformers.HfArgumentParser(library.TrainingArguments)
    (training_args,) = parser.parse_args_into_dataclasses(line)
    set_seed(training_args.seed)
    tokenizer = tiny_tokenizer()

    def compute_metrics(prediction):
        return {"accuracy": float((np.argmax(prediction.predictions, axis=1) == prediction.label_ids).mean())}

    trainer = library.Trainer(
        model=tiny_bert(),
        args=training_args,
        train_dataset=ToyDataset(),
        eval_dataset=ToyDataset(11, seed=1),
        compute_metrics=compute_metrics,
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    result = trainer.train(resume_from_checkpoint=None)
    trainer.save_model()
    trainer.save_metrics("train", {**result.metrics, "train_samples": 29})
    trainer.save_state()
    trainer.save_metrics("eval", {**trainer.evaluate(), "eval_samples": 11})
    return trainer.predict(ToyDataset(7, seed=4), metric_key_prefix="predict").predictions


@pytest.mark.parametrize("precision", [[], ["--bf16_full_eval"]], ids=["mixed", "evaluated in bfloat16"])
def test_same_files_and_predictions(precision, tmp_path, capsys):
    predictions = []
    for library in (transformers, portico):
        folder = tmp_path / "run"
        predictions.append(main(library, ["--output_dir", str(folder), *COMMAND.split(), *precision]))
        folder.rename(tmp_path / library.__name__)
    assert (predictions[0] == predictions[1]).all()
    theirs, ours = (tmp_path / library.__name__ for library in (transformers, portico))
    names = {str(file.relative_to(theirs)) for file in theirs.rglob("*")}
    written = {file for file in ours.rglob("*") if file.name not in OWN_FILES}
    assert {str(file.relative_to(ours)) for file in written} == names
    assert (ours / "model.safetensors").read_bytes() == (theirs / "model.safetensors").read_bytes()
    for name in ("all_results.json", "train_results.json", "eval_results.json"):
        mine, other = (untimed(json.loads((folder / name).read_text())) for folder in (ours, theirs))
        assert mine == other, name
