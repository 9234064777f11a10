import datasets

from portico.mrc.datasets.examples import column, join_contexts

EXAMPLE = {
    "id": "a",
    "context": ["Oslo", "Rome", "Bern"],
    "question": "where",
    "answers": {"text": ["Rome", "ern"], "answer_start": [0, 1]},
    "target": {
        "start_positions": [0, -1, 1],
        "end_positions": [4, -1, 4],
        "passage_indices": [1, 0, 2],
        "yes_no_answer": ["NONE", "YES", "NONE"],
    },
}


def test_join_contexts_shifts_the_answers():
    joined = join_contexts(EXAMPLE)
    assert joined["context"] == "Oslo\n\nRome\n\nBern"
    for text, start in zip(*joined["answers"].values(), strict=True):
        assert joined["context"].startswith(text, start)
    assert join_contexts(joined) is joined


def test_column_of_a_list_and_of_a_dataset_are_equal():
    examples = [EXAMPLE, {**EXAMPLE, "id": "b"}]
    for name in EXAMPLE:
        assert column(datasets.Dataset.from_list(examples), name) == column(examples, name)
