"""A whole run that trains adapters, on real servers: they serve the merged weights, and know of no adapters."""

from pathlib import Path

import pytest
from support.engines.real_engines import CLOSE, ENGINES, Kind
from support.runs.live_run import live_run, prepare
from support.weights.adapted_model import IGNORED, apart, most_sampled

STEPS = 12
LEARNT = 4
"""From this step on adapters have changed what is sampled."""


@pytest.mark.filterwarnings(IGNORED)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_answers_with_the_log_probs_of_the_adapters_that_are_trained(
    engine: str, tmp_path: Path, streamrl_path: Path
) -> None:
    python = Kind(engine).python
    if not python.exists():
        pytest.skip(f"needs .venvs/{engine}: make engines")
    prepare(tmp_path)
    server = ("--rollout.engine", engine, "--rollout.server.python", str(python), "--deadlines.start_s", "600")
    few = ("--rollout.replicas", "1", "--learner.steps", str(STEPS), "--eval.every", "1000")
    adapters = ("--learner.lora.rank", "4", "--learner.lora.alpha", "16", "--learner.optimizer.lr", "1e-2")
    # Which versions a server takes up depends on how quick it is, so all are kept.
    kept = ("--checkpoint.every", "1", "--checkpoint.keep", str(STEPS))
    # Keys and values of older weights would be in the log-probs, too.
    update = ("--rollout.update_mode", "drain")
    with live_run(tmp_path, streamrl_path, "adapted", *server, *few, *adapters, *update, *kept) as run:
        code, err = run.end()
    assert code == 0, err
    found = apart(run.folder, tmp_path, most_sampled(run.folder, LEARNT))
    assert found.rows >= 8
    assert found.adapted <= CLOSE
    assert found.base > 100 * CLOSE
