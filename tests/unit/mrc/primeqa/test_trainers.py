import json

import pytest
import torch
from datasets import Dataset
from torch.utils.data import ConcatDataset

from portico import Seq2SeqMRCTrainer, Seq2SeqTrainingArguments
from portico.mrc import Distillation, primeqa
from portico.mrc.generative import new_generator
from unit.mrc.small_readers import QUIET, featurized, make_trainer, reader, source

SOURCES = [source(1, 24, 12), source(2, 40, 16)]


@pytest.mark.parametrize("name", primeqa.__all__)
def test_every_name_of_primeqa_exists(name):
    assert getattr(primeqa, name) is not None


def test_primeqas_names_are_the_same_objects():
    assert primeqa.MRCSeq2SeqTrainer is Seq2SeqMRCTrainer
    assert {"qa_head": primeqa.ExtractiveQAHead} == primeqa.EXTRACTIVE_HEAD
    assert {"qa_head": primeqa.ExtractiveQAWithConfidenceHead} == primeqa.EXTRACTIVE_WITH_CONFIDENCE_HEAD


@pytest.fixture
def student():
    return reader(SOURCES[1].train)


@pytest.fixture
def teacher_folder(student, tmp_path):
    student.model.save_pretrained(tmp_path / "teacher")
    return str(tmp_path / "teacher")


def test_a_teacher_can_be_given_by_arguments(student, teacher_folder, tmp_path):
    options = {"kd_teacher_model_path": teacher_folder, "kd_temperature": 2}
    trainer = make_trainer(primeqa.MSKD_MRCTrainer, student, tmp_path, **options)
    assert trainer.distillation == Distillation("mse", temperature=2.0)
    assert trainer.teacher is not None
    assert make_trainer(primeqa.MSKD_MRCTrainer, student, tmp_path).teacher is None


def test_a_teacher_can_be_given_by_the_training_arguments(student, teacher_folder, tmp_path):
    plain = make_trainer(primeqa.MSKD_MRCTrainer, student, tmp_path, arguments={"max_steps": 2})
    args = plain.args
    args.kd_teacher_model_path = args.kd_teacher_config_path = teacher_folder
    args.kd_temperature = 1
    train = ConcatDataset([featurized(one, student.tokenizer).train for one in SOURCES])
    trainer = primeqa.MSKD_MRCTrainer(
        reader(SOURCES[1].train).model, args, train_dataset=train, data_collator=plain.data_collator
    )
    # A student that equals its teacher has nothing to learn.
    assert trainer.train().training_loss == 0


def test_answers_are_generated_from_passages_as_in_a_script_of_primeqa(tmp_path):
    towns = ("Arnby", "Corval")
    passages = [{"title": town, "text": f"the mill of {town} is old"} for town in towns]
    voted = [{"answer": "it is old", "meta": {"score": 5}}, {"answer": "never", "meta": {"score": 1}}]
    records = [{"id": town, "input": f"how is {town}", "output": voted, "passages": passages} for town in towns]
    torch.manual_seed(0)
    texts = ["it is old", *(passage["text"] for passage in passages)]
    size = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    generator = new_generator(texts, vocab_size=100, model=size, fusion_in_decoder=False)
    generator.model.save_pretrained(tmp_path / "t5")
    model = primeqa.FiDModelForDownstreamTasks.from_config(
        generator.model.config, tmp_path / "t5", task_heads=primeqa.FID_HEAD, cache_dir=None
    )
    model.set_task_head(next(iter(primeqa.FID_HEAD)))
    tokenizer = generator.tokenizer
    preprocessor = primeqa.ELI5FiDPreprocessor(
        stride=0, tokenizer=tokenizer, max_seq_len=24, max_contexts=2, max_answer_len=6
    )
    _, train = preprocessor.process_train(Dataset.from_list(records))
    examples, features = preprocessor.process_eval(Dataset.from_list(records))
    postprocessor = primeqa.ELI5FiDPostProcessor(
        k=20, n_best_size=20, max_answer_length=6, scorer_type=None, tokenizer=tokenizer
    )
    metric = primeqa.ROUGE()
    settings = {**QUIET, "max_steps": 60, "learning_rate": 1e-2, "predict_with_generate": True}
    with pytest.warns(FutureWarning, match="`tokenizer` is deprecated"):
        trainer = primeqa.MRCSeq2SeqTrainer(
            model=model,
            args=Seq2SeqTrainingArguments(str(tmp_path), generation_max_length=6, **settings),
            train_dataset=train,
            eval_dataset=features,
            eval_examples=examples,
            tokenizer=tokenizer,
            data_collator=primeqa.FiDDataCollator(tokenizer, pad_to_multiple_of=None),
            post_process_function=postprocessor.process_references_and_predictions,
            compute_metrics=lambda p: metric.compute(
                predictions=p.processed_predictions, references=p.label_ids, dataset_config_name=features.config_name
            ),
        )
    trainer.train()
    metrics = trainer.evaluate(max_length=6, num_beams=2)
    assert (metrics["eval_kilt_rougeL"], metrics["eval_gen_len"]) == (100, 2)
    answered = [{"id": town, "prediction_text": "it is old"} for town in towns]
    assert json.loads((tmp_path / "eval_predictions.json").read_text()) == answered
    assert trainer.predict(features, examples).processed_predictions == answered
