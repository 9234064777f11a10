import pytest

from portico import Seq2SeqMRCTrainer
from portico.mrc import primeqa


@pytest.mark.parametrize("name", primeqa.__all__)
def test_every_name_of_primeqa_is_there(name):
    assert getattr(primeqa, name) is not None


def test_the_trainer_for_generated_answers_has_both_names():
    assert primeqa.MRCSeq2SeqTrainer is Seq2SeqMRCTrainer
    assert {"qa_head": primeqa.ExtractiveQAHead} == primeqa.EXTRACTIVE_HEAD
    assert {"qa_head": primeqa.ExtractiveQAWithConfidenceHead} == primeqa.EXTRACTIVE_WITH_CONFIDENCE_HEAD
