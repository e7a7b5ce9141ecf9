"""The environment `word_chain`: a game of words for two, as an example of several agents in one episode.

The players speak in turn. A word has to begin with the last letter of the word before, and may be said once. Who says
anything else has lost: 0, and 1 for the other. Both are the model that is trained; each has a row with its own reward.
"""

from collections.abc import Sequence
from typing import Any

from streamrl.environments.base import Done, Message, ToAgent

PLAYERS = ("first", "second")
WORDS = (
    *("apple", "arm", "bird", "book", "cat", "cloud", "day", "dog", "door", "ear", "egg", "eye", "fish", "game"),
    *("glass", "hand", "hat", "ink", "island", "key", "king", "lamp", "leaf", "man", "moon", "name", "night", "nose"),
    *("ocean", "owl", "pen", "plant", "queen", "rain", "ring", "river", "road", "sea", "star", "stone", "table", "tea"),
    *("time", "tree", "umbrella", "violin", "water", "window", "wood", "yard", "year", "zebra"),
)
RULES = (
    "You play a word chain. Say one English word that begins with the letter {letter!r}, and that nobody has said. "
    "The next word begins with its last letter. Say nothing but the word."
)


class WordChain:
    """One game. words: those that count; the first letter follows from the row's `seed`.

    Example:
        >>> game = WordChain(["tea", "apple", "egg"])
        >>> game.reset({"seed": 0}).agent, game.step({"content": "apple"}).agent
        ('first', 'second')
        >>> game.step({"content": "eagle"}).rewards
        {'first': 1.0, 'second': 0.0}
    """

    def __init__(self, words: Sequence[str] = WORDS) -> None:
        self._words = frozenset(word.lower() for word in words)
        self._said: list[str] = []
        self._letter = ""

    def reset(self, row: dict[str, Any]) -> ToAgent:
        """The rules, to the first player."""
        letters = sorted({word[0] for word in self._words})
        self._letter = letters[int(row.get("seed", 0)) % len(letters)]
        return ToAgent(PLAYERS[0], RULES.format(letter=self._letter))

    def step(self, message: Message) -> ToAgent | Done:
        """The word, to the other player; or the end."""
        speaker = len(self._said) % 2
        word = str(message["content"]).strip().lower()
        if word not in self._words or word in self._said or not word.startswith(self._letter):
            return self._won(PLAYERS[1 - speaker])
        self._said.append(word)
        self._letter = word[-1]
        told = RULES.format(letter=self._letter) if len(self._said) == 1 else "Go on."
        return ToAgent(PLAYERS[1 - speaker], f"The word before is {word!r}. {told}")

    def truncated(self) -> Done:
        """Nobody has lost."""
        return Done(components=self._length(), rewards=dict.fromkeys(PLAYERS, 0.5))

    def _won(self, winner: str) -> Done:
        rewards = {player: float(player == winner) for player in PLAYERS}
        return Done(components=self._length(), rewards=rewards)

    def _length(self) -> dict[str, float]:
        return {"words": float(len(self._said))}
