import pytest

from portico.cli.folders import check_folder_settings, claim, recorded_config, removed_if_refused
from portico.errors import InputError


def settings(*, overwrite=False, **args):
    return {"args": args, "overwrite": overwrite}


@pytest.fixture
def used(tmp_path):
    """A folder with a run and the user's own file."""
    for name in ("config.yaml", "all_results.json", "checkpoint-8/model.safetensors", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def test_folder_with_other_files_is_free(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    claim(tmp_path, settings())


@pytest.mark.parametrize("sign", ["config.yaml", "all_results.json", "trainer_state.json", "checkpoint-100"])
def test_each_sign_of_a_run_takes_the_folder(tmp_path, sign):
    (tmp_path / sign).mkdir()
    with pytest.raises(InputError, match=rf"already holds a run \({sign}\)\. Choose .*paths\.output_dir.*overwrite"):
        claim(tmp_path, settings())


@pytest.mark.parametrize("checkpoint", [True, "checkpoint-8"])
def test_resume_continues_in_the_folder(used, checkpoint):
    checkpoint = checkpoint if checkpoint is True else str(used / checkpoint)
    claim(used, settings(resume_from_checkpoint=checkpoint))
    assert (used / "checkpoint-8").exists()


@pytest.mark.parametrize("checkpoint", [False, None, "elsewhere/checkpoint-8"])
def test_resume_from_elsewhere_does_not_open_the_folder(used, checkpoint):
    with pytest.raises(InputError, match="already holds a run"):
        claim(used, settings(resume_from_checkpoint=checkpoint))


def test_overwrite_moves_the_run_aside_and_deletes_nothing(used):
    claim(used, settings(overwrite=True))
    assert sorted(path.name for path in used.iterdir()) == ["notes.txt", "replaced-1"]
    assert (used / "replaced-1/checkpoint-8/model.safetensors").read_text() == "checkpoint-8/model.safetensors"


def test_overwrite_twice_keeps_both(used):
    claim(used, settings(overwrite=True))
    (used / "config.yaml").write_text("second")
    claim(used, settings(overwrite=True))
    assert (used / "replaced-1/config.yaml").read_text() == "config.yaml"
    assert (used / "replaced-2/config.yaml").read_text() == "second"


def refused():
    raise InputError("no")


def run_that_writes(folder, *names):
    with recorded_config(folder, "a: 1\n"):
        assert (folder / "config.yaml").read_text() == "a: 1\n"
        for name in names:
            (folder / name).mkdir()
        refused()


def test_configuration_is_removed_when_nothing_else_was_written(tmp_path):
    with pytest.raises(InputError, match="no"):
        run_that_writes(tmp_path)
    assert not list(tmp_path.iterdir())


def test_configuration_stays_next_to_checkpoints(tmp_path):
    with pytest.raises(InputError, match="no"):
        run_that_writes(tmp_path, "checkpoint-1")
    assert (tmp_path / "config.yaml").exists()


def test_empty_folders_below_the_working_one_are_removed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs/mrc/now").mkdir(parents=True)
    (tmp_path / "outputs/other").mkdir()
    with pytest.raises(InputError), removed_if_refused(tmp_path / "outputs/mrc/now"):
        refused()
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["other"]


def test_folder_elsewhere_and_filled_folders_stay(tmp_path, monkeypatch):
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    with pytest.raises(InputError), removed_if_refused(tmp_path / "elsewhere"):
        refused()
    assert (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("overwrite", ["maybe", 1, None])
def test_overwrite_is_a_switch(overwrite):
    with pytest.raises(InputError, match=f"overwrite={overwrite} is unknown; set it to true or false"):
        check_folder_settings({"overwrite": overwrite, "name": "mrc"})


@pytest.mark.parametrize("name", ["../x", "a/b", "..", "", None])
def test_name_stays_inside_the_folder_of_all_runs(name):
    with pytest.raises(InputError, match=r"name='.*' cannot be the folder .*paths\.output_dir"):
        check_folder_settings({"overwrite": False, "name": name})
