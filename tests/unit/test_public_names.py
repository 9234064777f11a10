import inspect
import subprocess
import sys

import pytest
import transformers

import portico
import portico.mrc
import portico.mrc.metrics


@pytest.mark.parametrize("package", [portico, portico.mrc, portico.mrc.metrics])
def test_every_public_name_exists(package):
    assert package.__all__ == dir(package)
    for name in package.__all__:
        thing = getattr(package, name)
        # Constants have no `__name__`, and annotations another one.
        assert not (inspect.isclass(thing) or inspect.isroutine(thing)) or thing.__name__ == name


@pytest.mark.parametrize("package", [portico, portico.mrc])
def test_unknown_name_lists_public_names(package):
    with pytest.raises(AttributeError, match=r"has no attribute 'Trainr'; it has .*MRCTrainer"):
        _ = package.Trainr


# What stands on the import line of a training script next to `Trainer`.
FAMILY = [
    "data.data_collator",
    "hf_argparser",
    "optimization",
    "trainer",
    "trainer_callback",
    "trainer_pt_utils",
    "trainer_seq2seq",
    "trainer_utils",
    "training_args",
    "training_args_seq2seq",
]
# Not in the oldest transformers that portico supports.
NEWER = {"GreedyLR", "get_greedy_schedule"}
# Gone from the newest; the error says to import them from transformers.
GONE = {"DataCollatorForSOP", "DataCollatorForWholeWordMask"}
# These are the facade.
OURS = {"HfArgumentParser", "Seq2SeqTrainer", "Seq2SeqTrainingArguments", "Trainer", "TrainingArguments"}


@pytest.mark.parametrize("module", FAMILY)
def test_the_trainer_family_of_transformers_is_importable(module):
    names = set(transformers._import_structure[module]) - NEWER - GONE
    assert names <= set(portico.__all__)
    for name in names - OURS:
        assert getattr(portico, name) is getattr(transformers, name)


@pytest.mark.parametrize("name", ["AutoTokenizer", "pipeline", "BertConfig"])
def test_other_names_of_transformers_are_imported_from_there(name):
    advice = rf"`{name}` is a name of transformers, not of portico; use `from transformers import {name}`\."
    assert not hasattr(portico, name)
    with pytest.raises(AttributeError, match=advice):
        getattr(portico, name)
    with pytest.raises(ImportError, match=advice):
        exec(f"from portico import {name}")


def test_modules_are_imported_without_transformers():
    script = "import sys; from portico import commands, imports; assert 'transformers' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "package",
    [
        "portico",
        "portico.gradient_descent",
        "portico.mrc",
        "portico.mrc.postprocess",
        "portico.mrc.metrics.scores",
        "portico.mrc.report",
    ],
)
def test_import_does_not_load_torch(package):
    script = f"import sys, {package}; assert not {{'torch', 'transformers', 'hydra'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
