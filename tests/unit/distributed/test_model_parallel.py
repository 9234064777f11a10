"""Models sharded over processes: the numbers, the checkpoints and the resumed runs of data-parallel training."""

import json
import logging
import os
import shutil
import warnings
from datetime import timedelta
from types import SimpleNamespace

import accelerate
import numpy as np
import pytest
import torch
import transformers
from lightning.pytorch.strategies import ModelParallelStrategy
from safetensors.torch import save_file
from transformers.distributed import DistributedConfig

import portico
from forked import run_in_processes
from models import (
    Pairs,
    Sequences,
    ToyDataset,
    pad_everything,
    tiny_llama,
    tiny_t5,
    tiny_tokenizer,
    toy_arguments,
    toy_trainer,
    two_layer_bert,
)
from portico.checkpoint import sharded
from portico.checkpoint.manifest import MANIFEST_FILE, examine
from portico.distributed.model_parallel import full_tensor, is_sharded
from releases import since_transformers

# Clipping multiplies gradients by a norm, whose last bits depend on how the model is cut; without it every number is
# equal. The learning rate is small enough for differences in the last bits to stay there.
EXACT = {"max_grad_norm": 0, "eval_strategy": "steps", "eval_steps": 4, "save_strategy": "steps", "save_steps": 4}
SHARDED = {"fsdp": True, "ddp_timeout": 100}
# Some layers, and the heads for batches of one, return views, which nothing changes in place.
VIEWS = r"FSDP2-wrapped module \(.*\) returned a view tensor"
WHOLE = {"strategy": "ddp", "ddp_find_unused_parameters": False}


def classifier(folder, model=None, **changes):
    return portico.Trainer(
        two_layer_bert() if model is None else model,
        toy_arguments(folder, **{**EXACT, **changes}),
        train_dataset=ToyDataset(20),
        eval_dataset=ToyDataset(7, seed=4),
    )


def causal(folder, model=None, **changes):
    return portico.Trainer(
        tiny_llama() if model is None else model,
        toy_arguments(folder, **{**EXACT, "learning_rate": 0.01, **changes}),
        data_collator=pad_everything,
        train_dataset=Sequences(19, ragged=True),
        eval_dataset=Sequences(7, ragged=True, seed=4),
    )


def weights(trainer):
    return {name: full_tensor(tensor).detach().clone() for name, tensor in trainer.model.state_dict().items()}


def share_of_weights(model):
    parts = [(parameter.to_local().numel(), parameter.numel()) for parameter in model.parameters()]
    return sum(own for own, _ in parts) / sum(total for _, total in parts)


def timeouts(meshes):
    """Return how long the collectives of meshes may take."""
    groups = [group for mesh in meshes for group in mesh.get_all_groups()]
    return {group._get_backend(torch.device("cpu")).options._timeout for group in groups}


def history(trainer):
    varying = ("runtime", "per_second", "grad_norm")
    logs = trainer.state.log_history
    return [{key: value for key, value in row.items() if not key.endswith(varying)} for row in logs]


def norms(trainer):
    return [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]


def assert_same_weights(one, other, **tolerance):
    torch.testing.assert_close(weights(one), weights(other), **{"rtol": 0, "atol": 0, **tolerance})


def sharded_equals_whole(folder):
    """Train, evaluate, predict and save under both; resume each from the other's checkpoint."""
    trainers = {}
    for name, strategy in {"whole": WHOLE, "sharded": SHARDED}.items():
        trainers[name] = trainer = classifier(folder / name, **strategy)
        trainer.train()
    ddp, fsdp = trainers["whole"], trainers["sharded"]
    assert is_sharded(fsdp.model)
    assert not is_sharded(ddp.model)
    assert type(fsdp.model).__name__ == "BertForSequenceClassification"
    assert share_of_weights(fsdp.model) < 0.52
    assert timeouts(one.device_mesh for one in fsdp.model.parameters()) == {timedelta(seconds=fsdp.args.ddp_timeout)}
    assert history(fsdp) == history(ddp)
    np.testing.assert_allclose(norms(fsdp), norms(ddp), rtol=1e-6)
    assert_same_weights(fsdp, ddp)
    theirs = ddp.predict(ToyDataset(7, seed=4))
    mine = fsdp.predict(ToyDataset(7, seed=4))
    np.testing.assert_array_equal(mine.predictions, theirs.predictions)
    assert mine.metrics["test_loss"] == theirs.metrics["test_loss"] == pytest.approx(fsdp.evaluate()["eval_loss"])
    for strategy, checkpoint in ((SHARDED, "whole"), (WHOLE, "sharded"), (SHARDED, "sharded")):
        resumed = classifier(folder / "resumed", save_strategy="no", **{**strategy})
        resumed.train(resume_from_checkpoint=str(folder / checkpoint / "checkpoint-4"))
        assert_same_weights(resumed, ddp)
    config = two_layer_bert().config
    for layers, what in ((1, "is trained only there"), (3, "is missing there")):
        config.num_hidden_layers = layers
        other = classifier(folder / "other", transformers.BertForSequenceClassification(config), **SHARDED)
        with pytest.raises(portico.InputError, match=f"holds the optimizer of another model than Bert.*{what}"):
            other.train(resume_from_checkpoint=str(folder / "sharded" / "checkpoint-4"))
    for checkpoint in ("whole", "sharded"):
        with pytest.raises(portico.InputError, match="of another optimizer than SGD: `dampening` is missing"):
            classifier(folder, optim="sgd", **SHARDED).train(str(folder / checkpoint / "checkpoint-4"))
    gathered = fsdp.accelerator.get_state_dict(fsdp.model)
    assert list(gathered) == ([] if os.environ["RANK"] == "1" else list(ddp.model.state_dict()))
    with pytest.raises(portico.InputError, match="are sharded already, by an earlier trainer"):
        classifier(folder, fsdp.model, **WHOLE)
    for best in (ddp, fsdp):
        best._portico.load_weights(best.model, str(folder / "sharded" / "checkpoint-4"))
    assert_same_weights(ddp, fsdp)


def test_sharded_training_equals_whole_training(tmp_path, caplog):
    run_in_processes(2, sharded_equals_whole, tmp_path)
    whole_files, sharded_files = (
        {file.name for file in (tmp_path / name / "checkpoint-8").iterdir()} for name in ("whole", "sharded")
    )
    assert sharded_files ^ whole_files == {"optimizer.pt", "optimizer_0"}
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "sharded/checkpoint-8" / name).read_bytes() == (
            tmp_path / "whole/checkpoint-8" / name
        ).read_bytes()
    listed = json.loads((tmp_path / "sharded/checkpoint-8" / MANIFEST_FILE).read_text())
    assert {"model.safetensors", "optimizer_0/.metadata", "optimizer_0/__1_0.distcp"} <= listed.keys()
    assert examine(tmp_path / "sharded/checkpoint-8").damage is None
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "sharded/checkpoint-8")
    assert loaded.num_labels == 3
    # One process resumes what two have saved, sharded or not, to the same weights.
    resumed = []
    for name in ("sharded", "whole"):
        trainer = classifier(tmp_path / "one", save_strategy="no")
        torch.manual_seed(0)
        trainer.train(resume_from_checkpoint=str(tmp_path / name / "checkpoint-4"))
        resumed.append(trainer)
    assert_same_weights(*resumed)
    # Shards that no manifest lists may come from anywhere, and only sharded runs read them.
    shutil.copytree(tmp_path / "sharded/checkpoint-4", tmp_path / "unlisted")
    (tmp_path / "unlisted" / MANIFEST_FILE).unlink()
    classifier(tmp_path / "one", save_strategy="no").train(resume_from_checkpoint=str(tmp_path / "unlisted"))
    assert f"sharded runs read its optimizer_0, and others read it only if {MANIFEST_FILE} lists it" in caplog.text


def generator(folder, **changes):
    options = {"max_grad_norm": 0, "predict_with_generate": True, **changes}
    tokenizer = tiny_tokenizer()
    return portico.Seq2SeqTrainer(
        tiny_t5(),
        toy_arguments(folder, portico.Seq2SeqTrainingArguments, **options),
        data_collator=transformers.DataCollatorForSeq2Seq(tokenizer),
        train_dataset=Pairs(),
    )


def losses(rows):
    return [row[key] for row in rows for key in ("loss", "eval_loss") if key in row]


def llama_with_head():
    config = tiny_llama().config
    config.num_labels, config.pad_token_id = 3, 0
    return transformers.LlamaForSequenceClassification(config)


def sharded_in_other_ways(folder):
    near, some = {"rtol": 1e-4, "atol": 1e-5}, Sequences(7, ragged=True, seed=4)
    # Each layer in two processes, by the model's plan.
    split, expected = causal(folder / "split", parallelism_config={"tp_size": 2}), torch.load(folder / "one.pt")
    split.train()
    assert split.get_total_train_batch_size(split.args) == 2
    assert split.model.model.layers[0].mlp.up_proj.weight.to_local().shape == (16, 16)
    torch.testing.assert_close(weights(split), expected["weights"], **near)
    np.testing.assert_allclose(losses(history(split)), losses(expected["history"]), rtol=1e-5)
    np.testing.assert_allclose(norms(split), expected["norms"], rtol=1e-4)
    np.testing.assert_allclose(split.predict(some).predictions, expected["predictions"], **near)
    # The head is in no plan, so the optimizer has more groups of parameters than that of a whole model.
    headed = classifier(folder / "headed", llama_with_head(), learning_rate=0.01, parallelism_config={"tp_size": 2})
    headed.train(resume_from_checkpoint=str(folder / "headed-one" / "checkpoint-4"))
    torch.testing.assert_close(weights(headed), expected["headed"], **near)
    # Weights on the meta device, of which each process reads its part.
    checkpoint = str(folder / "split" / "checkpoint-4")
    with torch.device("meta"):
        empty = transformers.LlamaForCausalLM(transformers.AutoConfig.from_pretrained(checkpoint))
    filled = causal(folder, empty, **SHARDED)
    read = causal(folder, transformers.LlamaForCausalLM.from_pretrained(checkpoint), **WHOLE)
    assert filled.evaluate()["eval_loss"] == pytest.approx(read.evaluate()["eval_loss"], rel=1e-6)
    assert_same_weights(filled, read)
    # Text from shards.
    warnings.filterwarnings("ignore", message=VIEWS)
    trainers = [generator(folder, **strategy) for strategy in (SHARDED, WHOLE)]
    for trainer in trainers:
        trainer.train()
    texts = [trainer.predict(Pairs(5, seed=3), max_length=9).predictions for trainer in trainers]
    np.testing.assert_array_equal(*texts)


@pytest.mark.slow
@since_transformers("5.23")
def test_models_that_are_split_by_a_plan_read_in_parts_and_asked_for_text(tmp_path):
    one = causal(tmp_path / "one")
    one.train()
    predictions = torch.from_numpy(one.predict(Sequences(7, ragged=True, seed=4)).predictions)
    expected = {"weights": weights(one), "history": history(one), "norms": norms(one), "predictions": predictions}
    headed = classifier(tmp_path / "headed-one", llama_with_head(), learning_rate=0.01)
    headed.train()
    torch.save({**expected, "headed": weights(headed)}, tmp_path / "one.pt")
    run_in_processes(2, sharded_in_other_ways, tmp_path)
    again = classifier(tmp_path / "again", llama_with_head(), learning_rate=0.01, save_strategy="no")
    again.train(resume_from_checkpoint=str(tmp_path / "headed" / "checkpoint-8"))
    torch.testing.assert_close(weights(again), weights(headed), rtol=1e-4, atol=1e-5)


def other_shapes(folder):
    """Four processes: copies of shards, shards of split layers, and checkpoints of two processes and of one."""
    warnings.filterwarnings("ignore", message=VIEWS)
    expected = torch.load(folder / "one.pt")
    near = {"rtol": 1e-4, "atol": 1e-5}
    hybrid = {"parallelism_config": {"dp_replicate_size": 2, "dp_shard_size": 2}}
    runs = {
        "hybrid": hybrid,
        "hybrid by name": {"fsdp": "hybrid_shard", "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}},
        "offloaded": {"fsdp": True, "fsdp_config": {"cpu_offload": True, "reshard_after_forward": False}},
        "recomputed": {"fsdp": True, "fsdp_config": {"activation_checkpointing": True}},
        "by size": {"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 500}},
        "both": {"parallelism_config": {"dp_shard_size": 2, "tp_size": 2}},
        "both of Lightning": {"strategy": ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=2)},
        "whole": WHOLE,
    }
    by_four = {}
    for name, strategy in runs.items():
        trainer = causal(folder / name.replace(" ", "-"), per_device_train_batch_size=1, **strategy)
        trainer.train()
        by_four[name] = trainer
    for name in runs:
        if not name.startswith("both"):
            torch.testing.assert_close(weights(by_four[name]), weights(by_four["whole"]), **near, msg=name)
    # What they predict and generate.
    some = Sequences(7, ragged=True, seed=4)
    predicted = by_four["whole"].predict(some).predictions
    for name in ("hybrid", "offloaded", "recomputed", "by size"):
        np.testing.assert_allclose(by_four[name].predict(some).predictions, predicted, **near, err_msg=name)
    two = torch.load(folder / "one.pt")["predicted by both"]
    np.testing.assert_allclose(by_four["both"].predict(some).predictions, two, **near)
    texts = {}
    for name, strategy in {"whole": WHOLE, "hybrid": hybrid, "sharded": SHARDED}.items():
        trainer = generator(folder / "texts", **strategy)
        trainer.train()
        texts[name] = trainer.predict(Pairs(5, seed=3), max_length=9).predictions
        np.testing.assert_array_equal(texts[name], texts["whole"], err_msg=name)
    prompt = {"input_ids": torch.arange(5, 9)[None], "do_sample": False, "max_new_tokens": 6}
    written = [by_four[name].model.generate(**prompt, pad_token_id=0) for name in ("both", "both of Lightning")]
    assert torch.equal(written[0].cpu(), torch.load(folder / "one.pt")["written"])
    assert torch.equal(*written)
    # Two groups of two processes: each group sees what one process of two does.
    torch.testing.assert_close(weights(by_four["both"]), expected["both"], **near)
    assert_same_weights(by_four["both of Lightning"], by_four["both"])
    # What two processes, or one, have saved.
    for saved in ("two", "one"):
        resumed = causal(folder / "resumed", save_strategy="no", max_steps=6, **hybrid)
        resumed.train(resume_from_checkpoint=str(folder / saved / "checkpoint-4"))
        other = causal(folder / "resumed", save_strategy="no", max_steps=6, **WHOLE)
        other.train(resume_from_checkpoint=str(folder / saved / "checkpoint-4"))
        torch.testing.assert_close(weights(resumed), weights(other), **near, msg=saved)


def two_shards(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    reference = causal(folder / "two-whole", per_device_train_batch_size=1, **WHOLE)
    reference.train()
    both = weights(reference)
    sharded = causal(folder / "two", **SHARDED)
    sharded.train()
    predicted = reference.predict(Sequences(7, ragged=True, seed=4)).predictions
    prompt = {"input_ids": torch.arange(5, 9)[None], "do_sample": False, "max_new_tokens": 6}
    written = reference.model.generate(**prompt, pad_token_id=0)
    if sharded.args.process_index == 0:
        saved = {"both": both, "predicted by both": torch.from_numpy(predicted), "written": written}
        torch.save(saved, folder / "one.pt")


@pytest.mark.slow
def test_other_shapes_of_the_mesh(tmp_path):
    one = causal(tmp_path / "one")
    one.train()
    run_in_processes(2, two_shards, tmp_path)
    run_in_processes(4, other_shapes, tmp_path)
    for saved in ("both", "hybrid"):
        resumed = causal(tmp_path / "resumed", save_strategy="no", max_steps=6)
        resumed.train(resume_from_checkpoint=str(tmp_path / saved / "checkpoint-4"))
        assert resumed.state.global_step == 6
        assert np.isfinite(resumed.state.log_history[-1]["train_loss"])


SAVED_BY = {1: ("whole",), 2: ("whole", "sharded"), 4: ("whole", "sharded")}


def four_at_a_time(folder, name, **changes):
    """A run whose steps see the same four examples in any number of processes."""
    number = int(os.environ.get("WORLD_SIZE", 1))
    strategy = {} if number == 1 else {"whole": WHOLE, "sharded": SHARDED}[name]
    return portico.Trainer(
        tiny_llama(),
        toy_arguments(
            folder / f"{number}-{name}",
            **{
                **{**EXACT, "learning_rate": 0.01, "max_steps": 8, "per_device_train_batch_size": 4 // number},
                **{**strategy, **changes},
            },
        ),
        data_collator=pad_everything,
        train_dataset=Sequences(20),
        eval_dataset=Sequences(8, seed=4),
    )


def saves(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    for name in SAVED_BY[int(os.environ.get("WORLD_SIZE", 1))]:
        four_at_a_time(folder, name).train()


def resumes_all(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    expected = transformers.LlamaForCausalLM.from_pretrained(folder / "1-whole" / "checkpoint-8").state_dict()
    for saved_on, kinds in SAVED_BY.items():
        for kind in kinds:
            for name in SAVED_BY[int(os.environ.get("WORLD_SIZE", 1))]:
                trainer = four_at_a_time(folder / "resumed", name, save_strategy="no")
                resumed(trainer, folder / f"{saved_on}-{kind}" / "checkpoint-4")
                case = f"saved on {saved_on}, {kind}, resumed {name}"
                assert trainer.state.global_step == 8
                torch.testing.assert_close(weights(trainer), expected, rtol=1e-4, atol=1e-5, msg=case)


@pytest.mark.slow
def test_any_number_of_processes_resumes_what_any_other_has_saved(tmp_path):
    for step in (saves, resumes_all):
        step(tmp_path)
        for number in (2, 4):
            run_in_processes(number, step, tmp_path)


def resumed(trainer, checkpoint):
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return trainer


def save_halves(state, folder):
    names = sorted(state)
    index = {}
    for number, half in enumerate((names[::2], names[1::2]), 1):
        index |= dict.fromkeys(half, f"model-{number:05}-of-00002.safetensors")
        save_file({name: state[name] for name in half}, folder / index[half[0]], {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


EDITS = {
    "one file": lambda state, folder: save_file(state, folder / "model.safetensors", {"format": "pt"}),
    "pickled": lambda state, folder: torch.save(state, folder / "pytorch_model.bin"),
    "other shards": save_halves,
}


def resumes_edited(folder):
    """Resume the sharded checkpoint of two processes as it is, saved again in other files, and with other weights."""
    sharded.MAX_SHARD_SIZE = "10KB"
    options = {"save_strategy": "no", "eval_strategy": "no"}
    first = classifier(folder / "first", **{**SHARDED, "max_steps": 4, "eval_strategy": "no"})
    first.train()
    saved = folder / "first" / "checkpoint-4"
    state = transformers.BertForSequenceClassification.from_pretrained(saved).state_dict()
    changed = {name: tensor / 2 for name, tensor in state.items()}
    expected = resumed(classifier(folder, **SHARDED, **options), saved)
    for name, write in EDITS.items():
        results = []
        for kind, tensors in (("same", state), ("other", changed)):
            edited = folder / f"{kind} weights, {name}" / "checkpoint-4"
            if first.is_world_process_zero():
                shutil.copytree(saved, edited)
                files = list(edited.glob("model*"))
                assert len(files) > 3, "an index, and shards of at most 10 KB"
                for file in files:
                    file.unlink()
                write(tensors, edited)
            first.accelerator.wait_for_everyone()
            assert examine(edited).damage is None
            results.append(resumed(classifier(folder, **SHARDED, **options), edited))
            assert_same_weights(results[-1], resumed(classifier(folder, **WHOLE, **options), edited))
        assert_same_weights(results[0], expected)
        assert not torch.equal(*(weights(one)["classifier.weight"] for one in results))


@pytest.mark.slow
def test_sharded_checkpoints_that_a_user_edited_resume(tmp_path):
    run_in_processes(2, resumes_edited, tmp_path)


def as_transformers_saves(folder):
    """Resume what `transformers.Trainer` writes under FSDP, with either type of state dict."""
    options = {"save_strategy": "no", "eval_strategy": "no"}
    first = classifier(folder / "first", **{**SHARDED, "max_steps": 4, "eval_strategy": "no", "save_steps": 4})
    first.train()
    expected = resumed(classifier(folder, **SHARDED, **options), folder / "first" / "checkpoint-4")
    accelerator = SimpleNamespace(
        process_index=first.args.process_index,
        num_processes=2,
        is_main_process=first.args.process_index == 0,
        is_fsdp2=True,
        wait_for_everyone=first.accelerator.wait_for_everyone,
    )
    for kind in ("FULL_STATE_DICT", "SHARDED_STATE_DICT"):
        theirs = folder / kind / "checkpoint-4"
        if accelerator.is_main_process:
            shutil.copytree(folder / "first" / "checkpoint-4", theirs)
            shutil.rmtree(theirs / "optimizer_0")
            for file in (theirs / "model.safetensors", theirs / MANIFEST_FILE):
                file.unlink()
        first.accelerator.wait_for_everyone()
        plugin = accelerate.FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type=kind)
        accelerate.utils.save_fsdp_model(plugin, accelerator, first.model, str(theirs))
        accelerate.utils.save_fsdp_optimizer(plugin, accelerator, first.optimizer, first.model, str(theirs))
        assert_same_weights(resumed(classifier(folder, **SHARDED, **options), theirs), expected)
        if kind == "FULL_STATE_DICT":
            assert_same_weights(resumed(classifier(folder, **WHOLE, **options), theirs), expected)


@pytest.mark.slow
def test_checkpoints_of_transformers_under_fsdp(tmp_path):
    run_in_processes(2, as_transformers_saves, tmp_path)


def tied_llama():
    """A language model whose head has the weights of its embedding, with heads and layers that its plan splits."""
    config = tiny_llama().config
    config.tie_word_embeddings = True
    torch.manual_seed(7)
    return transformers.LlamaForCausalLM(config)


def other_models(folder):
    """Models that transformers shards, that only the first process has, of users' own, and in half precision."""
    warnings.filterwarnings("ignore", message=VIEWS)
    warnings.filterwarnings("ignore", message=".*torch_dtype.*")
    config = DistributedConfig(fsdp_size=2)
    loaded = transformers.LlamaForCausalLM.from_pretrained(folder / "model", distributed_config=config)
    split_config = DistributedConfig(tp_size=2)
    split = transformers.LlamaForCausalLM.from_pretrained(folder / "model", distributed_config=split_config)
    own = tiny_llama()
    with torch.device("meta" if os.environ["RANK"] == "1" else "cpu"):
        own = transformers.LlamaForCausalLM(own.config) if os.environ["RANK"] == "1" else own
    trainers = {
        "loaded": causal(folder / "loaded", loaded, max_steps=4),
        "first": causal(folder / "first", own, max_steps=4, **SHARDED),
        "whole": causal(folder / "whole", tiny_llama(), max_steps=4, **WHOLE),
        "split": causal(folder / "split", split, max_steps=4),
        "tied": causal(folder / "tied", tied_llama(), max_steps=4, parallelism_config={"tp_size": 2}),
        "half": causal(folder / "half", tiny_llama(), max_steps=4, bf16=True, **SHARDED),
        "half whole": causal(folder / "half-whole", tiny_llama(), max_steps=4, bf16=True, **WHOLE),
    }
    for trainer in trainers.values():
        trainer.train()
    near = {"rtol": 1e-4, "atol": 1e-5}
    for name in ("loaded", "first"):
        torch.testing.assert_close(weights(trainers[name]), weights(trainers["whole"]), **near, msg=name)
    for name in ("split", "tied"):
        torch.testing.assert_close(weights(trainers[name]), torch.load(folder / "one.pt")[name], **near)
    tied = trainers["tied"].model
    assert tied.lm_head.weight is tied.model.embed_tokens.weight
    assert tied.lm_head.weight.to_local().shape == (25, 16)
    for saved, strategy in (("tied", {"parallelism_config": {"tp_size": 2}}), ("one-tied", SHARDED)):
        again = causal(folder / "again", tied_llama(), max_steps=6, save_strategy="no", **strategy)
        again.train(resume_from_checkpoint=str(folder / saved / "checkpoint-4"))
        assert again.state.global_step == 6
    np.testing.assert_allclose(*(losses(history(trainers[name])) for name in ("half", "half whole")), rtol=2e-2)
    for name in ("loaded", "split"):
        files = [file.name for file in (folder / name / "checkpoint-4").iterdir()]
        assert "model.safetensors" in files
    # A model of one's own, in which `fully_shard` finds no layers.
    lines = [toy_trainer(folder / "line", max_grad_norm=0, **how) for how in (SHARDED, WHOLE)]
    for trainer in lines:
        trainer.train()
        trainer.save_model(str(folder / f"line-{is_sharded(trainer.model)}"))
    assert_same_weights(*lines)


@pytest.mark.slow
def test_models_of_other_kinds(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "model")
    ones = {
        "split": causal(tmp_path / "one", max_steps=4),
        "tied": causal(tmp_path / "one-tied", tied_llama(), max_steps=4),
    }
    for one in ones.values():
        one.train()
    torch.save({name: weights(one) for name, one in ones.items()}, tmp_path / "one.pt")
    run_in_processes(2, other_models, tmp_path)
    assert transformers.LlamaForCausalLM.from_pretrained(tmp_path / "tied/checkpoint-4").config.tie_word_embeddings
    assert "distributed_config" not in json.loads((tmp_path / "loaded/checkpoint-4/config.json").read_text())
    lines = [(tmp_path / f"line-{kind}/model.safetensors").read_bytes() for kind in (True, False)]
    assert lines[0] == lines[1]


EXPERTS = {
    "mixtral": (transformers.MixtralConfig, {"num_local_experts": 4, "intermediate_size": 24}),
    "qwen3": (
        transformers.Qwen3MoeConfig,
        {"num_experts": 4, "moe_intermediate_size": 8, "num_experts_per_tok": 2, "head_dim": 8},
    ),
}
PLANS = {"tensor": {"tp_size": 2, "ep_size": 2}, "data": {"fsdp_size": 2, "ep_size": 2}}


def experts(folder, name, plan=None, **changes):
    """A trainer of a mixture of experts that was loaded over processes, with windows of two batches."""
    config = DistributedConfig(**PLANS[plan]) if plan else None
    model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, distributed_config=config)
    batch = {"per_device_train_batch_size": 2 if plan == "data" else 4, "gradient_accumulation_steps": 2}
    run = {"optim": "sgd", "learning_rate": 0.1, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    options = {**EXACT, **run, **batch, "max_grad_norm": 0.5, "corrections": "renamed_weights", **changes}
    return portico.Trainer(
        model,
        toy_arguments(folder / f"{name}-{plan}", **options),
        train_dataset=Sequences(24),
        eval_dataset=Sequences(8, seed=4),
    )


def logged_losses(trainer):
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


def experts_over_processes(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    expected = torch.load(folder / "one.pt")
    for name in EXPERTS:
        for plan in PLANS:
            trainer = experts(folder, name, plan)
            owns = [
                parameter.to_local().shape[0]
                for key, parameter in trainer.model.named_parameters()
                if "experts" in key
            ]
            assert set(owns) == {2}
            trainer.train()
            again = experts(folder, name, plan, save_strategy="no")
            again.train(resume_from_checkpoint=str(folder / f"{name}-{plan}/checkpoint-3"))
            for one in (trainer, again):
                torch.testing.assert_close(weights(one), expected[name]["weights"], rtol=0, atol=1e-6)
            messages = []
            heard = logging.Handler()
            heard.emit = lambda record, messages=messages: messages.append(record.getMessage())
            logging.getLogger("transformers").addHandler(heard)
            untranslated = experts(folder, name, plan, save_strategy="no", corrections=None)
            untranslated.train(resume_from_checkpoint=str(folder / f"{name}-{plan}/checkpoint-3"))
            assert any("missing keys" in message and "experts.gate_up_proj" in message for message in messages)
            assert logged_losses(trainer) == pytest.approx(expected[name]["losses"], abs=1e-6)
            if plan == "tensor":  # otherwise the means of other batches are averaged
                assert trainer.evaluate()["eval_loss"] == pytest.approx(expected[name]["eval_loss"], abs=1e-6)


@pytest.mark.slow
def test_experts_over_processes_give_the_numbers_of_one(tmp_path):
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    expected = {}
    for name, (kind, own) in EXPERTS.items():
        torch.manual_seed(0)
        config = kind(**sizes, num_key_value_heads=2, **own)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        trainer = experts(tmp_path, name)
        trainer.train()
        expected[name] = {"weights": weights(trainer), "losses": logged_losses(trainer), **trainer.evaluate()}
    torch.save(expected, tmp_path / "one.pt")
    run_in_processes(2, experts_over_processes, tmp_path)
    for name in EXPERTS:
        for plan in PLANS:
            again = experts(tmp_path, name)
            again.train(resume_from_checkpoint=str(tmp_path / f"{name}-{plan}/checkpoint-3"))
            torch.testing.assert_close(weights(again), expected[name]["weights"], rtol=0, atol=1e-6)


def saved_in_the_background(folder):
    """Checkpoints written while training continues, windows of several batches, and an optimizer of the user's."""
    waits, goes_on = {}, {}
    for name, given in {"at-once": False, "later": True}.items():
        goes_on[name] = classifier(folder / name, async_save=given, **SHARDED)
        goes_on[name].train()
    assert_same_weights(goes_on["later"], goes_on["at-once"])
    assert timeouts(goes_on["later"]._portico.background._groups.meshes.values()) == {timedelta(seconds=100)}
    both = causal(folder / "split", async_save=True, parallelism_config={"tp_size": 2})
    both.train()
    for name, strategy in {"sharded": SHARDED, "whole": WHOLE}.items():
        for each in (False, True):
            config = {"gradient_accumulation_kwargs": {"sync_each_batch": each}}
            options = {"gradient_accumulation_steps": 3, "accelerator_config": config, "save_strategy": "no"}
            model = two_layer_bert()
            trainer = classifier(folder / name, model, **options, **strategy)
            trainer.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            trainer.train()
            waits[name, each] = trainer
    assert_same_weights(waits["sharded", False], waits["whole", False])
    # DDP averages what it has averaged before once more with each batch.
    assert_same_weights(waits["sharded", True], waits["whole", True], rtol=1e-4, atol=1e-7)


@pytest.mark.slow
def test_checkpoints_in_the_background_and_windows_of_several_batches(tmp_path):
    run_in_processes(2, saved_in_the_background, tmp_path)
    for step in (4, 8):
        later, at_once = (tmp_path / name / f"checkpoint-{step}" for name in ("later", "at-once"))
        assert {path.name for path in later.rglob("*")} == {path.name for path in at_once.rglob("*")}
        assert (later / "model.safetensors").read_bytes() == (at_once / "model.safetensors").read_bytes()
        assert examine(later).damage is None
        states = []
        for folder in (later, at_once):
            trainer = classifier(tmp_path / "read", save_strategy="no")
            torch.manual_seed(0)
            states.append(resumed(trainer, folder).optimizer.state_dict()["state"])
        torch.testing.assert_close(*states, rtol=0, atol=0)
    assert transformers.LlamaForCausalLM.from_pretrained(tmp_path / "split/checkpoint-4").dtype == torch.float32
    assert examine(tmp_path / "split/checkpoint-4").damage is None


def adapted(kind):
    """A model with adapters that train: PEFT's own, of two names, of prompts, or of transformers."""
    import peft

    torch.manual_seed(3)
    model = tiny_llama()
    if kind == "prompt":
        return peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    options = {"target_modules": ["q_proj", "down_proj"], "lora_dropout": 0.1, "task_type": "CAUSAL_LM"}
    config = peft.LoraConfig(r=2, **options, **({"modules_to_save": ["lm_head"]} if kind == "lora" else {}))
    if kind == "added":
        model.add_adapter(config)
        return model
    made = peft.get_peft_model(model, config)
    if kind == "two":
        made.add_adapter("second", peft.LoraConfig(r=3, **options))
    return made


def sharded_adapters(folder):
    warnings.filterwarnings("ignore", message=VIEWS)
    for kind in ("lora", "two", "prompt", "added"):
        trained = {}
        for name, strategy in {"whole": WHOLE, "sharded": SHARDED, "later": {**SHARDED, "async_save": True}}.items():
            trained[name] = causal(folder / kind / name, adapted(kind), **strategy)
            trained[name].train()
            trained[name].save_model(str(folder / kind / name / "end"))
            assert_same_weights(trained[name], trained["whole"])
        if kind == "added":
            continue  # transformers resumes nothing without a whole model
        for strategy, checkpoint in ((SHARDED, "whole"), (WHOLE, "sharded"), (SHARDED, "sharded")):
            again = causal(folder / "resumed", adapted(kind), save_strategy="no", **strategy)
            again.train(resume_from_checkpoint=str(folder / kind / checkpoint / "checkpoint-4"))
            assert_same_weights(again, trained["whole"])
    with pytest.raises(portico.InputError, match="says nothing of adapters"):
        causal(folder, adapted("lora"), parallelism_config={"tp_size": 2}).train()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_adapters_of_a_sharded_model(tmp_path):
    peft = pytest.importorskip("peft")
    run_in_processes(2, sharded_adapters, tmp_path)
    for kind in ("lora", "two", "prompt", "added"):
        places = {name: tmp_path / kind / name for name in ("whole", "sharded", "later")}
        for folder in ("checkpoint-4", "checkpoint-8", "end"):
            files = sorted(
                path.relative_to(places["whole"])
                for path in (places["whole"] / folder).rglob("*")
                if path.name.startswith("adapter")
            )
            assert len(files) == (4 if kind == "two" else 2)
            for name in ("sharded", "later"):
                assert not (places[name] / folder / "model.safetensors").exists()
                assert examine(places[name] / folder).damage is None
                for file in files:
                    assert (places[name] / file).read_bytes() == (places["whole"] / file).read_bytes(), file
        if kind != "added":
            loaded = peft.PeftModel.from_pretrained(tiny_llama(), places["sharded"] / "end")
            assert len(list(loaded.parameters())) > len(list(tiny_llama().parameters()))
