"""What the routes of the gateway work with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from streamrl.conversations.memory import Memory
from streamrl.conversations.tool_calls import MessageReader
from streamrl.gateway.openai.answers import Json, model_object
from streamrl.gateway.openai.bodies import ChatRequest, CompletionRequest
from streamrl.gateway.openai.requests import Limits, ParsedRequest, Reader
from streamrl.gateway.page.prometheus import GatewayCounts
from streamrl.gateway.sessions.capture import Capture
from streamrl.models.tokenizer import TextTokenizer
from streamrl.services.gateway.answering import Answering
from streamrl.services.gateway.controls import ControlService
from streamrl.services.gateway.pool import Pool
from streamrl.services.gateway.training.prompts import PromptService
from streamrl.services.gateway.training.samples import SampleService
from streamrl.services.gateway.training.sessions import SessionService
from streamrl.services.gateway.training.trajectories import TrajectoryService
from streamrl.services.gateway.versions import VersionService
from streamrl.services.gateway.weights import WeightsService

Status = Callable[[], Awaitable[dict[str, Any]]]


class SessionCalls(Protocol):
    """What a route of completions asks of sessions, as `SessionService` answers it."""

    def memory(self, name: str | None) -> Memory: ...

    def opened(
        self,
        name: str | None,
        asked: ParsedRequest,
        body: ChatRequest | CompletionRequest,
        reader: MessageReader | None = None,
    ) -> tuple[ParsedRequest, Capture | None]: ...


@dataclass(frozen=True, slots=True)
class ModelServices:
    """What the routes of completions work with. created: Unix seconds of the run's making."""

    reader: Reader
    limits: Limits
    tokenizer: TextTokenizer
    pool: Pool
    answering: Answering
    created: int
    sessions: SessionCalls

    def model(self) -> Json:
        """The model that is served, in OpenAI's words."""
        return model_object(self.limits.model, self.created, self.limits.context, self.pool.versions)


@dataclass(frozen=True, slots=True)
class GatewayServices(ModelServices):
    """What all routes work with. status: of the run. session_token: for the calls of a session, by its id."""

    sessions: SessionService
    counts: GatewayCounts
    status: Status
    prompts: PromptService
    controls: ControlService
    versions: VersionService
    samples: SampleService
    weights: WeightsService
    trajectories: TrajectoryService
    session_token: Callable[[str], str]
