"""A corpus of broken configurations: each is refused before anything starts, with file, line and way out."""

import json
import pickle
import struct
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.repository import ROOT

from streamrl.config import ConfigProblems, load_args
from streamrl.errors import ConfigError

CORPUS = Path(__file__).parent / "broken_configs"
MODEL = '\n[model]\npreset = "tiny-qwen3"\n'


def corpus() -> list[Any]:
    files = sorted(CORPUS.glob("*.toml"))
    cases = [(file.stem, case) for file in files for case in tomllib.loads(file.read_text())["case"]]
    return [pytest.param(case, id=f"{stem}: {case['name']}") for stem, case in cases]


def write_model(folder: Path, *, drop=(), write=None, change=None) -> None:
    """A complete model folder with weights of two elements, then the changes."""
    config = {"model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config |= {"max_position_embeddings": 128, **(change or {})}
    header = json.dumps({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}).encode()
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"a": 0, "<eos>": 1}}}')
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    for name, text in (write or {}).items():
        (folder / name).write_text(text)
    for name in drop:
        (folder / name).unlink()


def write_classifier(folder: Path, *, change=None, **changes) -> None:
    """A complete folder of a reward model, then the changes."""
    one_label = {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    write_model(folder, change={**one_label, "max_position_embeddings": 32, **(change or {})}, **changes)


def write_case(case: dict[str, Any]) -> None:
    text = case.get("text", "")
    Path("run.toml").write_text(text if case.get("bare") or "[model]" in text else text + MODEL)
    if "overlay" in case:
        Path("more.toml").write_text(case["overlay"])
    if "folder" in case:
        write_model(Path("model"), **case["folder"])
    if "classifier" in case:
        write_classifier(Path("scores"), **case["classifier"])


def matches(message: str, pattern: str) -> bool:
    """Whether the parts of `pattern` follow each other in `message`, the first at its start."""
    at = 0
    for part in pattern.split(" ... "):
        found = message.find(part, at)
        if found < 0 or (at == 0 and found != 0):
            return False
        at = found + len(part)
    return True


def test_the_corpus_has_at_least_sixty_cases_and_no_name_twice():
    names = [param.id for param in corpus()]
    assert len(names) >= 60
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("case", corpus())
def test_a_broken_config_is_refused_with_where_what_and_the_way_out(case, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_case(case)
    with pytest.raises(ConfigError) as caught:
        load_args("run.toml", case.get("args", []))
    messages = [str(problem) for problem in caught.value.problems]
    assert len(messages) == len(case["expected"]), messages
    for message, pattern in zip(messages, case["expected"], strict=True):
        assert matches(message, pattern), message


def test_the_unbroken_model_folder_of_the_corpus_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_case({"text": '[model]\npath = "model"\n', "folder": {}})
    assert load_args("run.toml").model.path == "model"


def test_the_unbroken_reward_model_of_the_corpus_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_case({"text": '[reward]\nfunction = "reward_model"\nmodel.path = "scores"\n', "classifier": {}})
    assert load_args("run.toml").reward.model.path == "scores"


def test_the_end_token_may_be_named_in_config_json(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = {"drop": ["tokenizer_config.json"], "change": {"eos_token_id": 2}}
    write_case({"text": '[model]\npath = "model"\n', "folder": folder})
    assert load_args("run.toml").model.path == "model"


def test_the_error_counts_its_problems_and_survives_pickling(tmp_path):
    (tmp_path / "run.toml").write_text("seeds = 1\nnames = 2\n" + MODEL)
    with pytest.raises(ConfigProblems) as caught:
        load_args(tmp_path / "run.toml")
    again = pickle.loads(pickle.dumps(caught.value))
    assert again.exit_code == 2
    assert str(again) == str(caught.value)
    assert str(again).startswith("2 problems in the configuration:\n")


def test_a_file_that_is_not_text_is_refused_at_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_bytes(b"seed = 1\nname = '\xff'\n")
    with pytest.raises(ConfigProblems, match=r"^run\.toml:2: not UTF-8 text$"):
        load_args("run.toml")


def test_nesting_that_exhausts_the_parser_is_a_problem_and_not_a_crash(tmp_path):
    (tmp_path / "run.toml").write_text("x = " + "[" * 100_000)
    with pytest.raises(ConfigProblems, match="nested too deeply"):
        load_args(tmp_path / "run.toml")


def test_checking_a_config_imports_none_of_the_heavy_libraries():
    program = (
        "import sys, streamrl.config as c; "
        "config = c.load_args('configs/quickstart.toml', ['--learner.lora.rank=2', '--warmup.max_steps=0']); "
        "c.check_resources(config); c.dump(config); "
        "print([m for m in ('torch', 'ray', 'pyarrow', 'transformers', 'peft', 'tokenizers') if m in sys.modules])"
    )
    root = ROOT
    done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "settings",
    [
        {"loss": "gspo", "correction": "tis"},
        {"loss": "gspo", "correction": "icepop", "correction_level": "sequence"},
        {"loss": "gmpo", "correction": "mis", "correction_level": "geometric"},
        {"correction": "none", "rejection.measure": "k2", "rejection.high": "0.5", "least_effective_share": "0.5"},
        {"proximal": "rollout", "correction": "none", "most_mismatch_kl": "0.1", "pause_mismatch_kl": "0.1"},
    ],
    ids=["weights of tokens", "rows left out", "rows left out of gmpo", "a guard of rejections", "of the distance"],
)
def test_what_stands_beside_a_refused_combination_loads(settings, tmp_path):
    (tmp_path / "run.toml").write_text(MODEL)
    args = [part for key, value in settings.items() for part in (f"--learner.algorithm.{key}", value)]
    assert load_args(tmp_path / "run.toml", args).learner.algorithm.loss == settings.get("loss", "ppo")
