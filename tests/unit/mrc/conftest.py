import pytest

from portico.mrc.corpus import generate
from unit.mrc.small_readers import reader, save


@pytest.fixture(scope="session")
def questions():
    return [dict(example) for example in generate(num_train=8, num_validation=40, seed=1)[1]]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory, questions):
    """Return the folder of a small untrained reader."""
    folder = tmp_path_factory.mktemp("reader")
    save(reader(questions), folder)
    return folder
