import pytest
import torch
from torch.nn.functional import kl_div, mse_loss
from transformers import BertConfig, BertForQuestionAnswering

from portico import InputError, Trainer, TrainingArguments
from portico.mrc import EXTRACTIVE_HEAD, Distillation, DistillationMixin, ModelForDownstreamTasks
from portico.mrc.distillation import build_teacher_arguments, load_teacher

SHAPE = {
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "vocab_size": 40,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


class DistillingTrainer(DistillationMixin, Trainer):
    pass


def reader(seed=0, **fields):
    torch.manual_seed(seed)
    return BertForQuestionAnswering(BertConfig(**{**SHAPE, **fields}))


def rows(count=8):
    tokens = torch.randint(5, 40, (count, 6), generator=torch.Generator().manual_seed(2))
    return [{"input_ids": row, "start_positions": 1, "end_positions": 2} for row in tokens]


def trainer(tmp_path, model=None, **options):
    args = TrainingArguments(
        str(tmp_path), max_steps=2, learning_rate=1e-2, report_to="none", disable_tqdm=True, use_cpu=True
    )
    return DistillingTrainer(model or reader(), args, train_dataset=rows(), eval_dataset=rows(), **options)


def logits(seed):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(2, 6, generator=generator) for name in ("start_logits", "end_logits")}


LABEL_LOSS = torch.tensor(3.0)


@pytest.mark.parametrize(
    ("kind", "part"),
    [
        ("mse", lambda student, teacher: mse_loss(student, teacher / 2)),
        ("kl", lambda s, t: 4 * kl_div((s / 2).log_softmax(-1), (t / 2).softmax(-1), reduction="batchmean")),
    ],
    ids=["mse", "kl"],
)
def test_the_loss_compares_with_the_teacher_at_the_temperature(kind, part):
    student, teacher = logits(0), logits(1)
    expected = sum(part(student[name], teacher[name]) for name in student) / 2
    torch.testing.assert_close(Distillation(kind, temperature=2.0)(LABEL_LOSS, student, teacher), expected)
    assert Distillation(kind)(LABEL_LOSS, student, student) == 0


@pytest.mark.parametrize("kind", ["mse", "kl"])
def test_the_label_loss_has_the_remaining_weight(kind):
    student, teacher = logits(0), logits(1)
    alone = Distillation(kind)(LABEL_LOSS, student, teacher)
    mixed = Distillation(kind, weight=0.25)(LABEL_LOSS, student, teacher)
    torch.testing.assert_close(mixed, 0.25 * alone + 0.75 * LABEL_LOSS)
    assert Distillation(kind, weight=0)(LABEL_LOSS, student, teacher) == LABEL_LOSS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "cosine"}, "loss 'cosine' is unknown; set it to 'mse' or 'kl'"),
        ({"temperature": 0.0}, r"temperature 0.0 is not positive and finite; set it above 0"),
        ({"temperature": float("nan")}, "temperature nan is not positive"),
        ({"temperature": float("inf")}, "temperature inf is not positive and finite"),
        ({"weight": 1.5}, r"weight 1.5 is out of range; set it between 0 and 1"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Distillation(**options)


def test_a_student_approaches_its_teacher(tmp_path):
    teacher = reader(seed=1)
    before = {name: value.clone() for name, value in teacher.state_dict().items()}
    one = trainer(tmp_path, teacher=teacher)
    one.args.max_steps = 30
    one.train()
    assert one.state.log_history[-1]["train_loss"] > 0
    inputs = {"input_ids": torch.stack([row["input_ids"] for row in rows()])}
    with torch.no_grad():
        taught, untaught, wanted = (model.eval()(**inputs).start_logits for model in (one.model, reader(), teacher))
    assert mse_loss(taught, wanted) < mse_loss(untaught, wanted) / 2
    assert all(torch.equal(value, before[name]) for name, value in teacher.state_dict().items())


def test_a_student_that_is_its_teacher_learns_nothing(tmp_path):
    one = trainer(tmp_path, teacher=reader())
    assert one.train().training_loss == 0
    unchanged = reader().state_dict()
    assert all(torch.equal(value, unchanged[name]) for name, value in one.model.state_dict().items())


def test_the_evaluation_loss_is_that_of_the_labels(tmp_path):
    assert trainer(tmp_path, teacher=reader(1)).evaluate()["eval_loss"] == trainer(tmp_path).evaluate()["eval_loss"]


def test_training_without_a_teacher_is_unchanged(tmp_path):
    plain = Trainer(reader(), trainer(tmp_path).args, train_dataset=rows())
    assert trainer(tmp_path).train().training_loss == plain.train().training_loss


def test_a_teacher_without_start_and_end_logits_is_refused(tmp_path):
    class Silent(torch.nn.Module):
        def forward(self, input_ids):
            return {"logits": input_ids}

    with pytest.raises(InputError, match="start and end logits, which the teacher does not return"):
        trainer(tmp_path, teacher=Silent()).train()


def test_a_teacher_gets_the_heads_of_the_student(tmp_path):
    config = BertConfig(**SHAPE)
    student = ModelForDownstreamTasks.from_config(config, task_heads=EXTRACTIVE_HEAD)
    student.set_task_head("qa_head")
    student.save_pretrained(tmp_path / "heads")
    teacher = load_teacher(tmp_path / "heads", student=student)
    assert type(teacher.task_head) is type(student.task_head)
    assert not teacher.training
    assert not any(weight.requires_grad for weight in teacher.parameters())
    assert type(load_teacher(tmp_path / "heads", student=reader())).__name__ == "BertModelForDownstreamTasks"
    reader().save_pretrained(tmp_path / "plain")
    assert isinstance(load_teacher(tmp_path / "plain", tmp_path / "plain", student=reader()), BertForQuestionAnswering)


def test_a_missing_teacher_and_one_with_another_vocabulary_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"`model.teacher=.*nowhere` does not exist"):
        load_teacher(str(tmp_path / "nowhere"), student=reader())
    reader(vocab_size=50).save_pretrained(tmp_path)
    with pytest.raises(InputError, match="has 50 tokens and the student 40"):
        load_teacher(tmp_path, student=reader())


def test_settings_choose_teacher_and_loss(tmp_path):
    reader().save_pretrained(tmp_path)
    assert build_teacher_arguments({"teacher": None, "distillation_loss": None}, reader()) == {}
    with pytest.raises(InputError, match=r"`model.distillation_loss=kl` needs a teacher; set `model.teacher`"):
        build_teacher_arguments({"teacher": None, "distillation_loss": "kl"}, reader())
    model = {"teacher": str(tmp_path), "distillation_loss": "kl", "distillation_temperature": 3.0}
    parts = build_teacher_arguments(model, reader())
    assert parts["distillation"] == Distillation("kl", temperature=3.0, weight=1.0)
    assert isinstance(parts["teacher"], BertForQuestionAnswering)
