"""The shape of a configuration: one frozen struct per TOML table, each key with its meaning and its range.

Nothing heavy is imported here: `streamrl check` must answer in a moment. What a type or a range cannot say is
in `rules`; where a value came from (file and line) is in `load`. Derived quantities are properties, not keys.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from streamrl.config.data_names import names_data
from streamrl.config.schema.data import DataConfig
from streamrl.config.schema.environment import EnvironmentConfig
from streamrl.config.schema.learner import LearnerConfig
from streamrl.config.schema.observe import ObserveConfig
from streamrl.config.schema.rollout import RolloutConfig
from streamrl.config.schema.sandbox import SandboxConfig
from streamrl.config.schema.serve import ServeConfig
from streamrl.config.schema.streams import Share
from streamrl.config.schema.table import Fraction, Name, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Table


class TaskConfig(Table, frozen=True):
    """The task: its prompts, and how many are held out."""

    name: str = "arithmetic"
    """A built-in task, `module:Class` of one's own, or the address of a file of prompts (see `data.train`)."""
    held_out: Fraction = 0.1
    """Share of the task's items kept for evaluation, by a fixed digest; never trained on."""


class ModelConfig(Table, frozen=True):
    """The policy that is trained."""

    preset: str | None = None
    """A model made from nothing by name. Exactly one of `preset` and `path`."""
    path: str | None = None
    """A Hugging Face model folder (config, safetensors, tokenizer)."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of weights and activations, in the learner and in the engine."""


class WarmupConfig(Table, frozen=True):
    """Supervised warm-up on the task's own demonstrations, before the stream starts."""

    max_steps: NonNegative = 0
    """Maximum number of steps; 0 skips the warm-up."""
    batch_size: Positive = 256
    """Demonstrations per step."""
    lr: PositiveFloat = 1e-3
    """Peak rate; it decays linearly over `max_steps`."""
    min_lr_ratio: Fraction = 0.1
    """Rate at the last step, as a share of `lr`. A model warmed up at a high rate to the end stands the first updates
    of reinforcement learning better."""
    threads: Positive = 1
    """Intra-op threads of one learner rank during the warm-up, when nobody else computes."""
    target_score: Fraction = 0.4
    """Greedy score, on training items held apart from the update, at which the warm-up stops."""
    eval_every: Positive = 10
    """Steps between two evaluations of the score."""


class RewardModelConfig(Table, frozen=True):
    """A reward model: a sequence classifier of one label, as `streamrl reward-model` writes it, that scores prompt and
    completion in the processes of the reward stage (docs/guides/rewards.md)."""

    path: str | None = None
    """Its Hugging Face folder, with the policy's own tokenizer. No reward model when absent."""
    weight: float = 1.0
    """The reward is what `reward.function` gives plus `weight` times the model's score."""
    max_tokens: Positive | None = None
    """Tokens of prompt and completion that it takes; a longer rollout has no score. The context that its config.json
    names when absent."""
    rows_at_once: Positive = 64
    """Rows of one length that share a forward. With 1 a rollout's score is the same to the bit whatever else is scored,
    which `max_staleness = 0` requires; with more it is so up to rounding, and small models are several times faster."""


class RewardRule(Struct, frozen=True):
    """What scores a completion: functions by name, each with its weight, and what each is given beside.

    One function of weight 1 is the reward itself."""

    functions: dict[str, float]
    options: dict[str, dict[str, Any]] = {}

    @property
    def name(self) -> str:
        return " + ".join(self.functions)


class RewardConfig(Table, frozen=True):
    """The stage that scores each rollout when it ends."""

    function: str = "exact_match"
    """A built-in reward, or `module:function` of one's own. `reward_model` is `reward.model` alone."""
    functions: dict[str, float] | None = None
    """Several of them by name, each with its weight, in the place of `function`: the reward is their weighted sum.
    `{ math = 1.0, "my_rewards:brevity" = 0.2 }`"""
    options: dict[str, dict[str, Any]] | None = None
    """What a function is given beside the completion and its row, by the function's name:
    `{ gsm8k = { method = "strict" } }` (docs/guides/rewards.md)."""
    workers: Positive = 1
    """Child processes that score."""
    batch_size: Positive = 512
    """Number of rollouts that one child scores at once."""
    timeout_s: PositiveFloat = 10.0
    """Wall time for one batch, then for each of its rollouts alone, before the child is killed."""
    memory_bytes: Positive = 2 * 2**30
    """Limit of a child's address space, in bytes."""
    max_failed: Fraction = 0.2
    """Share of failed scores, over a step, at which the run stops and says why."""
    model: RewardModelConfig = field(default_factory=RewardModelConfig)

    @property
    def rule(self) -> RewardRule:
        """`function` or `functions`, with their options."""
        return RewardRule(self.functions or {self.function: 1.0}, self.options or {})


class CheckpointConfig(Table, frozen=True):
    """Atomic commits of everything that a resume needs."""

    every: Positive = 50
    """Steps between two checkpoints; the last step always has one."""
    keep: Positive = 2
    """Checkpoints kept; an older one goes only after a newer one is verified."""
    byte_budget: Positive | None = None
    """Bytes of all checkpoints, the one that is being written included: `keep` + 1 of them at least. Room for one more
    when absent. What cannot be read goes first, then the oldest; the newest verified one never."""
    folder: str | None = None
    """A second place for them, which outlives this machine: a folder, or an address such as `s3://bucket/prefix`; they
    lie there under the run's name, `keep` and `byte_budget` hold there, too. A run whose folder is not here, or is
    older, goes on from there. Credentials come from the environment (docs/checkpoints.md)."""


class EvalConfig(Table, frozen=True):
    """Scores on the held-out items, under one pinned version."""

    every: Positive = 100
    """Steps between two evaluations beside the stream; before and after are always scored."""
    max_items: NonNegative = 0
    """Held-out items scored, of each set of `data.eval`; 0 takes all."""
    samples: Positive = 1
    """Completions of each held-out item. With k of them `eval/avg@k` and `eval/pass@k` are told, too."""
    temperature: NonNegativeFloat = 0.0
    """Of these completions; 0 is greedy, which one completion is enough for."""
    target_score: Fraction = 0.0
    """The run ends once a version reaches this held-out score, as if the step that is made then was its last; 0 trains
    all steps."""


class QueueConfig(Table, frozen=True):
    """The durable replay queue between the replicas and the learner."""

    durability: Literal["disk", "memory"] = "disk"
    """`disk`: acknowledged rows survive a `kill -9`. `memory`: they survive a process, not the machine."""
    commit_interval_ms: NonNegativeFloat = 5.0
    """Group commit: rows that arrive within it share one sync to disk."""
    segment_bytes: Positive = 16 * 2**20
    """Size of a log file, allocated at once."""
    byte_budget: Positive = 2 * 2**30
    """Bytes of rows waiting or not yet covered by a checkpoint; when trained rows take 70% of it, a checkpoint is taken
    before its time."""
    retain: Literal["all", "covered"] = "all"
    """`all` keeps the rows of the whole run, for `replay` and for queries, as long as `disk_budget` has room for them.
    `covered` removes a log file as soon as no resume can need its rows."""
    disk_budget: Positive = 16 * 2**30
    """Bytes of the log files of completions and scores and of the journals, on each node; beyond it the oldest that no
    resume can need are removed. Up to a sixteenth of it are removed files that are kept to be written over."""
    fetched_bytes: Positive = 2 * 2**30
    """Bytes of the copies of rows that were written on other nodes. Up to `byte_budget` of them outlive their node."""
    min_free_bytes: NonNegative = 256 * 2**20
    """Free bytes of the run folder's disk under which the run pauses: no new groups until there is more again. 0 pauses
    only when the disk is full."""


class WeightsConfig(Table, frozen=True):
    """The versions on their way from the learner to the replicas."""

    byte_budget: Positive | None = None
    """Bytes of shared memory that versions may take, two at least: the learner waits, and says so, until nobody needs
    an older one. Deltas take what is left. Room for 3 + `rollout.replicas` versions when absent, and for two bases
    where they hold adapters."""
    between_nodes: Literal["object_store", "collective", "disk"] = "object_store"
    """How they reach the other nodes of `rollout.resources`; on the run's own node it is shared memory always."""
    delta: bool = True
    """Whether what travels between nodes is the difference to the version before, where that takes fewer bytes."""
    folder: str | None = None
    """Of `between_nodes = "disk"`: a folder that all nodes see, under the same absolute path; or the address of a store
    that all reach, such as `s3://bucket/prefix`."""
    collective_backend: Literal["gloo", "nccl"] = "gloo"
    """Of `between_nodes = "collective"`: `nccl` where the learner's node and every other have a GPU."""


class DeadlineConfig(Table, frozen=True):
    """Seconds that the system waits before it fails and says for what."""

    start_s: PositiveFloat = 120.0
    """From the launch of a part to its first sign of life."""
    rollout_s: PositiveFloat = 300.0
    """From the issue of a group to its last rollout's score."""
    update_s: PositiveFloat = 60.0
    """From the publication of a version to a replica's acknowledgement."""
    step_s: PositiveFloat = 600.0
    """One learner step, its wait for data excepted."""
    checkpoint_s: PositiveFloat = 600.0
    """From the snapshot of a checkpoint to its commit."""
    upload_s: PositiveFloat = 600.0
    """From the commit of a checkpoint until it is in `checkpoint.folder`, too; what has taken longer is ended, told and
    begun again. From the end of the training the run waits for so long. Of a look at that place, a tenth of it."""
    stop_s: PositiveFloat = 10.0
    """From the order to stop to the last process gone."""
    tracker_s: PositiveFloat = 30.0
    """From handing something to a tracker to its answer, then it is dropped; and from the end of the training until
    trackers must be done."""
    stall_s: PositiveFloat = 300.0
    """Without any movement of the run, until the stacks of its processes are written down and what it waits for is
    said. It ends nothing."""


class RayConfig(Table, frozen=True):
    """The Ray that the run lives in."""

    address: str = "local"
    """`local` starts a Ray of its own, on loopback, with a token; else the address of a cluster, `host:port`. `auto` is
    the cluster of the Ray job that `streamrl up` is the entrypoint of."""
    num_cpus: Positive | None = None
    """CPUs that a local Ray offers; all of the machine's when absent."""
    object_store_bytes: Annotated[int, Meta(ge=78643200)] = 100 * 2**20
    """Ray's own shared memory; streamrl's data does not pass through it."""


class GatewayConfig(Table, frozen=True):
    """The door for clients over HTTP: OpenAI's routes, answered by the replicas beside the stream."""

    enabled: bool = False
    """Whether the run has one."""
    host: str = "127.0.0.1"
    """Address that it listens on. Any but one of this machine's own needs `tls_cert` and `tls_key`, or
    `insecure_bind`."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 0
    """Port that it listens on; 0 takes a free one, which `streamrl status` and `run.json` name."""
    insecure_bind: bool = False
    """Allow a `host` that others reach without TLS: tokens and texts travel as they are."""
    names: tuple[str, ...] = ()
    """Names by which clients reach it, beside `localhost`, `host` and addresses; a request for another one is
    refused."""
    path_prefix: str = ""
    """What a proxy before it leaves in front of every path, such as `/llm`; requests without it are answered too. A
    proxy that takes its prefix off needs nothing here."""
    tls_cert: str | None = None
    """PEM file of its certificate."""
    tls_key: str | None = None
    """PEM file of the certificate's key."""
    max_body_bytes: Positive = 2**20
    """Bytes of a request's body."""
    max_completions: Positive = 64
    """Completions that one request may ask for, its prompts times `n`."""
    max_requests: Positive = 1024
    """Requests that are answered at once; further ones are told to come back."""
    max_prompts: Positive = 256
    """Prompts of one submission that have not ended; further ones are read when some have."""
    max_prompt_tokens: NonNegative = 0
    """Tokens of a submitted prompt, where the task has no longer one. Engines and queue make room for them."""
    max_payload_bytes: Positive = 4096
    """Bytes of what a submitted prompt has for the reward."""
    waiting_bytes: Positive = 2**26
    """Bytes of submitted prompts that wait to be generated; submitting waits while there are more. Of trajectories that
    wait for their group, as many again."""
    session_idle_s: PositiveFloat = 3600.0
    """Seconds after which a session that nobody used, and nobody rewarded, is forgotten."""
    session_bytes: Positive = 2**28
    """Bytes of the sessions that have no reward yet; further ones are told to come back."""
    session_sampling: Literal["asked", "run"] = "asked"
    """What becomes of a session's call that asks for another `temperature`, `top_p`, `top_k` or `min_p` than rollouts
    have. `asked`: it is refused, since what is drawn so is not trained. `run`: it is drawn as rollouts are, for agents
    whose settings cannot be changed."""
    tool_call_parser: Literal[
        "auto",
        "none",
        "hermes",
        "qwen3_coder",
        "glm45",
        "llama3_json",
        "pythonic",
        "llama4_pythonic",
        "mistral",
        "deepseek_v3",
        "deepseek_v31",
        "openai",
    ] = "auto"
    """In which form tool calls in a model's answers are read, by the names that vLLM has for them: `openai` is the one
    of gpt-oss. With `auto` it is the one that the chat template asks for; with `none` calls stay text."""
    reasoning_parser: Literal["none", "think", "mistral", "openai_gptoss"] = "none"
    """In which form a model's thoughts are read, and told apart from its text: as `reasoning_content` of a chat, a
    block of `thinking`, an item of `reasoning`. `think`: between `<think>` and `</think>` at the beginning of an
    answer, as Qwen, DeepSeek and GLM write them. `mistral`: between `[THINK]` and `[/THINK]` there. `openai_gptoss`: in
    the channel `analysis`, as gpt-oss writes them."""
    serve: ServeConfig = field(default_factory=ServeConfig)
    stream_weights: dict[str, float] | None = None
    """Groups that each stream of prompts gets for each one of a stream of weight 1, while both have prompts. `train` is
    the run's own data, which may have 0; a client names its stream, `clients` where it does not."""
    stream_priorities: dict[str, int] | None = None
    """While a stream has prompts, those of a lower priority get none. A stream that is not named has 0."""

    @property
    def shares(self) -> dict[str, Share]:
        """Of the streams that are named."""
        weights, priorities = self.stream_weights or {}, self.stream_priorities or {}
        names = {**weights, **priorities}
        return {name: Share(weights.get(name, 1.0), priorities.get(name, 0)) for name in names}

    @property
    def has_tls(self) -> bool:
        return self.tls_cert is not None and self.tls_key is not None


class Config(Table, frozen=True):
    """A whole run. Every key has a default but the model."""

    name: Name = "run"
    """Name of the run; its folder is `<runs>/<name>`."""
    runs: str = "runs"
    """Folder of run folders."""
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0
    """Seed of data order, sampling, warm-up and a preset's initial weights."""
    task: TaskConfig = field(default_factory=TaskConfig)
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    warmup: WarmupConfig = field(default_factory=WarmupConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    queue: QueueConfig = field(default_factory=QueueConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    deadlines: DeadlineConfig = field(default_factory=DeadlineConfig)
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)

    @property
    def training_data(self) -> DataConfig | None:
        """The data that the run trains on: `[data]`, or the address that `task.name` is. None for a task that is a
        class."""
        data = self.data
        if self.plays_episodes:
            data = replace(data, as_chat=False)  # the environment makes messages of what the row says
        if data.train is not None:
            return data
        if not names_data(self.task.name):
            return None
        share = 0.0 if data.eval is not None else data.held_out or self.task.held_out
        return replace(data, train=self.task.name, held_out=share)

    @property
    def plays_episodes(self) -> bool:
        """Whether rollouts are episodes of an environment."""
        return self.environment.name is not None

    @property
    def rollouts_per_step(self) -> int:
        return self.learner.groups_per_step * self.rollout.group_size

    @property
    def promise(self) -> str:
        """What `queue.durability` promises in this run, for whoever looks at it."""
        words = {
            "disk": "disk: what was acknowledged survives kill -9 and a power cut",
            "memory": "memory: what was acknowledged survives kill -9, but not a crash of the machine or a power cut",
        }[self.queue.durability]
        if self.rollout.resources is None:
            return words
        return f"{words}; rows of a replica on another node are generated again if that node's disk is lost"

    @property
    def journals_partials(self) -> bool:
        """Whether tokens of running rollouts are written to disk."""
        every = self.rollout.journal_every_tokens
        return every > 0 and (self.plays_episodes or every < self.rollout.sampling.max_new_tokens)

    @property
    def greedy_sample(self) -> int | None:
        """The sample of each group that is generated greedily, and that the others are only compared with; None where
        there is none."""
        return self.rollout.group_size - 1 if self.learner.algorithm.has_greedy_sample else None

    @property
    def total_groups(self) -> int:
        """Groups that the whole run trains on."""
        return self.learner.steps * self.learner.groups_per_step
