import pytest
from torch.utils.data import ConcatDataset

from portico import Seq2SeqMRCTrainer
from portico.mrc import Distillation, primeqa
from unit.mrc.small_readers import featurized, make_trainer, reader, source

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
