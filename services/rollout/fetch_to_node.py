"""The bytes of a version, brought to the node of a replica, and what it means when they do not come."""

from pathlib import Path
from typing import TYPE_CHECKING

import ray

from streamrl.errors import ComponentError, DataError, ProcessDiedError
from streamrl.services.actors.deaths import cause_of, node_is_gone
from streamrl.weights.manifest import WeightManifest, encode

if TYPE_CHECKING:
    from streamrl.services.weights.node import NodeSlot


async def fetch_to_node(replica: str, slot: "NodeSlot", manifest: WeightManifest) -> Path:
    """The folder of the copies.

    Raises ProcessDiedError when the node goes away meanwhile, or the version does not come to it: another replica,
    there or elsewhere, may have it then.
    """
    try:
        return Path(await slot.service.fetch_version.remote(encode(manifest)))
    except ray.exceptions.RayError as error:
        if node_is_gone(error):
            raise ProcessDiedError(f"{replica}: its node {slot.node} is going away") from error
        if isinstance(cause := cause_of(error), ComponentError | DataError):
            raise ProcessDiedError(f"{replica}: no version came to its node: {cause}") from error
        raise
