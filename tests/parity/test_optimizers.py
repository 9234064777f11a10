"""Every value of ``optim`` trains as under transformers, or raises an error that names the missing package."""

import math

import pytest
import torch
import transformers
from accelerate.state import AcceleratorState
from lightning.pytorch.plugins.precision import MixedPrecision
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer
from transformers.training_args import OptimizerNames

import portico
from parity.peers import assert_identical, compare, load_trusted, run

LOW_RANK = {"optim_target_modules": ["attention", "intermediate"], "optim_args": "rank=2,update_proj_gap=2"}
SPECIAL = {
    "ademamix": {"optim_args": "beta3=0.99,t_alpha=5,t_beta3=5"},
    "adagrad": {"optim_args": "lr_decay=0.1,eps=1e-6"},
    "galore": LOW_RANK,
    "apollo": LOW_RANK,
    "sgd": {"optim_args": "momentum=0.9,nesterov=true"},
    "stable": {"optim_args": "decouple_lr=True"},
}


def train(library, name, folder):
    options = next((options for start, options in SPECIAL.items() if name.startswith(start)), {})
    return run(
        library,
        folder,
        optim=name,
        max_steps=3,
        eval_strategy="steps",
        eval_steps=2,
        weight_decay=0.1,
        adam_beta2=0.95,
        **options,
    )


def layerwise(model):
    optimizers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def step(parameter):
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    return LayerWiseDummyOptimizer, {"optimizer_dict": optimizers, "lr": 0.1}


def test_same_numbers_with_layerwise_optimizer(tmp_path):
    compare(
        tmp_path,
        trainer_options=lambda model: {"optimizer_cls_and_kwargs": layerwise(model)},
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
    )


def settings(optimizer):
    # Under transformers, accelerate wraps the optimizer.
    inner = getattr(optimizer, "optimizer", optimizer)
    groups = [
        {
            key: [tuple(one.shape) for one in value] if key == "params" else value
            for key, value in group.items()
            # GrokAdamW keeps its state here, by parameter.
            if key != "state"
        }
        for group in inner.param_groups
    ]
    # Accelerate's wrapper adds torch's default `differentiable`.
    return type(inner).__name__, {**inner.defaults, "differentiable": False}, groups


def outcome_or_error(library, name, folder):
    try:
        return train(library, name, folder)
    except (AssertionError, ImportError, ValueError) as error:
        return error


# Optional packages use deprecated parts of torch; the test steps a schedule before its optimizer.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.filterwarnings("error:Detected call of:UserWarning")
@pytest.mark.parametrize("name", [name.value for name in OptimizerNames])
def test_same_optimizer_or_missing_package(name, tmp_path):
    theirs = outcome_or_error(transformers, name, tmp_path / "theirs")
    ours = outcome_or_error(portico, name, tmp_path / "ours")
    if isinstance(theirs, AssertionError):
        pytest.skip(f"{name} needs a GPU: {theirs}")
    if not isinstance(theirs, Exception):
        assert_identical(ours, theirs)
        stand_in = "layerwise" in name
        assert settings(ours.trainer.optimizer)[stand_in:] == settings(theirs.trainer.optimizer)[stand_in:]
        return
    assert isinstance(ours, type(theirs))
    assert isinstance(ours, portico.InputError)
    assert str(ours).startswith(f"`optim={name!r}`")
    assert str(ours).endswith(f"{str(theirs).rstrip('.')}. Or set another name, as `optim='adamw_torch'`.")


def test_malformed_optim_args_are_rejected(tmp_path):
    with pytest.raises(
        portico.InputError,
        match=r"`optim_args='momentum'` has the part 'momentum', which is not of the form `name=value`",
    ):
        run(portico, tmp_path, optim="sgd", optim_args="momentum")


def scaling(base):
    """Return a trainer of transformers with float16 and a gradient scaler on the CPU, where accelerate has neither."""

    class Scaling(base):
        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            self.accelerator.native_amp = True
            self.accelerator.state._mixed_precision = "fp16"
            self.accelerator.scaler = scaler()

    return Scaling


def scaler():
    return torch.amp.GradScaler("cpu", init_scale=2.0**24)


@pytest.mark.parametrize(
    ("optim", "max_grad_norm"), [("adamw_torch", 1.0), ("adamw_torch_fused", 1.0), ("adamw_torch_fused", 0.0)]
)
def test_same_numbers_with_a_gradient_scaler(optim, max_grad_norm, tmp_path):
    options = {"max_steps": 12, "logging_steps": 1, "save_strategy": "steps", "save_steps": 6, "optim": optim}
    options["max_grad_norm"] = max_grad_norm
    theirs = run(transformers, tmp_path / "theirs", base=scaling, **options)
    AcceleratorState._reset_state(reset_partial_state=True)
    plugins = [MixedPrecision("16-mixed", "cpu", scaler())]
    ours = run(portico, tmp_path / "ours", trainer_options={"plugins": plugins}, **options)
    norms = [row["grad_norm"] for row in theirs.history if "loss" in row]
    assert 0 < sum(map(math.isfinite, norms)) < len(norms), "some steps are skipped, and some not"
    for outcome in (ours, theirs):
        outcome.history[:] = [{name: str(value) for name, value in row.items()} for row in outcome.history]
    assert_identical(ours, theirs)
    files = [tmp_path / library / "checkpoint-12/scaler.pt" for library in ("ours", "theirs")]
    assert load_trusted(files[0]) == load_trusted(files[1])
