"""A model's folder whose tokens are whole tool calls, so that random weights call tools; and whose texts can be written
in other tokens than it samples, so that encoding them again shows."""

import json
import re
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from streamrl.config.estimates.model_presets import EOS, SPECIAL_TOKENS
from streamrl.config.schema.run import ModelConfig
from streamrl.models.load import prepare_model_folder

COMPACT = '<tool_call>{"name":"add","arguments":{"a":1}}</tool_call>'
CODERS = "<tool_call><function=add><parameter=a>2</parameter></function></tool_call>"
BROKEN = '<tool_call>{"name": }</tool_call>'
PIECES = (
    *(COMPACT, CODERS, BROKEN, '<tool_call>{"name": "add", "arguments": ', "}</tool_call>"),
    *('{"a": ', "}", "1", "2", "user", "tool", "assistant", "=", "\n", " ", "hi", "h", "i", "!"),
)
TEMPLATE = (
    "{% if tools %}{{ tools | length }}{{ '\\n' }}{% endif %}"
    "{% for message in messages %}{{ message.role }}={{ message.content or '' }}"
    "{% for call in message.tool_calls or () %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{% if message.role == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant={% endif %}"
)
THINKING_TEMPLATE = TEMPLATE.replace(
    "{{ message.role }}=", "{{ message.role }}={% if message.role == 'assistant' %}<think>{% endif %}"
).replace("assistant={% endif %}", "assistant=<think>{% endif %}")
MISTRAL_MARKS = ("[TOOL_CALLS]", "[THINK]", "[/THINK]")
MISTRAL_PIECES = (
    *MISTRAL_MARKS,
    *(' [{"name": "add", "arguments": {"a": 1}}]', '[{"name":"add","arguments":{"a":2}}]', '[{"name":"add"}, 7]'),
    *('add[ARGS]{"a": 1}', 'add[ARGS]{"a": 2}', 'add[CALL_ID]Vj12345ab[ARGS]{"a":3}'),
    *("user", "tool", "assistant", "=", "\n", " ", "hi", "1", "2", "!"),
)
MISTRAL_TEMPLATE = TEMPLATE.replace("<tool_call>", "[TOOL_CALLS] [").replace("</tool_call>", "]")
HARMONY_MARKS = ("<|channel|>", "<|start|>", "<|end|>")
HARMONY_PIECES = (
    *HARMONY_MARKS,
    *("analysis<|message|>1", "analysis<|message|>hi", "final<|message|>2", "commentary<|message|>hi"),
    *(f'commentary to=functions.add <|constrain|>json<|message|>{{"a": {number}}}<|call|>' for number in (1, 2, 3)),
    *("commentary to=functions.add json<|message|>{<|call|>", "user", "assistant", "=", "\n", " ", "1", "2", "!"),
)
HARMONY_TEMPLATE = TEMPLATE.replace(
    "assistant={% endif %}", "<|start|>assistant{# <|channel|> <|message|> #}{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}},
    },
}


def write_thinking_tokenizer(folder: Path) -> None:
    """The same for a model that thinks before it answers."""
    renamed = {CODERS: "<think>", BROKEN: "</think>"}
    write_calling_tokenizer(folder, tuple(renamed.get(piece, piece) for piece in PIECES))
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)


def write_mistral_tokenizer(folder: Path) -> None:
    """The same for a model whose marks are special tokens, and which writes calls and thoughts as Mistral's."""
    write_calling_tokenizer(folder, MISTRAL_PIECES, MISTRAL_MARKS)
    (folder / "chat_template.jinja").write_text(MISTRAL_TEMPLATE)


def write_harmony_tokenizer(folder: Path) -> None:
    """The same for one that writes channels as gpt-oss."""
    write_calling_tokenizer(folder, HARMONY_PIECES, HARMONY_MARKS)
    (folder / "chat_template.jinja").write_text(HARMONY_TEMPLATE)


def write_calling_tokenizer(folder: Path, pieces: tuple[str, ...] = PIECES, special: tuple[str, ...] = ()) -> None:
    """In the place of the one of a tiny model, with as many tokens. What is none of them is written as the last one:
    a call that was cut off, and whose space at the end a client left out, can be sent again. special: of the pieces."""
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *pieces))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=pieces[-1]))
    longest_first = sorted(pieces, key=len, reverse=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(map(re.escape, longest_first))), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*SPECIAL_TOKENS, *special)])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def prepare_calling_model(folder: Path) -> None:
    """With random weights."""
    prepare_model_folder(ModelConfig(preset="tiny-qwen3"), 0, folder)
    write_calling_tokenizer(folder)
