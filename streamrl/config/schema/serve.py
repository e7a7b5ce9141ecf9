"""`[gateway.serve]`: the gateway on Ray Serve."""

from typing import Annotated

from msgspec import Meta

from streamrl.config.schema.table import NonNegative, Positive, PositiveFloat, Table


class ServeConfig(Table, frozen=True):
    """The gateway as an application of Ray Serve beside the run's own server (docs/operations/serve.md). The keys are
    those of Serve."""

    replicas: NonNegative = 0
    """Replicas of the application; with `max_replicas` the minimum. With 0 the run has its own server alone."""
    max_replicas: Positive | None = None
    """Maximum number of replicas, between which Serve's autoscaler chooses. No autoscaling when absent."""
    target_ongoing_requests: PositiveFloat = 64.0
    """Requests under way for each replica that the autoscaler aims at."""
    replicas_per_node: NonNegative = 0
    """Maximum number of replicas on one node; 0 for no maximum."""
    port: Annotated[int, Meta(ge=1, le=65535)] = 8000
    """Port of Serve's proxies, at `gateway.host`, where Serve does not run yet."""

    @property
    def enabled(self) -> bool:
        return self.replicas > 0
