"""What the routes of the gateway work with."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from streamrl.gateway.openai.answers import Json, model_object
from streamrl.gateway.openai.requests import Limits, Reader
from streamrl.gateway.page.prometheus import GatewayCounts
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


@dataclass(frozen=True, slots=True)
class GatewayServices:
    """What the routes work with. created: Unix seconds of the run's making. status: of the run. session_token: for
    the calls of a session, by its id."""

    reader: Reader
    limits: Limits
    tokenizer: TextTokenizer
    pool: Pool
    answering: Answering
    counts: GatewayCounts
    status: Status
    created: int
    prompts: PromptService
    controls: ControlService
    versions: VersionService
    samples: SampleService
    weights: WeightsService
    trajectories: TrajectoryService
    sessions: SessionService
    session_token: Callable[[str], str]

    def model(self) -> Json:
        """The model that is served, in OpenAI's words."""
        return model_object(self.limits.model, self.created, self.limits.context, self.pool.versions)
