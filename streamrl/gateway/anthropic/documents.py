"""Documents and search results in a message, as the text that the model reads. Pure.

They are written as Anthropic advises to write them by hand: in tags, with what is known of them before the text. Texts
alone can be read here; citations are none of an answer's parts.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from streamrl.gateway.refusal import invalid


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore")


class TextBlock(_Part):
    type: Literal["text"]
    text: str


class PlainSource(_Part):
    type: Literal["text"]
    data: str

    @property
    def text(self) -> str:
        return self.data


class BlocksSource(_Part):
    """Text in parts of the client's choice."""

    type: Literal["content"]
    content: str | list[TextBlock]

    @property
    def text(self) -> str:
        return joined_text(self.content)


class Document(_Part):
    """A text with a title. context: what is known of it."""

    type: Literal["document"]
    source: Annotated[PlainSource | BlocksSource, Field(discriminator="type")]
    title: str | None = None
    context: str | None = None
    citations: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """Raises Refusal."""
        _check_citations(self.citations, self.type)
        told = {"source": self.title, "context": self.context, "document_content": self.source.text}
        return _tagged("document", told)


class SearchResult(_Part):
    """What a search found. source: where it is from."""

    type: Literal["search_result"]
    source: str
    title: str
    content: list[TextBlock]
    citations: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """Raises Refusal."""
        _check_citations(self.citations, self.type)
        told = {"source": self.source, "title": self.title, "content": joined_text(self.content)}
        return _tagged("search_result", told)


Written = TextBlock | Document | SearchResult
"""What is a text, or becomes one."""


def joined_text(content: "str | list[TextBlock] | list[Written]") -> str:
    """Raises Refusal."""
    return content if isinstance(content, str) else "".join(block.text for block in content)


def _check_citations(asked: dict[str, Any] | None, kind: str) -> None:
    if (asked or {}).get("enabled"):
        what = f"a block of type {kind!a} asks for citations, which no answer has here: leave `citations` out"
        raise invalid("unsupported_parameter", what, "messages")


def _tagged(name: str, told: Mapping[str, str | None]) -> str:
    inner = "".join(f"<{tag}>\n{text}\n</{tag}>\n" for tag, text in told.items() if text)
    return f"<{name}>\n{inner}</{name}>\n"
