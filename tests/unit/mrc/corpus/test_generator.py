import hashlib
import json
import random
import re
from collections import Counter

import pytest

from mrc_data import to_squad
from portico.errors import InputError
from portico.mrc.corpus import generate
from portico.mrc.corpus.generator import ValueMaker, is_validation_name, load_templates
from portico.mrc.datasets import read_squad

TOPICS = load_templates().topics


@pytest.fixture(scope="module")
def corpus():
    return generate(num_train=3000, num_validation=800, seed=7)


@pytest.fixture(scope="module")
def train(corpus):
    return corpus[0]


@pytest.fixture(scope="module")
def validation(corpus):
    return corpus[1]


def digest(examples):
    return hashlib.sha256(json.dumps(examples).encode()).hexdigest()


def proper_words(examples):
    return {word for example in examples for word in re.findall(r"\w+", example["context"]) if word[0].isupper()}


@pytest.mark.parametrize("name", ["num_train", "num_validation"])
def test_negative_sizes_are_refused(name):
    sizes = {"num_train": 1, "num_validation": 1} | {name: -3}
    with pytest.raises(InputError, match=f"`{name}=-3` is negative; set it to the number of questions"):
        generate(**sizes, seed=0)


def test_sizes_are_as_requested_and_every_answer_is_at_its_offset(train, validation):
    assert (len(train), len(validation)) == (3000, 800)
    for example in train + validation:
        texts, starts = example["answers"]["text"], example["answers"]["answer_start"]
        assert len(texts) == len(starts) <= 1
        for text, start in zip(texts, starts, strict=True):
            assert text
            assert example["context"][start : start + len(text)] == text


def test_same_seed_gives_the_same_corpus_and_another_seed_another(train):
    again, _ = generate(num_train=3000, num_validation=0, seed=7)
    other, _ = generate(num_train=3000, num_validation=0, seed=8)
    assert again == train
    assert digest(other) != digest(train)


def test_global_random_state_is_not_touched():
    random.seed(1)
    before = random.getstate()
    generate(num_train=20, num_validation=5, seed=0)
    assert random.getstate() == before


def test_a_larger_corpus_starts_with_the_smaller_one(train):
    assert generate(num_train=100, num_validation=0, seed=7)[0] == train[:100]


def common_words():
    """Capitalised words of the templates, such as months and the openings of sentences."""
    templates = []
    for topic in TOPICS:
        templates += [*topic.asides, *topic.pronouns, topic.article]
        for told in (*topic.relations, *topic.comparisons):
            templates += told.sentences
    words = load_templates().words
    forms = [
        form for name in ("months", "place_forms", "organisation_forms", "adjectives", "nouns") for form in words[name]
    ]
    return set(re.findall(r"\w+", " ".join(templates + forms)))


def test_names_are_disjoint_from_those_of_any_training_set(train, validation):
    other_train, _ = generate(num_train=3000, num_validation=0, seed=123)
    names = proper_words(validation) - common_words()
    assert len(names) > 500
    assert not names & proper_words(train + other_train)


def test_names_are_of_the_requested_split():
    for validation in (True, False):
        maker = ValueMaker(random.Random(0), validation=validation)
        assert {is_validation_name(maker.name()) for _ in range(200)} == {validation}


def test_the_corpus_of_a_seed_never_changes():
    """Scores can be compared with those of any other version; nor does it depend on the hash seed of the process."""
    assert digest(generate(num_train=100, num_validation=37, seed=0)) == (
        "186cc991de7ec9b010c78e33ff32edfd9fffcbed4af0acd62825649b50613a84"
    )


def test_question_types_and_unanswerable_share(train):
    types = Counter(example["question_type"] for example in train)
    assert {"person", "place", "organisation", "date", "count", "comparison"} <= set(types)
    assert min(types.values()) > 0.01 * len(train)
    assert 0.25 < sum(not example["answers"]["text"] for example in train) / len(train) < 0.33


def test_passages_have_four_to_eight_sentences(train):
    num_sentences = Counter(example["context"].count(".") for example in train)
    assert min(num_sentences) >= 4
    assert max(num_sentences) <= 8


def test_answers_have_several_lengths_and_positions(train):
    answered = [example for example in train if example["answers"]["text"]]
    lengths = Counter(len(example["answers"]["text"][0].split()) for example in answered)
    assert {1, 2, 3, 4} <= set(lengths)
    first_half = sum(example["answers"]["answer_start"][0] < len(example["context"]) / 2 for example in answered)
    assert 0.35 < first_half / len(answered) < 0.65


def test_passages_hold_a_distractor_of_the_same_type(train):
    by_context = {}
    for example in train:
        by_context.setdefault(example["context"], []).append(example)
    rivals = sum(
        len({example["answers"]["text"][0] for example in group if example["answers"]["text"]}) > 1
        for group in by_context.values()
        if len({example["question_type"] for example in group}) < len(group)
    )
    assert rivals > 100


def test_some_unanswerable_questions_name_a_subject_of_the_passage(train):
    unanswerable = [example for example in train if not example["answers"]["text"]]
    about_subject = [
        example
        for example in unanswerable
        if any(subject in example["question"] for subject in example["title"].split(" and "))
    ]
    assert 0.6 < len(about_subject) / len(unanswerable) < 0.95


def test_names_use_several_scripts(train):
    text = "".join(example["context"] for example in train)
    assert all(re.search(script, text) for script in ("[\u0370-\u03ff]", "[\u0400-\u04ff]", "[\u00e0-\u017f]"))


@pytest.mark.parametrize("topic", TOPICS, ids=lambda topic: topic.subject)
def test_every_template_has_its_slots_and_every_relation_several_wordings(topic):
    assert topic.short_name in ("last_word", "full_name")
    for relation in topic.relations:
        assert all(template.count("{value}") == 1 and "{subject}" not in template for template in relation.predicates)
        assert all(template.count("{value}") == template.count("{subject}") == 1 for template in relation.sentences)
        assert all(template.count("{subject}") == 1 for template in relation.questions)
        assert len(relation.predicates) + len(relation.sentences) >= 4
        assert len(relation.questions) >= 3


def test_corpus_is_read_back_from_a_squad_file(validation, tmp_path):
    (tmp_path / "squad.json").write_text(json.dumps(to_squad(validation)), encoding="utf-8")
    assert read_squad(tmp_path / "squad.json") == validation
