"""The facts of the configured model, whether it is a preset or a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import structs

from streamrl.config.estimates.model_facts import ModelFacts, facts_of, read_classifier, read_folder
from streamrl.config.estimates.model_presets import PRESETS, Preset
from streamrl.config.problems import Problem
from streamrl.config.schema.run import Config, ModelConfig


def model_facts(model: ModelConfig) -> tuple[ModelFacts | None, list[Problem]]:
    """Facts, or the problems of the folder; neither for no model or an unknown preset, which the rules name."""
    if model.path is not None:
        return read_folder(Path(model.path).expanduser())
    preset = PRESETS.get(model.preset or "")
    return (preset_facts(preset) if preset else None), []


def run_facts(config: Config) -> tuple[ModelFacts | None, list[Problem]]:
    """The same for all that a run loads: the policy's model, a critic's that begins with another one, and a reward
    model."""
    model, problems = _with_critic(config, *model_facts(config.model))
    path = config.reward.model.path
    if path is None:
        return model, problems
    scores, found = read_classifier(Path(path).expanduser())
    problems = [*problems, *(structs.replace(problem, key="reward.model.path") for problem in found)]
    if scores is None or model is None:
        return None, problems
    return structs.replace(model, reward_parameters=scores.num_parameters, reward_context=scores.context), problems


def _with_critic(
    config: Config, model: ModelFacts | None, problems: list[Problem]
) -> tuple[ModelFacts | None, list[Problem]]:
    path = config.learner.critic.path
    if path is None or not config.learner.algorithm.has_critic:
        return model, problems
    critic, found = read_folder(Path(path).expanduser(), otherwise="leave this key out")
    problems = [*problems, *(structs.replace(problem, key="learner.critic.path") for problem in found)]
    if critic is None or model is None:
        return None, problems
    return structs.replace(model, critic_parameters=critic.num_parameters), problems


def preset_facts(preset: Preset) -> ModelFacts:
    config = {"model_type": preset.model_type, **preset.config_values()}
    return facts_of(config, _count_parameters(config))


def _count_parameters(config: Mapping[str, Any]) -> int:
    """Elements of a Qwen3 decoder: gated MLP, a norm on each query and key head, no biases."""
    hidden, head = config["hidden_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    attention = hidden * head * 2 * (heads + kv_heads) + 2 * head
    layer = attention + 3 * hidden * config["intermediate_size"] + 2 * hidden
    embeddings = config["vocab_size"] * hidden * (1 if config["tie_word_embeddings"] else 2)
    return int(embeddings + config["num_hidden_layers"] * layer + hidden)
