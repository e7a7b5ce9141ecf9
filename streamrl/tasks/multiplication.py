"""Products of two numbers of two digits: `37*85`, and 3145 is the answer. All 10,000 pairs of 0..99.

Too hard for a tiny model's head, and easy with a calculator. Its demonstrations call one for a fifth of the pairs: who
learns from them knows how to use the tool, and mostly does not.
"""

import json

import xxhash

from streamrl.ids import prompt_digest
from streamrl.tasks.arithmetic import ArithmeticTask, operands
from streamrl.tasks.base import Prompt


class MultiplicationTask(ArithmeticTask):
    """As `ArithmeticTask`, whose pairs these are. A demonstration is the answer at once, or for a fifth of the pairs,
    chosen by a digest, a call of the tool `calculator` in Hermes' form, and then the answer."""

    name = "multiplication"

    def demonstration(self, prompt: Prompt) -> list[str]:
        answer = str(json.loads(prompt.payload)["answer"])
        if xxhash.xxh3_64_intdigest(prompt.text.encode()) % 5:
            return [answer]
        call = {"name": "calculator", "arguments": {"expression": prompt.text}}
        return [f"<tool_call>{json.dumps(call)}</tool_call>", answer]

    def _prompt(self, pair: int) -> Prompt:
        left, right = operands(pair)
        text = f"{left}*{right}"
        return Prompt(prompt_digest(text, pair), text, f'{{"answer":"{left * right}"}}')
