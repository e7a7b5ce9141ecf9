"""What an address means: files in a fixed order, splits by name, and one clear message where there is nothing."""

import json
from pathlib import Path

import pytest

from streamrl.config.data_names import names_data
from streamrl.errors import ConfigError
from streamrl.tasks.data.addresses import DataFile, Hub, find


def names(address: object, use: str = "train") -> list[str]:
    found = find(str(address), use)
    assert isinstance(found, list)
    return [file.path.name for file in found]


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_a_file_a_glob_and_a_folder_give_files_in_order(tmp_path: Path) -> None:
    touch(tmp_path / "b.jsonl", tmp_path / "a.parquet", tmp_path / "deep" / "c.csv.gz", tmp_path / "README.md")
    assert find(str(tmp_path / "b.jsonl"), "train") == [DataFile(tmp_path / "b.jsonl", "jsonl")]
    assert names(tmp_path) == ["a.parquet", "b.jsonl", "c.csv.gz"]
    assert names(f"{tmp_path}/**/*.csv*") == ["c.csv.gz"]


def test_files_named_by_split_are_told_apart_as_the_hub_does(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    touch(folder / "train-00001-of-00002.parquet", folder / "train-00000-of-00002.parquet")
    touch(folder / "test-00000-of-00001.parquet", folder / "validation-00000-of-00001.parquet")
    assert names(tmp_path) == ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"]
    assert names(tmp_path, "eval") == ["test-00000-of-00001.parquet"]
    assert names(f"{tmp_path}#validation", "eval") == ["validation-00000-of-00001.parquet"]
    with pytest.raises(ConfigError, match=r"has no split 'extra'; it has .*train"):
        find(f"{tmp_path}#extra", "train")


@pytest.mark.parametrize(
    ("files", "train", "evaluation"),
    [
        (["train.jsonl", "test.jsonl", "dataset_infos.json"], ["train.jsonl"], ["test.jsonl"]),
        (["gsm8k_train.jsonl", "gsm8k_test.jsonl"], ["gsm8k_train.jsonl"], ["gsm8k_test.jsonl"]),
        (["Training.csv", "Testing.csv"], ["Training.csv"], ["Testing.csv"]),
        (["train/a.jsonl", "dev/a.jsonl", "b.jsonl"], ["a.jsonl"], ["a.jsonl"]),
        (["math.jsonl", "math-test2.jsonl"], ["math.jsonl"], ["math-test2.jsonl"]),
        (["latest.jsonl", "contrast.jsonl"], ["contrast.jsonl", "latest.jsonl"], None),
    ],
    ids=str,
)
def test_nothing_that_is_named_as_another_split_is_trained_on(
    files: list[str], train: list[str], evaluation: list[str] | None, tmp_path: Path
) -> None:
    touch(*(tmp_path / name for name in files))
    assert names(tmp_path) == train
    if evaluation is not None:
        assert names(tmp_path, "eval") == evaluation


def test_a_split_of_a_file_is_refused_and_a_file_may_have_the_mark_in_its_name(tmp_path: Path) -> None:
    touch(tmp_path / "a.jsonl", tmp_path / "a#1.jsonl")
    for address in (tmp_path / "a.jsonl#test", tmp_path / "*.jsonl#test"):
        with pytest.raises(ConfigError, match="has no splits, and #test names one; leave it out"):
            find(str(address), "train")
    assert names(tmp_path / "a#1.jsonl") == ["a#1.jsonl"]


def test_a_file_that_links_lead_to_in_circles_is_read_once(tmp_path: Path) -> None:
    touch(tmp_path / "b.jsonl", tmp_path / "c.jsonl")
    (tmp_path / "again").symlink_to(tmp_path)
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert find(f"{tmp_path}/**/*.jsonl", "train") == [
        DataFile(tmp_path / "b.jsonl", "jsonl"),
        DataFile(tmp_path / "c.jsonl", "jsonl"),
    ]


def test_what_datasets_saved_is_read_by_what_it_says(tmp_path: Path) -> None:
    (tmp_path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    for split in ("train", "test"):
        touch(tmp_path / split / "data-00000-of-00001.arrow", tmp_path / split / "cache-1.arrow")
        state = {"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}
        (tmp_path / split / "state.json").write_text(json.dumps(state))
    (file,) = find(str(tmp_path), "eval")
    assert file == DataFile(tmp_path / "test" / "data-00000-of-00001.arrow", "arrow")
    assert names(tmp_path / "train") == ["data-00000-of-00001.arrow"]
    (tmp_path / "train" / "data-00000-of-00001.arrow").unlink()
    with pytest.raises(ConfigError, match=r"data-00000-of-00001.arrow is missing"):
        find(str(tmp_path), "train")


@pytest.mark.parametrize(
    ("address", "hub"),
    [
        ("hf:openai/gsm8k", Hub("openai/gsm8k", None, "")),
        ("hf:openai/gsm8k/main#test", Hub("openai/gsm8k", "main", "test")),
        ("hf:squad#train", Hub("squad", None, "train")),
    ],
)
def test_a_name_of_the_hub(address: str, hub: Hub) -> None:
    assert find(address, "train") == hub


def test_an_address_with_nothing_behind_it_is_refused_with_what_is_near(tmp_path: Path) -> None:
    touch(tmp_path / "train.jsonl", tmp_path / "empty" / "notes.txt")
    with pytest.raises(ConfigError, match=r"no such file, folder or glob \(.* has train.jsonl\)"):
        find(str(tmp_path / "trian.jsonl"), "train")
    with pytest.raises(ConfigError, match="is no folder"):
        find(str(tmp_path / "nowhere" / "a.jsonl"), "train")
    with pytest.raises(ConfigError, match=r"the folder has no file of .*\.jsonl"):
        find(str(tmp_path / "empty"), "train")
    with pytest.raises(ConfigError, match=r"notes.txt is none of .*\.jsonl"):
        find(str(tmp_path / "empty" / "notes.txt"), "train")
    with pytest.raises(ConfigError, match="names no data set"):
        find("hf:a/b/c/d", "train")


@pytest.mark.parametrize("name", ["a.jsonl", "x/y", "*.parquet", "hf:a/b", "a.csv.gz", "a#1.jsonl", "data#train/x"])
def test_names_that_are_data(name: str) -> None:
    assert names_data(name) == (name != "data#train/x")


@pytest.mark.parametrize("name", ["arithmetic", "my.module:Class", "tasks/sums.py", "tasks/sums.py:Sums", "aritmetic"])
def test_names_that_are_no_data(name: str) -> None:
    assert not names_data(name)
