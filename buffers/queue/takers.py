"""The replicas that take groups: under which version each serves, and which of them take no more. Pure."""

from streamrl.types import Version


class Takers:
    """Known by name; whoever replaces a replica begins anew."""

    def __init__(self) -> None:
        self._serving: dict[str, Version] = {}
        self._retired: set[str] = set()

    def serves(self, replica: str, version: Version) -> None:
        """It answers under `version` now."""
        self._serving[replica] = version

    def newest(self, replica: str, version: Version) -> Version:
        """The newest version that it said it serves, `version` among them."""
        return max(version, self._serving.get(replica, version))

    def retire(self, replica: str) -> None:
        """It takes no more."""
        self._retired.add(replica)

    def is_retired(self, replica: str) -> bool:
        return replica in self._retired

    def forget(self, replica: str) -> None:
        """It was replaced, or is gone."""
        self._serving.pop(replica, None)
        self._retired.discard(replica)
