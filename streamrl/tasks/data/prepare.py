"""Prepares the prompts of `[data]`: reads every row once, renders it, and writes the prompts to a folder.

Guarantees that the same files, settings and tokenizer give the same prompts, under the same ids, in the same order;
that memory does not grow with the number of rows; and that a row which cannot be used is counted and told.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import xxhash

from streamrl.config.schema.data import EVAL, DataConfig
from streamrl.errors import ConfigError
from streamrl.ids import prompt_digest
from streamrl.observability.plural import how_many
from streamrl.tasks.base import Prompt
from streamrl.tasks.data.addresses import DataFile, Hub, find
from streamrl.tasks.data.columns import BadRow, item_of
from streamrl.tasks.data.hub import read_hub
from streamrl.tasks.data.readers import Broken, RawRow, read_rows
from streamrl.tasks.data.store import HELD_OUT, TRAIN, BadRowNote, Meta, PromptWriter, write_meta
from streamrl.tasks.data.templating import Renderer
from streamrl.tasks.data.values import as_json

BAD_ROWS_TOLD = 5
REPORT_EVERY = 50_000
Report = Callable[[int], None]


class SourceRow(NamedTuple):
    """A row and where it is from. source: its file or data set."""

    source: str
    row: RawRow


def prepare(
    data: DataConfig, renderer: Renderer, max_tokens: int, folder: Path, report: Report = lambda _rows: None
) -> Meta:
    """Fill `folder`. max_tokens: of a prompt. report: is told now and then how many rows have been read.

    Raises ConfigError for addresses with nothing behind them, for too many rows that cannot be used, for a prompt that
    is too long where `too_long = "error"`, and for data without a prompt to train on."""
    with PromptWriter(folder, TRAIN) as train, PromptWriter(folder, HELD_OUT) as held_out:
        work = _Preparation(data, renderer, max_tokens, report)
        of_train = [
            work.take_train(place, address, train, held_out) for place, address in enumerate(data.train_addresses)
        ]
        of_sets = {EVAL: held_out.count} if held_out.count else {}
        for name, address in data.eval_addresses.items():
            before = held_out.count
            work.take_eval(name, address, held_out)
            of_sets[name] = held_out.count - before
        work.require_usable(train.count)
        digest = xxhash.xxh3_64_hexdigest((train.close() + held_out.close()).encode())
    parts = [folder / f"{name}.{kind}" for name in (TRAIN, HELD_OUT) for kind in ("prompts", "places")]
    meta = Meta(
        train=of_train,
        held_out=of_sets,
        longest_tokens=work.longest_tokens,
        longest_text=work.longest_text,
        too_long=work.too_long,
        num_bad=work.num_bad,
        bad=work.bad,
        without_answer=work.without_answer,
        fingerprint=digest,
        sizes={part.name: part.stat().st_size for part in parts},
    )
    write_meta(folder, meta)
    return meta


class _Preparation:
    """What is counted over all rows."""

    def __init__(self, data: DataConfig, renderer: Renderer, max_tokens: int, report: Report) -> None:
        self._data = data
        self._names = data.columns or {}
        self._renderer = renderer
        self._max_tokens = max_tokens
        self._report = report
        self._rows = 0
        self.longest_tokens = self.longest_text = self.too_long = self.num_bad = self.without_answer = 0
        self.bad: list[BadRowNote] = []

    def take_train(self, place: int, address: str, train: PromptWriter, held_out: PromptWriter) -> int:
        """The rows of one address of `data.train`; how many of them train."""
        before = train.count
        for number, found in enumerate(self._rows_of(address, "train")):
            prompt = self._prompt(found, f"{place}" if place else "", number)
            if prompt is None:
                continue
            if self._is_held_out(prompt):
                held_out.add(prompt)
            else:
                train.add(prompt)
                text = 3 * len(prompt.prompt_id) + len(prompt.payload.encode())
                self.longest_text = max(self.longest_text, text)
        return train.count - before

    def take_eval(self, name: str, address: str, held_out: PromptWriter) -> None:
        for number, found in enumerate(self._rows_of(address, "eval")):
            prompt = self._prompt(found, f"{name}", number)
            if prompt is not None:
                held_out.add(prompt)

    def require_usable(self, trained: int) -> None:
        if trained:
            return
        why = f"{how_many(self._rows, 'row', 'rows')}, {self.num_bad} of them unusable, {self.too_long} too long"
        first = f"; the first: {_where(self.bad[0])}" if self.bad else ""
        raise ConfigError(f"data.train: no prompt to train on: {why}{first}")

    def _rows_of(self, address: str, use: str) -> Iterator[SourceRow]:
        found = find(address, use)
        parts: list[tuple[str, Iterator[RawRow]]] = (
            [(f"hf:{found.name}", read_hub(found, use))]
            if isinstance(found, Hub)
            else [(str(one.path), read_rows(one)) for one in found]
        )
        for source, rows in parts:
            for row in rows:
                self._rows += 1
                if self._rows % REPORT_EVERY == 0:
                    self._report(self._rows)
                yield SourceRow(source, row)

    def _prompt(self, found: SourceRow, address: str, number: int) -> Prompt | None:
        """The prompt of a row; None for one that is left out. number: of the row in its address, from 0."""
        source, row = found
        try:
            if isinstance(row.value, Broken):
                raise BadRow(row.value.reason)
            item = item_of(row.value, self._names, filled=row.filled)
            text, ids, by_template = self._renderer.render(item)
        except BadRow as error:
            self._note_bad(BadRowNote(source, row.number, str(error)))
            return None
        if len(ids) > self._max_tokens:
            self._note_too_long(found, text, len(ids))
            return None
        self.longest_tokens = max(self.longest_tokens, len(ids))
        self.without_answer += item.payload.get("answer") is None
        prompt_id = prompt_digest(f"{address}\x00{text}" if address else text, number)
        return Prompt(prompt_id, text, as_json(item.payload), ids.astype("<i4").tobytes() if by_template else b"")

    def _note_bad(self, note: BadRowNote) -> None:
        self.num_bad += 1
        if len(self.bad) < BAD_ROWS_TOLD:
            self.bad.append(note)
        if self.num_bad > self._data.max_bad_rows:
            told = "; ".join(map(_where, self.bad))
            raise ConfigError(
                f"data: more than data.max_bad_rows = {self._data.max_bad_rows} rows cannot be used: {told}; mend "
                "them, or allow more"
            )

    def _note_too_long(self, found: SourceRow, text: str, count: int) -> None:
        self.too_long += 1
        if self._data.too_long == "error":
            raise ConfigError(
                f"data {found.source}: row {found.row.number}: the prompt has {count} tokens, and {self._max_tokens} "
                "fit (data.max_prompt_tokens, or the model's context less rollout.sampling.max_new_tokens); set "
                f'data.too_long = "skip" to leave such rows out. It begins {text[:60]!r}'
            )

    def _is_held_out(self, prompt: Prompt) -> bool:
        """By the prompt's text, so equal prompts are on one side."""
        if self._data.eval is not None or not self._data.held_out:
            return False
        digest = xxhash.xxh3_64_intdigest(prompt.text.encode(), seed=self._data.held_out_seed)
        return digest < self._data.held_out * 2**64


def _where(note: BadRowNote) -> str:
    return f"{note.source}: row {note.row}: {note.reason}"


def sources(data: DataConfig) -> list[tuple[str, str, Sequence[DataFile | Hub]]]:
    """What each address means: (use, name of its set, files), those of evaluation behind. Raises ConfigError."""
    addresses = [("train", "", address) for address in data.train_addresses]
    addresses += [("eval", name, address) for name, address in data.eval_addresses.items()]
    found: list[tuple[str, str, Sequence[DataFile | Hub]]] = []
    for use, name, address in addresses:
        meant = find(address, use)
        found.append((use, name, [meant] if isinstance(meant, Hub) else meant))
    return found
