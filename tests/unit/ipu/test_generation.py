"""Generation on the devices, compared with generation on the host."""

import pytest
import torch

from emulator_peers import free_ipus
from ipu_trainers import ipu_trainer
from models import tiny_t5
from portico.ipu.config import IPUConfig

TOKENS = torch.randint(3, 49, (3, 5), generator=torch.Generator().manual_seed(0))
INPUTS = {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)}


def gpt2():
    import transformers as hf

    torch.manual_seed(0)
    config = hf.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2)
    return hf.GPT2LMHeadModel(config)


@pytest.mark.parametrize("make", [tiny_t5, gpt2])
@pytest.mark.parametrize(
    "options",
    [{"max_length": 9}, {"max_new_tokens": 4, "num_beams": 3}, {"max_length": 8, "do_sample": True}],
    ids=["greedy", "beams", "sampling"],
)
def test_equals_generation_on_the_host(tmp_path, make, options):
    model = make().eval()
    config = IPUConfig(inference_replication_factor=2)
    trainer = ipu_trainer(tmp_path, config, model)
    torch.manual_seed(5)
    expected = model.generate(**INPUTS, **options, pad_token_id=0)
    torch.manual_seed(5)
    assert torch.equal(expected, trainer.generate(INPUTS, **options, pad_token_id=0))


def test_is_computed_by_programs_alone(tmp_path):
    trainer = ipu_trainer(tmp_path, None, tiny_t5())
    first = trainer.generate(INPUTS, max_length=6)
    calls = []
    trainer.model.encoder.block[0].register_forward_pre_hook(lambda *_: calls.append(1))
    trainer.programs.release()
    with free_ipus(1):
        assert torch.equal(trainer.generate(INPUTS, max_length=6), first)
    assert not calls


@pytest.mark.parametrize("make", [tiny_t5, gpt2])
def test_reads_weights_that_are_loaded(tmp_path, make):
    options = {"max_length": 9, "pad_token_id": 0}
    trainer = ipu_trainer(tmp_path, None, make())
    before = trainer.generate(INPUTS, **options)
    other = make().eval()
    for number, parameter in enumerate(other.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(number))
    other.save_pretrained(tmp_path / "other")
    trainer._load_from_checkpoint(str(tmp_path / "other"))
    found = trainer.generate(INPUTS, **options)
    assert torch.equal(found, other.generate(**INPUTS, **options))
    assert not torch.equal(found, before)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic default:UserWarning")
@pytest.mark.parametrize("make", [tiny_t5, gpt2])
def test_default_length_is_that_of_the_host(tmp_path, make):
    model = make().eval()
    expected = model.generate(**INPUTS, pad_token_id=0)
    trainer = ipu_trainer(tmp_path, None, model)
    assert torch.equal(expected, trainer.generate(INPUTS, pad_token_id=0))


def test_continues_decoder_input_ids(tmp_path):
    model = tiny_t5().eval()
    inputs = {"input_ids": TOKENS, "decoder_input_ids": torch.tensor([[0, 7, 8]] * 3)}
    expected = model.generate(**inputs, max_new_tokens=4)
    assert torch.equal(expected, ipu_trainer(tmp_path, None, model).generate(inputs, max_new_tokens=4))


def test_accepts_a_generation_config(tmp_path):
    import transformers as hf

    model = gpt2().eval()
    options = {"generation_config": hf.GenerationConfig(max_new_tokens=3, pad_token_id=0)}
    trainer = ipu_trainer(tmp_path, None, model)
    assert torch.equal(model.generate(TOKENS, **options), trainer.generate({"input_ids": TOKENS}, **options))


def test_runs_encoder_and_decoder_on_their_ipus(tmp_path):
    model = tiny_t5().eval()
    config = IPUConfig(layers_per_ipu=[2, 2])
    trainer = ipu_trainer(tmp_path, config, model)
    found = trainer.generate(INPUTS, max_length=7)
    assert torch.equal(found, model.generate(**INPUTS, max_length=7))
    ipus = trainer.placement.ipu_of_parameter
    assert {ipu for name, ipu in ipus.items() if name.startswith("encoder.block")} == {0}
    assert {ipu for name, ipu in ipus.items() if name.startswith("decoder.block")} == {1}


@pytest.mark.parametrize("fp32", [True, False])
def test_encoder_can_run_on_the_host(tmp_path, fp32):
    config = IPUConfig(layers_per_ipu=[2, 2], execute_encoder_on_cpu_for_generation=True)
    trainer = ipu_trainer(tmp_path, config, tiny_t5(), fp32=fp32)
    calls = []
    trainer.model.encoder.block[0].register_forward_pre_hook(lambda *_: calls.append(1))
    # The first call also runs the model on the host to find the order of the layers.
    found = trainer.generate(INPUTS, max_length=7)
    before = len(calls)
    assert torch.equal(trainer.generate(INPUTS, max_length=7), found)
    assert len(calls) == before + 1
    expected = trainer.model.eval().generate(**INPUTS, max_length=7)
    assert torch.equal(found, expected)


def test_respects_decoder_attention_mask(tmp_path):
    model = tiny_t5().eval()
    inputs = {
        "input_ids": TOKENS,
        "decoder_input_ids": torch.tensor([[0, 7, 8]] * 3),
        "decoder_attention_mask": torch.tensor([[1, 0, 1], [1, 1, 1], [1, 0, 1]]),
    }
    expected = model.generate(**inputs, max_new_tokens=4)
    without = model.generate(**{**inputs, "decoder_attention_mask": None}, max_new_tokens=4)
    assert not torch.equal(expected, without)
    assert torch.equal(expected, ipu_trainer(tmp_path, None, model).generate(inputs, max_new_tokens=4))
