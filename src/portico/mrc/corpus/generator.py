from random import Random
from typing import TypedDict

from portico.errors import InputError
from portico.mrc.corpus.passage import Passage, write_passage
from portico.mrc.corpus.questions import Question, ask_questions
from portico.mrc.corpus.topics import TOPICS
from portico.mrc.corpus.values import ValueMaker

DRAWS_PER_PASSAGE = 5


class Answers(TypedDict):
    """The gold answers of an example: texts and character offsets, both empty if there is none."""

    text: list[str]
    answer_start: list[int]


class Example(TypedDict):
    """One question with its passage, as a flat SQuAD record."""

    id: str
    title: str
    context: str
    question: str
    answers: Answers
    question_type: str


def generate(*, num_train: int, num_validation: int, seed: int) -> tuple[list[Example], list[Example]]:
    """Generate an extractive question answering corpus.

    The same arguments give the same corpus everywhere. No name of a person, place or organisation in the validation
    examples occurs in any training examples, whatever their seeds.

    Args:
        num_train: Number of training questions.
        num_validation: Number of validation questions.
        seed: Seed of every choice; the global random state is not touched.

    Returns:
        The training and the validation examples. Offsets count characters.

    Raises:
        InputError: If a number is negative.
    """
    for name, number in (("num_train", num_train), ("num_validation", num_validation)):
        if number < 0:
            raise InputError(f"`{name}={number}` is negative; set it to the number of questions wanted, 0 or more.")
    return (
        _generate_side("train", num_train, seed),
        _generate_side("validation", num_validation, seed),
    )


def _generate_side(side: str, num_examples: int, seed: int) -> list[Example]:
    rng = Random(f"{side}-{seed}")  # A string is hashed by SHA-512, so the stream does not depend on the hash seed.
    values = ValueMaker(rng, validation=side == "validation")
    examples: list[Example] = []
    while len(examples) < num_examples:
        passage = write_passage(rng, values, rng.choice(TOPICS))
        for question in ask_questions(rng, values, passage, DRAWS_PER_PASSAGE):
            examples.append(_example(f"{side}-{len(examples)}", passage, question))
    return examples[:num_examples]


def _example(identifier: str, passage: Passage, question: Question) -> Example:
    answers = [question.answer] if question.answer else []
    return {
        "id": identifier,
        "title": " and ".join(passage.subjects),
        "context": passage.text,
        "question": question.text,
        "answers": {"text": [span.text for span in answers], "answer_start": [span.start for span in answers]},
        "question_type": question.question_type,
    }
