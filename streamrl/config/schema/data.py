"""The table of data that is read from files: which, which column is what, what becomes of rows that cannot train."""

from typing import Any, Literal

from msgspec import field

from streamrl.config.schema.table import Fraction, NonNegative, Positive, PositiveFloat, Table

EVAL = "eval"
"""The name of a set of evaluation prompts that has none of its own."""


class CurriculumConfig(Table, frozen=True):
    """Prompts that the model has solved, or that are too hard for it yet, rest: by the mean reward of their newest
    group, so from the second pass over the data on. Holds for a task that is a class, too (docs/guides/data.md)."""

    low: float | None = None
    """A prompt whose mean reward is below it rests. No bound when absent."""
    high: float | None = None
    """A prompt whose mean reward is above it rests: `0.99` means solved, with rewards of 0 and 1. No bound when
    absent."""
    rest: Positive = 1
    """Data passes in which it has no turn; then it is measured again."""

    @property
    def acts(self) -> bool:
        """Whether any prompt could rest."""
        return self.low is not None or self.high is not None


class DataConfig(Table, frozen=True):
    """The prompts, read from files. Replaces `[task]` if `train` is set.

    An address is a file, a glob or a folder (JSONL, JSON, CSV, TSV, Parquet, Arrow, also compressed), a data set
    saved to disk by `datasets`, or `hf:OWNER/NAME[/CONFIG]` for one of the hub (extra `data`); `#SPLIT` behind it names
    a split (docs/guides/data.md)."""

    train: str | tuple[str, ...] | None = None
    """Address of the rows to train on, or several of them."""
    weights: tuple[PositiveFloat, ...] = ()
    """How often a prompt comes from each address of `train`, relative to the others. By their rows when empty."""
    eval: str | dict[str, str] | None = None
    """Address of the rows that are only scored, or several by name. Without it, `held_out` of the training rows."""
    held_out: Fraction = 0.0
    """Share of the training rows that is kept for evaluation where there is no `eval`. Rows of equal prompts stay
    together, so none of them is trained on."""
    held_out_seed: NonNegative = 0
    """Which rows `held_out` keeps: another seed keeps others."""
    columns: dict[str, str] | None = None
    """Which column is the `prompt`, the `answer`, the `system` message, the `tools`, where they have other names, and
    which is the `demonstration` that a warm-up learns from: `{ prompt = "problem", answer = "meta.result" }`. A dot
    goes into a nested record."""
    as_chat: bool | None = None
    """Whether a prompt that is text becomes a user message of the model's chat template. When absent, a column that is
    called `prompt` or `text` does not; any other (`question`, `problem`, ...) does where the model has a template."""
    system: str | None = None
    """System message put before the messages of each prompt that has none."""
    chat_template_kwargs: dict[str, Any] | None = None
    """What the chat template is given beside the messages: `{ enable_thinking = false }`."""
    max_prompt_tokens: Positive | None = None
    """Tokens of a prompt at most, of a task's that is a class, too. The model's context less
    `rollout.sampling.max_new_tokens` when absent."""
    too_long: Literal["error", "skip"] = "error"
    """What becomes of a prompt with more: the run is refused, or the row is left out, counted and told."""
    max_bad_rows: NonNegative = 100
    """Rows that may be unusable (broken, without a prompt, not encodable): they are left out, counted, and the first of
    them told. With more the data is refused."""
    cache: str | None = None
    """Folder of prepared prompts; `~/.cache/streamrl/data` when absent, or the temporary folder where that cannot be
    written."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)

    @property
    def train_addresses(self) -> tuple[str, ...]:
        if self.train is None:
            return ()
        return (self.train,) if isinstance(self.train, str) else self.train

    @property
    def eval_addresses(self) -> dict[str, str]:
        """By the name of the set."""
        if self.eval is None:
            return {}
        return {EVAL: self.eval} if isinstance(self.eval, str) else self.eval
