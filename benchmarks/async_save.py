"""How long training stands still for a checkpoint, with ``async_save`` and without, in one process.

Run: python benchmarks/async_save.py [NUM_CHECKPOINTS]
Both kinds are saved in turn, by trainers of the same model with AdamW. Printed are wall-clock seconds from the end of
a step to the return of its save.
"""

import statistics
import sys
import tempfile
import time
import warnings

import torch
import transformers

import portico


class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return {"input_ids": list(range(8)), "labels": list(range(8))}


class StandStill(transformers.TrainerCallback):
    """Takes the time from the end of a step to what follows its checkpoint."""

    def __init__(self):
        self.seconds = []
        self.ended = 0.0

    def on_step_end(self, args, state, control, **kwargs):
        self.ended = time.perf_counter()

    def on_save(self, args, state, control, **kwargs):
        self.seconds.append(time.perf_counter() - self.ended)


def stand_still(folder, *, in_background):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=8000, n_embd=512, n_layer=8, n_head=8, n_positions=64)
    model = transformers.GPT2LMHeadModel(config)
    quiet = {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "logging_strategy": "no"}
    saving = {"save_steps": 1, "save_total_limit": 1, "async_save": in_background}
    args = portico.TrainingArguments(folder, max_steps=2, per_device_train_batch_size=2, **quiet, **saving)
    clock = StandStill()
    trainer = portico.Trainer(model, args, train_dataset=Words(), callbacks=[clock])
    trainer.remove_callback(transformers.PrinterCallback)
    trainer.train()
    return clock.seconds[0], sum(parameter.numel() for parameter in model.parameters())


def main(count):
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    taken = {True: [], False: []}
    for _ in range(count):
        for in_background in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                seconds, size = stand_still(folder, in_background=in_background)
                taken[in_background].append(seconds)
    later, at_once = (statistics.median(taken[kind]) for kind in (True, False))
    print(f"{size * 12 / 1e6:.0f} MB of weights and optimizer, {count} checkpoints of each kind, medians:")
    print(f"at once {at_once:.2f} s, async_save {later:.2f} s, a part of {later / at_once:.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
