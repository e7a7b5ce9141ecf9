"""Chat templates render as transformers renders them, wherever a model's folder keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.data.chat_model import write_chat_tokenizer
from transformers import AutoTokenizer

from streamrl.errors import ConfigError, DataError
from streamrl.models.chat_template import ChatTemplate, load_chat_template

MESSAGES = [{"role": "user", "content": "é"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"b": 1, "a": "é"}}}
TEMPLATES = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "tojson": "{{ tools | tojson(ensure_ascii=False, indent=2, separators=(',', ': '), sort_keys=True) }}",
    "loop control": "{% for m in messages %}{% if loop.first %}{% break %}{% endif %}{% endfor %}end",
    "special tokens": "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}{{ pad_token }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "dict and date": "{{ dict(a=1) }}{{ strftime_now('%Y') }}",
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_transformers_renders_is_rendered_to_the_same_text(name: str, tmp_path: Path) -> None:
    folder = write_chat_tokenizer(tmp_path, TEMPLATES[name])
    theirs = AutoTokenizer.from_pretrained(folder)
    expected = theirs.apply_chat_template(MESSAGES, tools=[TOOL], tokenize=False, add_generation_prompt=True)
    template = load_chat_template(folder)
    assert template is not None
    assert template.render(MESSAGES, [TOOL]) == expected


def in_tokenizer_config(folder: Path, template: Any) -> None:
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": template}))


def test_a_template_is_found_wherever_it_lies(tmp_path: Path) -> None:
    folders = [write_chat_tokenizer(tmp_path / str(number), None) for number in range(4)]
    assert load_chat_template(folders[0]) is None
    (folders[0] / "chat_template.jinja").write_text("found")
    in_tokenizer_config(folders[1], "found")
    (folders[2] / "chat_template.json").write_text(json.dumps({"chat_template": "found"}))
    in_tokenizer_config(folders[3], [{"name": "default", "template": "found"}])
    for folder in folders:
        template = load_chat_template(folder)
        assert template is not None
        assert template.render(MESSAGES) == "found"


def test_of_several_templates_the_one_with_tools_is_taken_for_tools(tmp_path: Path) -> None:
    folder = write_chat_tokenizer(tmp_path, "without")
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("with {{ tools | length }}")
    template = load_chat_template(folder)
    assert template is not None
    assert (template.render(MESSAGES), template.render(MESSAGES, [TOOL])) == ("without", "with 1")
    assert template.supports_tools


def test_a_source_that_is_no_template_is_refused_at_load() -> None:
    with pytest.raises(ConfigError, match="none that jinja2 can read"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('roles') }}", "{{ messages[0].a.b }}", "{{ ''.__class__.__mro__ }}"]
)
def test_what_a_template_refuses_and_what_its_sandbox_forbids_is_said(source: str) -> None:
    with pytest.raises(DataError, match="does not take these messages"):
        ChatTemplate(source).render(MESSAGES)
