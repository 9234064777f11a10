"""Programs in files, and functions around compilations."""

import pytest
import torch

import poptorch_emulator as poptorch
from emulator_peers import Perceptron, batches, largest_difference, weights

BATCH = batches(1, 4, torch.float32)[0]


def training():
    model = Perceptron(dropout=0.5)
    return poptorch.trainingModel(model, None, poptorch.optim.AdamW(model.parameters(), lr=0.1))


def test_a_program_goes_on_where_it_was_saved(tmp_path):
    whole, saved = training(), training()
    for executor in (whole, saved):
        executor(*BATCH)
    saved.save(tmp_path / "program.pt")
    loaded = poptorch.load(tmp_path / "program.pt")
    for executor in (whole, loaded):
        executor(*BATCH)
    assert largest_difference(weights(whole.model), weights(loaded.model)) == 0


def test_a_program_can_be_compiled_and_saved_at_once(tmp_path):
    model = Perceptron()
    poptorch.inferenceModel(model).compileAndExport(tmp_path / "program.pt", BATCH[0])
    assert torch.equal(poptorch.load(tmp_path / "program.pt")(BATCH[0]), model(BATCH[0]))


def test_what_cannot_be_loaded_is_refused(tmp_path):
    with pytest.raises(poptorch.Error, match="not compiled yet"):
        training().save(tmp_path / "program.pt")
    executor = poptorch.inferenceModel(Perceptron())
    executor.compileAndExport(tmp_path / "program.pt", BATCH[0], export_model=False)
    with pytest.raises(poptorch.Error, match="holds no model; save it with `export_model=True`"):
        poptorch.load(tmp_path / "program.pt")
    content = torch.load(tmp_path / "program.pt", weights_only=False)
    torch.save({**content, "version": "1.0"}, tmp_path / "program.pt")
    with pytest.raises(poptorch.Error, match=r"was written by version 1\.0"):
        poptorch.load(tmp_path / "program.pt")


def test_functions_are_called_around_compilations():
    seen = []
    handles = [
        poptorch.registerPreCompileHook(lambda: seen.append("before")),
        poptorch.registerPostCompileHook(lambda: seen.append("after")),
    ]
    executor = training()
    executor(*BATCH)
    executor(*BATCH)
    for handle in handles:
        handle.remove()
    training()(*BATCH)
    assert seen == ["before", "after"]


def test_attributes_change_nothing():
    with poptorch.Attribute(__outline={"layer": "1"}) as attribute:
        assert attribute.attributes == {"__outline": {"layer": "1"}}


def test_programs_are_saved_in_folders_and_loaded_with_other_options(tmp_path):
    poptorch.inferenceModel(Perceptron()).compileAndExport(tmp_path / "new" / "program.pt", BATCH[0])
    assert (tmp_path / "new" / "program.pt").is_file()
    executor = poptorch.inferenceModel(Perceptron())
    executor.compile(BATCH[0])
    executor.save(tmp_path, save_rng_state=False)
    loaded = poptorch.load(tmp_path / "model.poptorch", edit_opts_fn=lambda options: options.deviceIterations(2))
    assert loaded.options.device_iterations == 2


def test_functions_are_no_models():
    with pytest.raises(poptorch.Error, match=r"made of a torch\.nn\.Module, and a function was given"):
        poptorch.inferenceModel(lambda x: x)
