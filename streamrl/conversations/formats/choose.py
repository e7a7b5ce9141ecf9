"""The forms by the names that vLLM's options have for them, and which one a chat template asks for. Pure."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from streamrl.conversations import reasoning
from streamrl.conversations.formats import deepseek, harmony, llama, mistral, pythonic, tagged
from streamrl.conversations.formats.deepseek import DeepSeek
from streamrl.conversations.formats.step import CallForm
from streamrl.conversations.reasoning import Thoughts, ThoughtStream

HERMES: Final = "hermes"
GLM: Final = "glm45"
THINK: Final = "think"
_THINK_MISTRAL: Final = ("[THINK]", "[/THINK]")


class CallFormat(NamedTuple):
    """make: reads one text; it is given the JSON schema of each tool's arguments, by its name. marks: of which some may
    be special tokens. is_content: a template that is given the sampled text as the content of a message writes it so.
    short_ids: the templates take ids of nine letters and digits alone."""

    make: Callable[[Mapping[str, Any]], CallForm]
    marks: tuple[str, ...]
    is_content: bool = True
    short_ids: bool = False


class ThoughtFormat(NamedTuple):
    """make: reads one text; it is told whether this begins within thoughts. begun: how a prompt ends where it does.
    marks, is_content: as of `CallFormat`."""

    make: Callable[[bool], Thoughts]
    begun: str
    marks: tuple[str, ...]
    is_content: bool = True


_TAGS: Final = (tagged.BEGIN, tagged.END)
_GLM_TAGS: Final = (*_TAGS, tagged.KEY, tagged.KEY_END, tagged.VALUE, tagged.VALUE_END)
_PYTHON: Final = (pythonic.BEGIN, pythonic.END)
_MISTRAL: Final = (mistral.BEGIN, mistral.ARGS, mistral.CALL_ID)
_DEEPSEEK: Final = (deepseek.SECTION, deepseek.SECTION_END, deepseek.CALL, deepseek.CALL_END, deepseek.NAME_END)

CALL_FORMS: Final[Mapping[str, CallFormat]] = {
    HERMES: CallFormat(tagged.Tagged, _TAGS),
    "qwen3_coder": CallFormat(tagged.Tagged, _TAGS),
    GLM: CallFormat(tagged.Glm, _GLM_TAGS),
    "llama3_json": CallFormat(lambda _: llama.LlamaJson(), (llama.TAG,)),
    "pythonic": CallFormat(lambda _: pythonic.Pythonic(), _PYTHON),
    "llama4_pythonic": CallFormat(lambda _: pythonic.Pythonic(), _PYTHON),
    "mistral": CallFormat(lambda _: mistral.Mistral(), _MISTRAL, short_ids=True),
    "deepseek_v3": CallFormat(lambda _: DeepSeek(deepseek.of_v3), _DEEPSEEK),
    "deepseek_v31": CallFormat(lambda _: DeepSeek(deepseek.of_v31), _DEEPSEEK),
    "openai": CallFormat(lambda _: harmony.Harmony(), harmony.MARKS, is_content=False),
}
THOUGHT_FORMS: Final[Mapping[str, ThoughtFormat]] = {
    THINK: ThoughtFormat(ThoughtStream, reasoning.BEGIN, (reasoning.BEGIN, reasoning.END)),
    "mistral": ThoughtFormat(lambda inside: ThoughtStream(inside, *_THINK_MISTRAL), _THINK_MISTRAL[0], _THINK_MISTRAL),
    "openai_gptoss": ThoughtFormat(harmony.HarmonyThoughts, harmony.THINKING, harmony.MARKS, is_content=False),
}

_TELLING: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("openai", (harmony.CHANNEL, harmony.MESSAGE)),
    ("deepseek_v3", (deepseek.CALL, deepseek.FENCE)),
    ("deepseek_v31", (deepseek.CALL,)),
    ("mistral", (mistral.BEGIN,)),
    (GLM, (tagged.BEGIN, tagged.KEY)),
    ("qwen3_coder", (tagged.BEGIN, tagged.CODER)),
    (HERMES, (tagged.BEGIN,)),
    ("llama4_pythonic", (pythonic.BEGIN, "[func_name")),
    ("pythonic", ("[func_name",)),
    ("llama3_json", (llama.TAG,)),
    ("llama3_json", ('{"name": function name, "parameters":',)),
)
"""What the source of a template has that asks for a form, the most telling first: all of it must be there."""


def call_form_of(source: str) -> str:
    """The form that the source of a template asks for; "" where it asks for none that is read."""
    return next((name for name, texts in _TELLING if all(text in source for text in texts)), "")
