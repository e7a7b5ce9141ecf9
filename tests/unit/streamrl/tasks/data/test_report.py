"""What `streamrl data check` says: lengths, duplicates, leakage, missing answers."""

from pathlib import Path

from support.data.chat_model import write_chat_tokenizer, write_rows

from streamrl.config.schema.data import DataConfig
from streamrl.models.tokenizer import load_tokenizer
from streamrl.tasks.data.cache import open_data
from streamrl.tasks.data.report import BINS, report_of


def test_duplicates_leakage_and_missing_answers_are_counted_and_lengths_add_up(tmp_path: Path) -> None:
    model = write_chat_tokenizer(tmp_path / "model")
    train = [{"prompt": "x" * (1 + n % 40), "answer": n if n % 10 else None} for n in range(100)]
    held_out = [{"prompt": "new"}, {"prompt": "x" * 40}, {"prompt": "x"}]
    settings = DataConfig(
        train=str(write_rows(tmp_path / "train.jsonl", train)),
        eval=str(write_rows(tmp_path / "eval.jsonl", held_out)),
        cache=str(tmp_path / "cache"),
    )
    task = open_data(settings, model, 10**6)
    report = report_of(task, load_tokenizer(model))
    assert (report.duplicates, report.leaked, report.without_answer) == (60, 2, 10)
    assert report.leaks == [(1, 39), (2, 0)]
    assert sum(count for _, _, count in report.lengths) == 100
    assert len(report.lengths) <= BINS
    assert (report.lengths[0][0], report.lengths[-1][1]) == (2, 41)
