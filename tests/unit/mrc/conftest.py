import pytest
import torch

from portico.mrc.corpus import generate
from portico.mrc.models.small_bert import new_reader

SHAPE = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="session")
def questions():
    return [dict(example) for example in generate(num_train=8, num_validation=40, seed=1)[1]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, questions):
    """Return the folder of a small untrained reader."""
    torch.manual_seed(0)
    texts = [text for example in questions for text in (example["context"], example["question"])]
    loaded = new_reader(texts, vocab_size=400, max_length=96, model=SHAPE)
    folder = tmp_path_factory.mktemp("reader")
    loaded.model.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    return folder
