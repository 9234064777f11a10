"""Fine-tune a forecasting model on random walks, with the trainer of chronos."""

import sys

import torch
from chronos import Chronos2Pipeline
from chronos.chronos2 import Chronos2CoreConfig, Chronos2Model

torch.manual_seed(7)
forecasting = {
    "context_length": 32,
    "input_patch_size": 4,
    "input_patch_stride": 4,
    "output_patch_size": 4,
    "quantiles": [0.1, 0.5, 0.9],
    "use_reg_token": True,
    "use_arcsinh": True,
    "max_output_patches": 4,
}
sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
config = Chronos2CoreConfig(**sizes, dropout_rate=0.1, chronos_config=forecasting)
walks = [torch.randn(40).cumsum(0).numpy() for _ in range(12)]
Chronos2Pipeline(Chronos2Model(config)).fit(
    walks,
    prediction_length=4,
    learning_rate=1e-3,
    num_steps=6,
    batch_size=4,
    output_dir=sys.argv[1],
    save_strategy="steps",
    save_steps=3,
    save_only_model=False,
    save_total_limit=None,
    logging_steps=1,
)
