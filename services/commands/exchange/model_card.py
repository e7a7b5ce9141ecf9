"""The card of an exported model: what it was trained on and how, its scores, its curve, the versions. Pure.

The head is what the hub reads (YAML), the rest is Markdown. Paths of this machine are cut to their last part: they say
nothing elsewhere, and may name a person.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any, Literal

import msgspec
import yaml

from streamrl.config import Config, diff
from streamrl.config.loading.dump import said, value_of
from streamrl.config.schema import fields
from streamrl.config.toml_text import toml_value

CURVE = "reward.png"
"""Of the picture, beside the card."""
_HUB = re.compile(r"hf:([\w.-]+/[\w.-]+)")
_NOT_TOLD = ("runs", "gateway", "ray", "data.cache", "weights.folder", "rollout.server.python", "observe")
"""Keys, and tables, that say where a run was and not what was trained."""


class CardFacts(msgspec.Struct, frozen=True, kw_only=True):
    """name: of the run. step: that the weights are of. version: the same as the run has it. scores: held-out ones by
    their name (`before`, `after`, `avg@8`). evaluations: as `RunFolder.evaluations`. packages: versions by name. curve:
    whether the picture is beside the card."""

    name: str
    config: Config
    step: int
    version: str
    layout: Literal["hf", "peft"]
    scores: Mapping[str, float]
    evaluations: Mapping[str, Mapping[str, Any]]
    packages: Mapping[str, str]
    curve: bool


def model_card(facts: CardFacts) -> str:
    """The text of README.md."""
    return "\n".join([*_head(facts), *_what(facts), *_scores(facts), *_configuration(facts), *_versions(facts)]) + "\n"


def _head(facts: CardFacts) -> Iterator[str]:
    algorithm = facts.config.learner.algorithm
    tags = ["streamrl", "reinforcement-learning", algorithm.advantage, algorithm.loss]
    head: dict[str, Any] = {
        "library_name": "peft" if facts.layout == "peft" else "transformers",
        "pipeline_tag": "text-generation",
        "tags": list(dict.fromkeys(tags)),
    }
    if datasets := _datasets(facts.config):
        head["datasets"] = datasets
    if results := list(_results(facts)):
        head["model-index"] = [{"name": facts.name, "results": results}]
    yield "---"
    yield yaml.safe_dump(head, sort_keys=False, allow_unicode=True).rstrip()
    yield "---"


def _datasets(config: Config) -> list[str]:
    """Those of the hub."""
    data = config.training_data
    found = [_HUB.match(address) for address in (data.train_addresses if data else ())]
    return list(dict.fromkeys(one[1] for one in found if one))


def _results(facts: CardFacts) -> Iterator[dict[str, Any]]:
    for task, told in facts.evaluations.items():
        metrics = [{"type": name, "value": value} for name, value in told.items() if _is_score(name, value)]
        if metrics:
            yield {
                "task": {"type": "text-generation"},
                "dataset": {"name": task, "type": task},
                "metrics": metrics,
            }


def _is_score(name: str, value: Any) -> bool:
    return isinstance(value, float) and name not in ("temperature", "limit")


def _what(facts: CardFacts) -> Iterator[str]:
    config = facts.config
    begins = _last(config.model.path) if config.model.path else f"the preset {config.model.preset}"
    what = "Adapters for" if facts.layout == "peft" else "A model trained from"
    yield f"# {_escaped(facts.name)}"
    yield ""
    rule = ", ".join(config.reward.rule.functions)
    yield f"{what} `{begins}` by reinforcement learning with streamrl: {facts.step} steps of"
    yield f"{config.learner.groups_per_step} prompts with {config.rollout.group_size} rollouts each, advantage"
    yield f"`{config.learner.algorithm.advantage}`, loss `{config.learner.algorithm.loss}`, reward `{rule}`."
    if facts.curve:
        yield ""
        yield f"![Reward and held-out score over the steps]({CURVE})"


def _scores(facts: CardFacts) -> Iterator[str]:
    rows = [("held-out", name, value, facts.step) for name, value in facts.scores.items()]
    for task, told in facts.evaluations.items():
        rows += [(task, name, value, told.get("step", "")) for name, value in told.items() if _is_score(name, value)]
    yield ""
    yield "## Scores"
    yield ""
    if not rows:
        yield "None was measured."
        return
    yield "| evaluation | metric | score | step |"
    yield "|---|---|---|---|"
    for task, name, value, step in rows:
        yield f"| {_escaped(task)} | {_escaped(name)} | {value:.4g} | {step} |"


def _configuration(facts: CardFacts) -> Iterator[str]:
    """The keys that differ from their defaults, as TOML."""
    yield ""
    yield "## Configuration"
    yield ""
    yield "What differs from the defaults of streamrl:"
    yield ""
    yield "```toml"
    table = ""
    defaults = {leaf.name: leaf.default for leaf in fields.leaves()}
    names = [name for name in diff(Config(), facts.config) if not _is_place(name)]
    for name in sorted(names, key=lambda one: "." in one):
        own, _, key = name.rpartition(".")
        if own != table:
            table = own
            yield f"\n[{own}]"
        value = said(value_of(facts.config, name), defaults[name])
        yield f"{key} = {toml_value(_cut(value))}"
    yield "```"


def _is_place(name: str) -> bool:
    return any(name == place or name.startswith(f"{place}.") for place in _NOT_TOLD)


def _cut(value: Any) -> Any:
    """Absolute paths by their last part, also within lists and tables."""
    if isinstance(value, str) and value.startswith(("/", "~")):
        return _last(value)
    if isinstance(value, Mapping):
        return {key: _cut(item) for key, item in value.items()}
    return [_cut(item) for item in value] if isinstance(value, list | tuple) else value


def _last(path: str) -> str:
    return PurePath(path).name or path


def _versions(facts: CardFacts) -> Iterator[str]:
    yield ""
    yield "## Versions"
    yield ""
    yield f"* weights: version {facts.version} of run {_escaped(facts.name)}, step {facts.step}"
    for name, version in facts.packages.items():
        yield f"* {name} {version}"


def _escaped(text: object) -> str:
    """Of what a table or a heading would read otherwise."""
    return re.sub(r"([|<>`*_\[\]])", r"\\\1", str(text).replace("\n", " "))
