import json

import pytest
from transformers.trainer_pt_utils import AcceleratorConfig

from models import toy_arguments, toy_trainer
from portico.data.sharding import DataLoaderConfig
from portico.distributed.settings import accelerator_settings, dataloader_config
from portico.distributed.strategies import ddp_strategy
from portico.errors import InputError


@pytest.mark.parametrize("form", ["object", "dict", "file", "late_dict"])
def test_accelerator_config_forms(form, tmp_path):
    fields = {"even_batches": False, "dispatch_batches": True}
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps(fields))
    given = {"object": AcceleratorConfig(**fields), "dict": fields, "file": str(file), "late_dict": None}[form]
    args = toy_arguments(tmp_path, accelerator_config=given)
    if form == "late_dict":
        args.accelerator_config = fields
    expected = DataLoaderConfig(dispatch_batches=True, even_batches=False, use_seedable_sampler=True)
    assert dataloader_config(args) == expected


def test_accelerator_config_has_every_field(tmp_path):
    args = toy_arguments(tmp_path)
    assert accelerator_settings(args) == AcceleratorConfig().to_dict()
    args.accelerator_config = None
    assert accelerator_settings(args) == AcceleratorConfig().to_dict()


def test_unknown_field_is_rejected(tmp_path):
    args = toy_arguments(tmp_path)
    args.accelerator_config = {"splitbatches": True}
    with pytest.raises(InputError, match="`accelerator_config` has no field splitbatches; it has split_batches"):
        accelerator_settings(args)


def accumulating(**accumulation):
    return {"accelerator_config": {"gradient_accumulation_kwargs": accumulation}}


def test_num_steps_sets_gradient_accumulation(tmp_path):
    trainer = toy_trainer(tmp_path, **accumulating(num_steps=5, sync_each_batch=True))
    assert trainer.args.gradient_accumulation_steps == 5
    assert ddp_strategy("ddp", trainer.args).sync_each_batch
    assert trainer.train().global_step == 2
    # The same arguments can be used again.
    assert toy_trainer(tmp_path, parts={"args": trainer.args}).train().global_step == 2


def test_conflicting_accumulation_steps_are_rejected(tmp_path):
    with pytest.raises(InputError, match=r"`num_steps` is set but .*They are 5 and 2"):
        toy_trainer(tmp_path, gradient_accumulation_steps=2, **accumulating(num_steps=5))


def test_unknown_accumulation_field_is_rejected(tmp_path):
    with pytest.raises(InputError, match=r"`gradient_accumulation_kwargs` .* has no field steps; it has num_steps"):
        toy_trainer(tmp_path, **accumulating(steps=5))
