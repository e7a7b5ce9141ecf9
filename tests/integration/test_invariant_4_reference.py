"""Invariant 4: with staleness 0 the running system is the synchronous loop, to the bit."""

import pytest

from buffers.queue import COMPLETIONS_DIR
from buffers.segment_reader import SegmentReader
from streamrl.config import load
from streamrl.reference import Reference

pytestmark = pytest.mark.ray

SYNCHRONOUS = (
    ("--learner.max_staleness", "0"),
    ("--rollout.update_mode", "drain"),
    ("--rollout.deterministic", "true"),
)


def sampled_ids(folder) -> dict[str, list[int]]:
    reader = SegmentReader(folder)
    ids = {}
    for path in sorted((folder / COMPLETIONS_DIR).glob("*.arrow")):
        for frame in reader.scan(str(path.relative_to(folder))):
            for row in reader.read(frame).to_pylist():
                pairs = zip(row["token_ids"], row["token_origin"], strict=True)
                ids[row["rollout_id"]] = [token for token, origin in pairs if origin == 1]
    return ids


def test_invariant_4_staleness_0_is_bit_equal_to_the_reference_loop(train, streamed, monkeypatch) -> None:
    model = ("--model.preset", "none", "--model.path", str(streamed.folder / "model"))
    flags = [argument for pair in SYNCHRONOUS for argument in pair]
    run = train("synchronous", *model, *flags)
    assert run.code == 0, run.output
    monkeypatch.syspath_prepend(run.folder.parents[1])
    records = list(Reference(load(run.folder / "config.toml")).steps())
    system = run.metrics()
    # In the order of cause and effect, so that a failure names the first thing that differs.
    sampled = sampled_ids(run.folder)
    assert {name: ids for record in records for name, ids in record.token_ids.items()} == sampled
    assert [record.loss for record in records] == [row["loss/policy"] for row in system]
    assert [record.grad_norm for record in records] == [row["grad/norm"] for row in system]
    assert [record.digest for record in records] == [row["weights/digest"] for row in system]
    assert len({record.digest for record in records}) == len(records) == 12
