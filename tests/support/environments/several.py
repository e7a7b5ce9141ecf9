"""Environments of two agents, good ones and bad ones."""

from typing import Any

from streamrl.environments import Done, ToAgent


class Together:
    """`left` speaks, then `right`, and both have 0.75."""

    end = Done(0.75)

    def reset(self, row: dict[str, Any]) -> Any:
        return ToAgent("left", "hi")

    def step(self, message: dict[str, Any]) -> Any:
        if message["content"] == "a":
            return ToAgent("right", "hi")
        return self.end


class Forgotten(Together):
    end = Done(rewards={"left": 1.0})


class Alone(Together):
    end = Done(rewards={"left": 1.0})

    def reset(self, row: dict[str, Any]) -> Any:
        return "hi"

    def step(self, message: dict[str, Any]) -> Any:
        return self.end


class Nameless(Together):
    def reset(self, row: dict[str, Any]) -> Any:
        return ToAgent("", "hi")
