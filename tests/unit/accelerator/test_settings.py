import json

import pytest
from transformers.trainer_pt_utils import AcceleratorConfig

from portico.distributed.accelerator import accelerator_settings, dataloader_config, syncs_each_batch
from portico.errors import InputError
from unit.toy import toy_arguments, toy_trainer


@pytest.mark.parametrize("form", ["object", "dict", "file", "late_dict"])
def test_the_settings_are_read_in_every_form(form, tmp_path):
    fields = {"even_batches": False, "dispatch_batches": True}
    file = tmp_path / "accelerator.json"
    file.write_text(json.dumps(fields))
    given = {"object": AcceleratorConfig(**fields), "dict": fields, "file": str(file), "late_dict": None}[form]
    args = toy_arguments(tmp_path, accelerator_config=given)
    if form == "late_dict":
        args.accelerator_config = fields
    assert dataloader_config(args) == {
        "split_batches": False,
        "dispatch_batches": True,
        "even_batches": False,
        "non_blocking": False,
        "seeded_order": True,
        "data_seed": None,
    }


def test_every_field_of_transformers_is_known(tmp_path):
    args = toy_arguments(tmp_path)
    assert accelerator_settings(args) == AcceleratorConfig().to_dict()
    args.accelerator_config = None
    assert accelerator_settings(args) == AcceleratorConfig().to_dict()


def test_an_unknown_field_is_refused(tmp_path):
    args = toy_arguments(tmp_path)
    args.accelerator_config = {"splitbatches": True}
    with pytest.raises(InputError, match="`accelerator_config` has no field splitbatches; it has split_batches"):
        accelerator_settings(args)


def accumulating(**accumulation):
    return {"accelerator_config": {"gradient_accumulation_kwargs": accumulation}}


def test_accumulation_steps_are_taken_over(tmp_path):
    trainer = toy_trainer(tmp_path, **accumulating(num_steps=5, sync_each_batch=True))
    assert trainer.args.gradient_accumulation_steps == 5
    assert syncs_each_batch(trainer.args)
    assert trainer.train().global_step == 2
    # The same arguments serve again.
    assert toy_trainer(tmp_path, parts={"args": trainer.args}).train().global_step == 2


def test_two_numbers_of_accumulation_steps_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"Both `gradient_accumulation_steps=2` and `num_steps=5` .* set one of them"):
        toy_trainer(tmp_path, gradient_accumulation_steps=2, **accumulating(num_steps=5))


def test_an_unknown_field_of_the_accumulation_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"`gradient_accumulation_kwargs` .* has no field steps; it has num_steps"):
        toy_trainer(tmp_path, **accumulating(steps=5))


def test_a_state_of_accelerates_own_is_refused(tmp_path):
    args = toy_arguments(tmp_path)
    args.accelerator_config = {"use_configured_state": True}
    with pytest.raises(InputError, match=r"'use_configured_state': True.* set `strategy`, `devices` and"):
        toy_trainer(tmp_path, parts={"args": args})
