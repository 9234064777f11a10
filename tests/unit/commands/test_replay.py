import math
import re
import shutil

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fresh_process import portico
from portico import Trainer, TrainingArguments
from portico.commands import replay
from portico.inspection import replay as replayed_step
from portico.observers import observe

SCRIPT = """
import torch
from models import Line, Points, toy_arguments
from portico import LossSpike  # before transformers, whose names it uses too
from transformers import Trainer, TrainingArguments, TrainerCallback


class Broken(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        # One point of the data costs far more than the others.
        if labels is not None and (x[:, 0] == Points().x[3, 0]).any():
            outputs["loss"] = outputs["loss"] * 50
        return outputs


args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=3, learning_rate=0.001)
Trainer(Broken(), args, train_dataset=Points()).train()
print("the script goes on")
"""


BY_LENGTH = """
from models import Sequences, pad_everything, tiny_gpt2, toy_arguments
from transformers import Trainer, TrainingArguments

data = Sequences(10, ragged=True)
how = {"train_sampling_strategy": "group_by_length", "save_strategy": "steps", "save_steps": 1}
args = toy_arguments("out", TrainingArguments, **how)
Trainer(tiny_gpt2(), args, train_dataset=data, data_collator=pad_everything).train()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replay")
    (folder / "script.py").write_text(SCRIPT)
    ended = portico("run", "script.py", folder=folder)
    assert ended.returncode == 0, ended.stderr
    return folder


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_opens_the_step_of_the_spike(folder):
    before = files(folder / "out")
    ended = portico("replay", "script.py", "--from-spike", "--report", "step.html", folder=folder)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the script goes on" not in ended.stdout
    assert files(folder / "out") == before
    assert re.search(r"Step \d+\. Replayed from .*; the loss logged at step \d+ is the recorded one", ended.stdout)
    index, loss, share = re.search(r"│ (\d+) +│ (\S+) +│ (\S+)% ", ended.stdout).groups()
    assert index == "3"
    assert float(share) > 80
    assert math.isfinite(float(loss))
    assert "│ linear │" in ended.stdout
    assert "first output that is not finite: none" in ended.stdout
    page = (folder / "step.html").read_text(encoding="utf-8")
    assert "<td>3</td>" in page
    assert "Training step" in page


def test_share_of_an_example_counts_its_labels(tmp_path):
    size = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=9, max_position_embeddings=16, **size))
    texts = [torch.arange(1, 9), torch.tensor([1, 2, 3]), torch.tensor([4, 5])]
    unlabelled = torch.tensor([-100, -100])  # its loss by itself is nan
    labels = [*texts[:2], unlabelled]

    def collate(batch):
        padded = [
            torch.nn.utils.rnn.pad_sequence(column, True, value) for column, value in ((texts, 0), (labels, -100))
        ]
        return {"input_ids": padded[0], "labels": padded[1]}

    args = TrainingArguments(tmp_path / "out", max_steps=1, per_device_train_batch_size=3, report_to="none")
    step = replayed_step.Replay(1, tmp_path / "replay")
    with observe(step), pytest.raises(replayed_step.StepReplayed):
        Trainer(model, args, train_dataset=[{"input_ids": text} for text in texts], data_collator=collate).train()
    long, short, unlabelled = step.step.examples
    assert (long.num_labels, short.num_labels, unlabelled.num_labels) == (7, 2, 0)
    assert long.share == pytest.approx(7 * long.loss / (7 * long.loss + 2 * short.loss))
    assert (unlabelled.share, math.isnan(unlabelled.loss)) == (0.0, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--step", "99"], "out recorded a training of 10 steps; name one of them with --step."),
        (["--step", "0"], "error: `--step 0` is not positive"),
        ([], "error: `--step N` and `--from-spike` are both given, or neither; give one of them."),
        (["--step", "5", "--report", "none/step.html"], "`--report none/step.html` cannot be written; name a file in"),
    ],
)
def test_bad_input(arguments, message, folder):
    ended = portico("replay", "script.py", *arguments, folder=folder)
    assert ended.returncode == 1
    assert message in ended.stderr


@pytest.mark.slow
def test_every_step_has_the_examples_and_the_loss_of_the_run(folder):
    for step in (1, 5, 6, 10):
        ended = portico("replay", "script.py", f"--step={step}", folder=folder)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"the loss logged at step {step} is the recorded one" in ended.stdout
        assert len(re.findall(r"│ \d+ +│ \S+ +│ \S+% ", ended.stdout)) == 2


HOOKED = """
import torch
from models import ToyDataset, tiny_bert, toy_arguments
from {library} import Trainer, TrainingArguments


class OwnLoss(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **options):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


def adapted(model, args, **parts):
    import peft

    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2)
    return Trainer(peft.get_peft_model(model, config), args, **parts)


args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=3, {options})
{trainer}(tiny_bert(), args, train_dataset=ToyDataset()).train()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "trainer"),
    [
        ("gradient_checkpointing=True", "Trainer"),
        ("gradient_checkpointing=True, gradient_checkpointing_kwargs={'use_reentrant': True}", "Trainer"),
        ("bf16=True, label_smoothing_factor=0.1", "Trainer"),
        ("gradient_accumulation_steps=2", "OwnLoss"),
        ("torch_compile=True", "Trainer"),
        ("", "adapted"),
        ("", "portico.Trainer"),
    ],
)
def test_opens_a_step_of_models_whose_forward_is_hooked(options, trainer, tmp_path):
    if trainer == "adapted":
        pytest.importorskip("peft", reason="install it with pip install 'portico[clients]'")
    library = "portico" if trainer == "portico.Trainer" else "transformers"
    trainer = trainer.removeprefix("portico.")
    (tmp_path / "script.py").write_text(HOOKED.format(options=options, trainer=trainer, library=library))
    assert portico("run", "script.py", folder=tmp_path).returncode == 0
    ended = portico("replay", "script.py", "--step=4", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the loss logged at step 4 is the recorded one" in ended.stdout
    assert "replayed_step.py" not in ended.stderr  # of which the compiler would warn


NOT_FINITE = """
import torch
from models import Points, toy_arguments
from transformers import Trainer, TrainingArguments


class Root(torch.nn.Module):
    def forward(self, x):
        return x.sqrt() if {condition} else x


class Rooted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.root, self.last = torch.nn.Linear(3, 4), Root(), torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        y = self.last(self.root(self.first(x)))
        return {{"loss": ((y - labels) ** 2).mean(), "logits": y}}


torch.manual_seed(0)
args = toy_arguments(
    "out", TrainingArguments, save_strategy="steps", save_steps=2, gradient_accumulation_steps=2, learning_rate=0.01
)
Trainer(Rooted(), args, train_dataset=Points(24)).train()
"""


@pytest.mark.slow
def test_names_the_first_module_with_an_output_that_is_not_finite(tmp_path):
    (tmp_path / "script.py").write_text(NOT_FINITE.format(condition="(x < -1.5).any()"))
    assert portico("run", "script.py", folder=tmp_path).returncode == 0
    ended = portico("replay", "script.py", "--from-spike", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "first output that is not finite: root (Root)" in ended.stdout
    # The example whose loss is not finite comes first.
    assert re.search(r"│ (\d+) +│ (\S+) ", ended.stdout).group(2) == "nan"
    assert re.search(r"x \[\[?-?\d\.\d{1,4}[],]", ended.stdout)


@pytest.mark.slow
def test_opens_a_step_of_two_processes_with_accumulation(tmp_path):
    (tmp_path / "script.py").write_text(NOT_FINITE.format(condition="False"))
    options = ("--strategy", "ddp", "--devices", "2")
    assert portico("run", *options, "script.py", folder=tmp_path).returncode == 0
    before = files(tmp_path / "out")
    ended = portico("replay", *options, "script.py", "--step", "5", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Replayed from out/checkpoint-4; the loss logged at step 5 is the recorded one" in ended.stdout
    assert "examples: 8" in ended.stdout
    indices = re.findall(r"│ (\d+) +│ \S+ +│ \S+% ", ended.stdout)
    assert len(set(indices)) == 8
    assert files(tmp_path / "out") == before


STARTS_PROCESSES = """
import os, subprocess, sys
from models import Line, Points, toy_arguments


def train(rank=None):
    if rank is not None:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"}
    from transformers import Trainer, TrainingArguments
    args = toy_arguments("out", TrainingArguments, save_strategy="steps", save_steps=3)
    Trainer(Line(), args, train_dataset=Points()).train()


if "RANK" in os.environ:
    train()
elif __name__ == "__main__":
    WAY
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "way",
    [
        "from accelerate import debug_launcher; debug_launcher(train, num_processes=2)",
        "os.environ['MASTER_PORT'] = '29617'; import torch.multiprocessing as mp; mp.spawn(train, nprocs=2)",
        "run = [sys.executable, '-m', 'torch.distributed.run', '--standalone', '--nproc_per_node', '2', __file__]; "
        "subprocess.run(run, check=True)",
    ],
)
def test_opens_a_step_of_processes_that_the_script_starts(way, tmp_path):
    (tmp_path / "script.py").write_text(STARTS_PROCESSES.replace("WAY", way))
    assert portico("run", "script.py", folder=tmp_path).returncode == 0
    ended = portico("replay", "script.py", "--step", "5", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Replayed from out/checkpoint-3; the loss logged at step 5 is the recorded one" in ended.stdout
    assert "examples: 4" in ended.stdout


ROLLED_BACK = """
import torch
from models import Line, Points, toy_arguments
from portico import LossSpike
from transformers import Trainer, TrainingArguments, TrainerCallback


class Jumping(Line):
    def forward(self, x, labels=None):
        outputs = super().forward(x, labels)
        outputs["loss"] = outputs["loss"] * (1000 if trainer.state.global_step == 6 else 1)
        return outputs


args = toy_arguments("out", TrainingArguments, save_strategy="steps", learning_rate=0.001, {arguments})
trainer = Trainer(Jumping(), args, train_dataset=Points(), callbacks=[LossSpike("rollback")])
trainer.train()
"""


@pytest.mark.slow
def test_repeats_a_rollback(tmp_path):
    (tmp_path / "script.py").write_text(ROLLED_BACK.format(arguments="save_steps=5"))
    ended = portico("run", "script.py", folder=tmp_path)
    assert "Weights and optimizer are restored from out/checkpoint-5" in ended.stderr, ended.stderr
    before = files(tmp_path / "out")
    ended = portico("replay", "script.py", "--step", "9", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Replayed from out/checkpoint-5; the loss logged at step 9 is the recorded one" in ended.stdout
    # The checkpoint that it was rolled back to is gone: the replay writes it again.
    shutil.rmtree(tmp_path / "out/checkpoint-5")
    ended = portico("replay", "script.py", "--step", "9", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "since no checkpoint precedes it; the loss logged at step 9 is the recorded one" in ended.stdout
    assert files(tmp_path / "out").items() <= before.items()


@pytest.mark.slow
@pytest.mark.parametrize("action", ["report", "rollback"])
def test_compares_a_logged_mean_of_several_steps(action, tmp_path):
    script = ROLLED_BACK.format(arguments="save_steps=2, logging_steps=3, max_steps=15")
    (tmp_path / "script.py").write_text(script.replace("rollback", action))
    ended = portico("run", "script.py", folder=tmp_path)
    assert ("Weights and optimizer are restored from out/checkpoint-6" in ended.stderr) == (action == "rollback")
    # Checkpoint 10 is nearer, but the loss logged at step 12 is the mean from step 10 on.
    ended = portico("replay", "script.py", "--step", "11", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    start = {"report": 8, "rollback": 6}[action]
    assert f"from out/checkpoint-{start}; the loss logged at step 12 is the recorded one" in ended.stdout
    # No checkpoint precedes the first logged loss.
    shutil.rmtree(tmp_path / "out/checkpoint-4")
    ended = portico("replay", "script.py", "--step", "3", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    told = {"report": "the run recorded no loss of the replayed steps alone", "rollback": "step 3 is the recorded one"}
    assert told[action] in ended.stdout


@pytest.mark.slow
def test_opens_a_step_of_a_folder_of_train(tmp_path):
    changes = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2, "logging_steps": 1, "eval_strategy": "no"}
    changes["load_best_model_at_end"] = False
    overrides = [f"++args.{name}={value}" for name, value in changes.items()]
    ended = portico("train", "+experiment=causal_lm", *overrides, "paths.output_dir=run", folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    before = files(tmp_path / "run")
    ended = portico("replay", "run", "--step", "5", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Replayed from run/checkpoint-4; the loss logged at step 5 is the recorded one" in ended.stdout
    assert files(tmp_path / "run") == before


def test_a_folder_without_a_configuration_and_options_of_scripts_are_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("[]")
    with pytest.raises(SystemExit):
        replay.main([".", "--step", "1"])
    assert (
        "config.yaml: no configuration of `portico train`; give the folder of one of its runs."
        in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        replay.main(["--devices", "2", ".", "--step", "1"])
    assert "a folder is replayed as its config.yaml says" in capsys.readouterr().err


def test_a_run_by_length_is_replayed_inside_an_epoch_without_any_setting(tmp_path):
    """The checkpoint holds the states from which the order was drawn, whatever the corrections of the run."""
    (tmp_path / "script.py").write_text(BY_LENGTH)
    assert portico("run", "script.py", folder=tmp_path).returncode == 0
    ended = portico("replay", "script.py", "--step", "8", folder=tmp_path)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "the loss logged at step 8 is the recorded one" in " ".join(ended.stdout.split())
    (tmp_path / "out" / "checkpoint-7" / "portico_epoch_start.pth").unlink()
    (tmp_path / "out" / "checkpoint-7" / "portico_manifest.json").unlink()
    ended = portico("replay", "script.py", "--step", "8", folder=tmp_path)
    assert ended.returncode == 1
    assert "does not hold the random states from which its order was drawn" in " ".join(ended.stdout.split())


@pytest.mark.slow
def test_a_run_whose_strategy_launches_workers_is_named(tmp_path):
    small = ("hidden_size=16", "num_hidden_layers=1", "num_attention_heads=2", "intermediate_size=16")
    options = ("strategy=cpu", "strategy.strategy=ddp_spawn", "strategy.devices=2", "paths.output_dir=run")
    model = [f"model.{size}" for size in small]
    ended = portico("train", "+experiment=mrc", "debug=default", *model, *options, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    ended = portico("replay", "run", "--step", "2", "--trust-config", folder=tmp_path)
    assert ended.returncode == 1
    assert "run trains in processes that `strategy=ddp_spawn` starts for the call" in ended.stderr
