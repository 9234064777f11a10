import pytest

from portico.cli.keys import check_groups, check_keys, suggestion
from portico.errors import InputError

VALID = {"args": ["learning_rate", "seed"], "preprocess": ["doc_stride"]}


def test_valid_settings_pass():
    check_keys({"args": {"seed": 1}, "preprocess": None, "trainer": {"run": "a.b"}}, VALID)


def test_all_unknown_keys_are_named_at_once():
    with pytest.raises(InputError, match=r"'paths.output' is not .*paths.output_dir.* 'args.sed' is not .*args.seed"):
        check_keys({"args": {"sed": 1}, "paths": {"output": "x"}}, VALID)


def test_a_key_of_another_group_is_found_by_its_last_part():
    with pytest.raises(InputError, match=r"nearest valid names are: preprocess.doc_stride"):
        check_keys({"args": {"doc_stride": 1}}, VALID)


def test_groups_without_fixed_keys_are_free():
    check_keys({"callbacks": {"anything": {}}}, VALID)


def test_group_that_the_runner_does_not_take():
    with pytest.raises(InputError, match=r"'modle' is not a setting; the nearest valid names are: mode, model\."):
        check_groups({"modle": {}, "name": "x", "args": {}}, ["args", "model"])


def test_no_suggestion_when_nothing_is_near():
    assert suggestion("qqq", ["args", "model"]) == "."
