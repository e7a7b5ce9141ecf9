"""A task set of verifiers with several agents: one asks for a word, another one spells it backwards, and both are paid
where it is right. A judge that is not trained looks at it where it is asked for."""

from collections.abc import Iterator

import verifiers.v1 as vf


class AskingTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    """No toolset, and no reward of its own."""


class AskingTaskset(vf.Taskset[AskingTask, vf.TasksetConfig]):
    def load(self) -> Iterator[AskingTask]:
        yield AskingTask(vf.TaskData(prompt="Say a word."), self.config.task)


class AskingConfig(vf.EnvConfig):
    asker: vf.AgentConfig = vf.AgentConfig()
    speller: vf.AgentConfig = vf.AgentConfig()
    judge: vf.AgentConfig = vf.AgentConfig()
    judged: bool = False
    attempts: int = 1


class AskingEnv(vf.Env[AskingConfig]):
    async def setup(self, agents: vf.Agents) -> None:
        agents.judge.trainable = False

    async def run(self, task: AskingTask, agents: vf.Agents) -> None:
        async with agents.asker.interaction(task) as asker:
            word = (await asker.turn()).last_reply
            for _ in range(self.config.attempts):
                said = AskingTask(vf.TaskData(prompt=f"Spell {word} backwards."), task.config)
                async with agents.speller.interaction(said) as speller:
                    spelt = (await speller.turn()).last_reply
            await asker.turn(f"It is {spelt}.")
        right = float(spelt == word[::-1])
        asker.trace.record_reward("asked", right, 0.5)
        speller.trace.record_reward("spelt", right, 1.0)
        if self.config.judged:
            async with agents.judge.interaction(task) as judge:
                await judge.turn()


__all__ = ["AskingEnv", "AskingTaskset"]
