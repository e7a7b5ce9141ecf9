"""Chat templates render as transformers renders them, wherever a model's folder keeps them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.data.chat_model import write_chat_tokenizer
from transformers import AutoTokenizer

from streamrl.errors import ConfigError, DataError
from streamrl.models.chat_template import ChatTemplate, Ending, load_chat_template

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


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content CUT }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<|go|>{% endif %}"
)
KEEPS, TRIMS = CHATML.replace(" CUT", ""), CHATML.replace("CUT", "| trim")


@pytest.mark.parametrize("source", [KEEPS, TRIMS])
@pytest.mark.parametrize(
    ("ending", "asked"),
    [
        (Ending.TURN, {"add_generation_prompt": True}),
        (Ending.CLOSED, {"add_generation_prompt": False}),
        (Ending.CONTINUED, {"continue_final_message": True}),
    ],
)
def test_a_prompt_ends_as_transformers_ends_it(
    source: str, ending: Ending, asked: dict[str, bool], tmp_path: Path
) -> None:
    folder = write_chat_tokenizer(tmp_path, source)
    messages = [*MESSAGES, {"role": "assistant", "content": "a <end> b"}]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False, **asked)
    template = load_chat_template(folder)
    assert template is not None
    assert template.render(messages, None, ending) == expected
    assert expected.endswith("a <end> b") == (ending is Ending.CONTINUED)


def test_a_null_is_nothing_as_transformers_has_it(tmp_path: Path) -> None:
    folder = write_chat_tokenizer(tmp_path, KEEPS)
    messages = [*MESSAGES, {"role": "assistant", "content": None, "name": None}]
    expected = AutoTokenizer.from_pretrained(folder).apply_chat_template(messages, tokenize=False)
    template = load_chat_template(folder)
    assert template is not None
    assert template.render(messages, None, Ending.CLOSED) == expected == "<|user|>é<end><|assistant|><end>"


@pytest.mark.parametrize(
    ("source", "content", "end"),
    [
        (KEEPS, "a \n", "<|assistant|>a \n"),
        (KEEPS, "CONTINUE_FINAL_MESSAGE_TAG a", "<|assistant|>CONTINUE_FINAL_MESSAGE_TAG a"),
        (TRIMS, "a", "<|assistant|>a"),
        (TRIMS, " a", "<|assistant|>a"),
    ],
)
def test_a_last_message_goes_on_behind_its_text(source: str, content: str, end: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": content}]
    assert ChatTemplate(source).render(messages, None, Ending.CONTINUED).endswith(end)


@pytest.mark.parametrize(
    ("source", "content"),
    [
        (TRIMS, "a "),
        (TRIMS, " "),
        (KEEPS.replace("m.content", "m.content.split('</think>')[-1]"), "<think>x</think>"),
        (KEEPS.replace("m.content", "m.content | upper"), "a"),
        ("no messages at all", "a"),
    ],
)
def test_a_message_whose_end_is_written_otherwise_does_not_go_on(source: str, content: str) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": content}]
    assert ChatTemplate(source).render(messages)
    with pytest.raises(DataError, match="does not write the end of the last message as it was sent") as fault:
        ChatTemplate(source).render(messages, None, Ending.CONTINUED)
    assert len(str(fault.value)) < 300  # and not the whole prompt


def test_an_argument_of_a_template_may_be_called_as_anything(tmp_path: Path) -> None:
    template = ChatTemplate("{{ ending }}{{ messages | length }}")
    assert template.render(MESSAGES, None, **{"ending": "x"}) == "x1"
    with pytest.raises(DataError):
        template.render(MESSAGES, None, **{"self": 1})


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
