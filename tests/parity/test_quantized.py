"""Quantised models train, resume and merge as under transformers, bit for bit, on a CPU.

``pip install -e '.[dev,quantized]'`` installs the packages; ``pytest -m slow`` runs these.
"""

import pytest
import torch
import transformers
from tests.parity.peers import QUIET, assert_same_values, untimed
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, TorchAoConfig

import portico
from models import Sequences, tiny_llama

# torchao warns of enumerations that torch compiles, peft of layers that it cannot merge.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def four_bits():
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    return IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=PerGroup(8))


def qat(step):
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig

    base = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(8))
    return QATConfig(base, step=step)


def loaded(folder, config=None):
    torch.manual_seed(7)
    # The kernels of bitsandbytes for 4 bits take multiples of 32 on a CPU.
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=50, num_hidden_layers=1, **sizes))
    llama.save_pretrained(folder / "base")
    return AutoModelForCausalLM.from_pretrained(folder / "base", quantization_config=config)


def quantised(model, config):
    from torchao.quantization import quantize_

    quantize_(model, config)
    return model


def with_adapters(model):
    import peft

    torch.manual_seed(1)
    options = {"r": 4, "lora_dropout": 0.1, "target_modules": ["q_proj", "v_proj", "up_proj"]}
    return peft.get_peft_model(model, peft.LoraConfig(**options, task_type="CAUSAL_LM"))


def eight_bits(folder):
    from torchao.quantization import Int8WeightOnlyConfig

    return with_adapters(loaded(folder, TorchAoConfig(Int8WeightOnlyConfig())))


def merged(trainer, folder):
    return trainer.model.merge_and_unload()


def merged_from_disk(trainer, folder):
    import peft

    base = loaded(folder, TorchAoConfig(four_bits()))
    return peft.PeftModel.from_pretrained(base, folder / "run" / "checkpoint-6").merge_and_unload()


# Package, model from a folder, and the model for use after the training.
CASES = {
    "int8": ("torchao", eight_bits, merged),
    "int4": ("torchao", lambda folder: with_adapters(quantised(loaded(folder), four_bits())), merged_from_disk),
    "quantisation-aware": (
        "torchao",
        lambda folder: quantised(loaded(folder), qat("prepare")),
        lambda trainer, folder: quantised(trainer.model, qat("convert")),
    ),
    "quantisation-aware with adapters": (
        "torchao",
        lambda folder: with_adapters(quantised(loaded(folder), qat("prepare"))),
        merged,
    ),
    "bitsandbytes, 8 bits": (
        "bitsandbytes",
        lambda folder: with_adapters(loaded(folder, BitsAndBytesConfig(load_in_8bit=True))),
        merged,
    ),
    "bitsandbytes, nf4": (
        "bitsandbytes",
        lambda folder: with_adapters(loaded(folder, BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4"))),
        merged,
    ),
}


def trainer_of(library, model, folder, **changes):
    options = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 2, "learning_rate": 1e-2}
    saving = {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True}
    arguments = {**QUIET, **options, **saving, "per_device_train_batch_size": 4, **changes}
    trainer = library.Trainer(
        model=model,
        args=library.TrainingArguments(str(folder / "run"), **arguments),
        train_dataset=Sequences(),
        eval_dataset=Sequences(6, seed=1),
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer


def outcome(trainer, resume=None):
    trainer.train(resume_from_checkpoint=resume)
    return {
        "history": [untimed(row) for row in trainer.state.log_history],
        "weights": {name: one.detach().clone() for name, one in trainer.model.named_parameters() if one.requires_grad},
        "logits": trainer.predict(Sequences(6, seed=2)).predictions,
    }


def everything(library, case, folder):
    _, make_model, usable = CASES[case]
    folder.mkdir()
    trainer = trainer_of(library, make_model(folder), folder)
    found = {"whole": outcome(trainer)}
    with torch.no_grad():
        found["usable"] = usable(trainer, folder)(input_ids=torch.arange(8)[None]).logits
    resumed = trainer_of(library, make_model(folder), folder)
    found["resumed"] = outcome(resumed, str(folder / "run" / "checkpoint-4"))
    return found


@pytest.mark.parametrize("case", CASES)
def test_quantised_training_is_the_same(case, tmp_path):
    pytest.importorskip(CASES[case][0])
    pytest.importorskip("peft")
    ours, theirs = (everything(library, case, tmp_path / library.__name__) for library in (portico, transformers))
    assert_same_values(ours, theirs)
    if not case.endswith("nf4"):  # bitsandbytes packs these weights anew in an evaluation, which rounds them
        assert_same_values(ours["resumed"]["weights"], ours["whole"]["weights"])
    losses = [row["loss"] for row in ours["whole"]["history"] if "loss" in row]
    assert losses[-1] != losses[0]


@pytest.mark.parametrize("name", ["adamw_torch_8bit", "adamw_torch_4bit"])
def test_quantised_optimizers_are_the_same(name, tmp_path):
    pytest.importorskip("torchao")
    found = {}
    for library in (portico, transformers):
        folder = tmp_path / library.__name__
        whole = outcome(trainer_of(library, tiny_llama(), folder, optim=name))
        resumed = outcome(trainer_of(library, tiny_llama(), folder, optim=name), str(folder / "run" / "checkpoint-4"))
        assert_same_values(resumed["weights"], whole["weights"])
        found[library] = [whole, resumed]
    assert_same_values(found[portico], found[transformers])


def activations(folder):
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return with_adapters(loaded(folder, TorchAoConfig(Int8DynamicActivationInt8WeightConfig())))


@pytest.mark.parametrize(
    ("make_model", "message"),
    [
        (activations, r"No gradient passes through `\S+q_proj.base_layer`, a Int8Tensor of torchao on cpu"),
        (
            lambda folder: quantised(loaded(folder), four_bits()),
            "no adapters, so its checkpoints could not",
        ),
        (
            lambda folder: with_adapters(loaded(folder, TorchAoConfig(four_bits()))),
            r"do not support training.*`torchao.quantize_\(model, IntxWeightOnlyConfig",
        ),
    ],
    ids=["int8 activations", "no adapters", "int4 of from_pretrained"],
)
def test_untrainable_is_refused(make_model, message, tmp_path):
    pytest.importorskip("torchao")
    pytest.importorskip("peft")
    with pytest.raises(portico.InputError, match=message):
        trainer_of(portico, make_model(tmp_path), tmp_path).train()
    assert not list(tmp_path.glob("run/checkpoint-*"))
