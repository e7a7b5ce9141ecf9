"""Which replica answers a guest: the one that owes the fewest tokens, or the one that answered the turn before. Pure.

Guarantees: only a replica that said that it may be routed to is chosen; what a replica owes is never below zero, and is
forgotten with it.
"""

from collections.abc import Callable


class Routes:
    """The replicas that may be asked, and the tokens that each owes at most.

    Example:
        routes.opened("rollout-0")
        name = routes.choose()                  # None: there is nobody
        routes.owe(name, 256)
        routes.paid(name, 256)
        routes.closed("rollout-0")
    """

    def __init__(self) -> None:
        self._owed: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def owed(self) -> dict[str, int]:
        """Tokens by replica."""
        return dict(self._owed)

    def opened(self, name: str) -> None:
        """A replica may be routed to from now on. It owes nothing yet."""
        self._owed[name] = 0

    def closed(self, name: str) -> None:
        """It may not any more; unknown names are ignored."""
        self._owed.pop(name, None)

    def choose(
        self, may: Callable[[str], bool] = lambda _: True, *, rather: str | None = None, worth: int = 0
    ) -> str | None:
        """The replica that owes least, by name where several do, of those that `may`; None when there is none. rather:
        the one that has `worth` tokens of the prompt in its cache; it is chosen while it owes no more than so many
        above the least."""
        least = min(filter(may, self._owed), key=lambda name: (self._owed[name], name), default=None)
        if least is None or rather is None or rather not in self._owed or not may(rather):
            return least
        return rather if self._owed[rather] <= self._owed[least] + worth else least

    def owe(self, name: str, tokens: int) -> None:
        """A request of so many tokens at most was given to it."""
        if name in self._owed:
            self._owed[name] += tokens

    def paid(self, name: str, tokens: int) -> None:
        """So many of them came, or will not come any more."""
        if name in self._owed:
            self._owed[name] = max(0, self._owed[name] - tokens)
