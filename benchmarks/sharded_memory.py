r"""Peak resident memory of each process that loads a model and makes a step, whole and sharded.

Run: MALLOC_MMAP_THRESHOLD_=1048576 torchrun --standalone --nproc_per_node 2 \
         benchmarks/sharded_memory.py {whole,read,meta} FOLDER [sgd,adamw_torch]
The first run writes a model of about 0.7 GB into FOLDER. ``whole`` trains it with `strategy="ddp"`; ``read`` shards
what each process has read whole; under ``meta`` each process reads its part only. The bound of loading is a share of
the model, its largest layer, and a constant. That of training is a share for each of weights, gradients and moments of
the optimizer, and six times the largest unit: weights of the model's own, which stay whole during a step, and of a
layer, its gradients, and the buffers of both collectives. Without the variable the allocator of glibc keeps what was
freed: buffers of all sizes lie between parameters.
"""

import os
import sys
import time
import warnings
from pathlib import Path

import torch
import transformers
from process_memory import MEBIBYTE, forget_peak, peak, resident

import portico

SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 12, "num_attention_heads": 16}
CONSTANT = 64  # MiB
COPIES = {"sgd": 2, "adamw_torch": 4}  # weights, gradients, moments


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        return {"input_ids": list(range(8)), "labels": list(range(8))}


def main(kind, folder, optimizer="sgd"):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    if rank == 0 and not (folder / "config.json").is_file():
        config = transformers.LlamaConfig(vocab_size=8000, **SIZES)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    while not (folder / "model.safetensors").is_file():
        time.sleep(1)
    strategy = {"strategy": "ddp"} if kind == "whole" else {"fsdp": True}
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "per_device_eval_batch_size": 1}
    args = portico.TrainingArguments(
        str(folder / "run"), max_steps=3, optim=optimizer, save_strategy="no", **quiet, **strategy
    )
    before = resident()
    forget_peak()
    if kind == "meta":
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    trainer = portico.Trainer(model, args, train_dataset=Words(), eval_dataset=Words())
    trainer.module.shard_model(trainer.lightning_trainer.strategy)
    loaded = peak() - before
    trainer.evaluate()
    evaluated = peak() - before
    forget_peak()
    trainer.train()
    trained = peak() - before
    inner = {id(parameter) for layer in model.model.layers for parameter in layer.parameters()}
    own = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in inner)
    layers = [sum(one.numel() for one in layer.parameters()) for layer in [*model.model.layers, model.lm_head]]
    total = model.num_parameters() * 4 / MEBIBYTE
    largest, share = max(layers) * 4 / MEBIBYTE, total / (1 if kind == "whole" else trainer.args.world_size)
    bound = COPIES[optimizer] * share + 6 * max(largest, own * 4 / MEBIBYTE) + CONSTANT
    print(
        f"{kind} rank {rank}: model {total:.0f} MiB, share {share:.0f}, largest layer {largest:.0f}; peak above the "
        f"start {loaded:.0f} loaded (bound {share + largest + CONSTANT:.0f}), {evaluated:.0f} evaluated, "
        f"{trained:.0f} in steps with {optimizer} (bound {bound:.0f})",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) < 3 or "RANK" not in os.environ:
        sys.exit(__doc__)
    main(sys.argv[1], Path(sys.argv[2]), *sys.argv[3:])
