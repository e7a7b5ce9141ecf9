"""The reference page, and that names known to a check are the names that exist."""

import subprocess
import sys

import msgspec
import pytest
from support.repository import ROOT
from transformers import AutoConfig, AutoModelForCausalLM

from streamrl.config import known
from streamrl.config.estimates import sizes as limits
from streamrl.config.estimates.model_facts import read_folder
from streamrl.config.estimates.model_of import preset_facts
from streamrl.config.estimates.model_presets import PRESETS
from streamrl.config.reference import TABLE_MODULES, key_docs, reference_markdown
from streamrl.config.schema import fields
from streamrl.config.schema import learner as learner_tables
from streamrl.config.schema import run as schema
from streamrl.engines.torch import families
from streamrl.environments import build as environments
from streamrl.environments.episode import Limit
from streamrl.learner.model.adapters import AdapterSettings, add_adapters, linear_layers
from streamrl.models.load import build_model, prepare_model_folder
from streamrl.models.tokenizer import load_tokenizer
from streamrl.rewards import builtin as rewards
from streamrl.tasks import resolve as tasks

PAGE = ROOT / "docs" / "configuration.md"


def test_the_reference_page_is_what_the_schema_says():
    again = "run `python -m streamrl.config.reference > docs/configuration.md`"
    assert PAGE.read_text() == reference_markdown(), again


def test_the_page_is_printed_by_its_module():
    command = [sys.executable, "-m", "streamrl.config.reference"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == reference_markdown()


@pytest.mark.parametrize(("name", "table"), list(fields.tables()), ids=lambda value: str(value))
def test_every_table_and_key_has_a_docstring_and_a_default(name, table):
    docs = key_docs(*TABLE_MODULES)[table.__name__]
    assert table.__doc__, f"the table {name} has no docstring"
    for field in msgspec.structs.fields(table):
        assert not field.required, f"{name}.{field.name} has no default"
        assert fields.is_table(field.type) or docs.get(field.name), f"{name}.{field.name} has no docstring"


def test_every_key_appears_on_the_page():
    page = PAGE.read_text()
    for leaf in fields.leaves():
        table, _, key = leaf.name.rpartition(".")
        section = page.split(f"## `[{table}]`" if table else "## Top level")[1].split("\n## ")[0]
        assert f"| `{key}` |" in section, leaf.name


def test_every_key_and_name_of_the_algorithm_is_on_its_page():
    page = (ROOT / "docs" / "guides" / "algorithms.md").read_text()
    for leaf in fields.leaves():
        if (
            leaf.name.startswith(("learner.algorithm.", "learner.critic.", "learner.prime."))
            and ".optimizer." not in leaf.name
        ):
            missing = [
                name for name in (leaf.name.rpartition(".")[2], *fields.literals(leaf.type)) if f"`{name}" not in page
            ]
            assert not missing, f"{leaf.name}: {missing}"


def test_the_names_known_to_a_check_are_the_names_that_exist():
    assert set(known.TASK_LONGEST_PROMPT) == set(tasks.BUILT_IN)
    assert set(known.ENVIRONMENTS) == set(environments.BUILT_IN)
    assert tuple(limit.value for limit in Limit) == known.EPISODE_LIMITS
    assert set(known.TOOLS) == {*environments.BUILT_IN_TOOLS, known.PYTHON_TOOL}
    assert set(known.REWARDS) == {*rewards.BUILT_IN, known.REWARD_MODEL}
    assert {*known.MODEL_TYPES, *known.EXPERT_TYPES} == set(families.TYPES)
    assert known.EXPERT_TYPES == families.EXPERTS


@pytest.mark.parametrize("model_type", known.MODEL_TYPES)
def test_the_linear_layers_known_to_a_check_are_those_of_every_family(model_type):
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 1, "vocab_size": 9}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **sizes, **heads))
    assert tuple(linear_layers(model)) == known.LINEAR_LAYERS


@pytest.mark.parametrize("targets", [None, ("q_proj",), ("v_proj", "down_proj")])
def test_the_adapters_of_a_preset_have_the_sizes_that_a_check_counts(targets):
    lora = learner_tables.LoraConfig(rank=3, targets=targets)
    model = build_model(schema.ModelConfig(preset="tiny-qwen3"), seed=0)
    add_adapters(model, AdapterSettings(3, 6.0, targets or tuple(linear_layers(model)), seed=0))
    trained = sum(param.numel() for param in model.parameters() if param.requires_grad)
    assert limits.adapter_parameters(lora, preset_facts(PRESETS["tiny-qwen3"])) == trained


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_sizes_that_a_check_counts(name, tmp_path):
    model = build_model(schema.ModelConfig(preset=name), seed=0)
    facts = preset_facts(PRESETS[name])
    assert facts.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert facts.context == model.config.max_position_embeddings
    assert facts.num_kv_heads * facts.head_dim == model.model.layers[0].self_attn.k_proj.out_features


@pytest.mark.parametrize("name", tasks.BUILT_IN)
def test_the_longest_prompt_of_a_built_in_task_is_what_a_check_assumes(name, tmp_path):
    folder = prepare_model_folder(schema.ModelConfig(preset="tiny-qwen3"), 0, tmp_path / "model")
    tokenizer, task = load_tokenizer(folder), tasks.resolve_task(name, 0.1)
    lengths = [len(tokenizer.encode(task.train(index).text)) for index in range(task.num_train)]
    assert max(lengths) == known.TASK_LONGEST_PROMPT[name]
    assert read_folder(folder) == (preset_facts(PRESETS["tiny-qwen3"]), [])
