"""A task set of verifiers: a word is to be spelt backwards, and who fails is told so and may try once more. With
a tool, which the package serves by running this module."""

from collections.abc import Iterator

import verifiers.v1 as vf

WORDS = ("abc", "stream", "queue")


class SpellingData(vf.TaskData):
    word: str


class Letters(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def letters(self, word: str) -> str:
        """The letters of a word, with dashes between them.

        Args:
            word: any word
        """
        return "-".join(word)


class SpellingTask(vf.Task[SpellingData, vf.State, vf.TaskConfig]):
    @classmethod
    def toolsets(cls, config: vf.TaskConfig) -> list[vf.Toolset]:
        return [Letters(vf.ToolsetConfig())]

    @vf.metric
    async def length(self) -> float:
        return float(len(self.data.word))


class SpellingTaskset(vf.Taskset[SpellingTask, vf.TasksetConfig]):
    def load(self) -> Iterator[SpellingTask]:
        for word in WORDS:
            data = SpellingData(prompt=f"Spell {word} backwards.", system_prompt="One word.", word=word)
            yield SpellingTask(data, self.config.task)


class SpellingConfig(vf.EnvConfig):
    speller: vf.AgentConfig = vf.AgentConfig()


class SpellingEnv(vf.Env[SpellingConfig]):
    async def run(self, task: SpellingTask, agents: vf.Agents) -> None:
        wanted = task.data.word[::-1]
        async with agents.speller.interaction(task) as interaction:
            segment = await interaction.turn()
            if segment.last_reply != wanted and not segment.terminated:
                segment = await interaction.turn("No.")
        interaction.trace.record_reward("backwards", float(segment.last_reply == wanted), 1.0)


__all__ = ["SpellingEnv", "SpellingTaskset"]

if __name__ == "__main__":
    Letters.run()
