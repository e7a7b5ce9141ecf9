"""From a configuration to what plays: models whose chat template cannot do what the environment needs are refused."""

from pathlib import Path

import pytest
from support.data.chat_model import write_chat_tokenizer
from support.environments.spoken import TEMPLATE, TOOLS

from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.run import Config, ModelConfig
from streamrl.environments.open import model_chat
from streamrl.errors import ConfigError
from streamrl.models.tokenizer import load_tokenizer

UNREAD = "{% if tools %}<|python_tag|>{% endif %}" + TEMPLATE


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (None, "put a chat_template.jinja beside the model"),
        (TEMPLATE, "does not know tools"),
        (UNREAD, "asks for calls in a form that is not read here"),
        (TOOLS, ""),
    ],
)
def test_a_model_needs_a_template_that_knows_tools_in_a_form_that_is_read(
    tmp_path: Path, template: str | None, text: str
) -> None:
    write_chat_tokenizer(tmp_path, template)
    environment = EnvironmentConfig(name="tools", tools=("calculator",))
    config = Config(model=ModelConfig(path=str(tmp_path)), environment=environment)
    tokenizer = load_tokenizer(tmp_path)
    if not text:
        assert model_chat(config, tmp_path, tokenizer).reads_tool_calls
        return
    with pytest.raises(ConfigError, match=text):
        model_chat(config, tmp_path, tokenizer)
