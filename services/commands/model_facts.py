"""What a configuration's model is, in a line: its type, its size, and what samples from it."""

from streamrl.config import Config
from streamrl.config.estimates.model_of import run_facts
from streamrl.config.estimates.sizes import human_bytes
from streamrl.config.known import EXPERT_TYPES, MODEL_TYPES


def model_lines(config: Config) -> list[str]:
    """[] where its folder says too little."""
    facts, _ = run_facts(config)
    if facts is None:
        return []
    size = 2 if config.model.dtype == "bfloat16" else 4
    context = f", context {facts.context}" if facts.context else ""
    lines = [
        f"model: {facts.model_type}, {facts.num_parameters:,} parameters, {human_bytes(size * facts.num_parameters)} a "
        f"version in {config.model.dtype}{context}"
    ]
    fast = (*MODEL_TYPES, *EXPERT_TYPES) if config.rollout.device == "cpu" else MODEL_TYPES
    if config.rollout.engine == "torch" and facts.model_type not in fast:
        lines.append(
            f"model: the torch engine runs {facts.model_type} by transformers' own modules, exact and slower than its "
            f"way for {', '.join(fast)} (docs/guides/engines.md)"
        )
    return lines
