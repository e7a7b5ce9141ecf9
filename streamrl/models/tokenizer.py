"""Text to ids and back, at the edges of the system, with the `tokenizers` library alone.

Guarantees that a tokenizer that loads has at least one end token, and that ids in and out are int32 numpy
arrays. It does not know chat templates, and it imports neither torch nor transformers: reward workers and
replicas start in a moment.
"""

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from streamrl.config.estimates.model_presets import BOS, EOS, PAD, SPECIAL_TOKENS, Preset
from streamrl.errors import ConfigError
from streamrl.models.folders import read_json
from streamrl.types import IntArray, LongArray


class TextTokenizer:
    """A fast tokenizer and its special ids.

    eos_token_ids: every id that ends a completion, in the order generation config, model config, tokenizer.
    bos_token_id, pad_token_id: None where the folder names none. pad is of no use to streamrl, which never
    pads."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token_ids: tuple[int, ...],
        bos_token_id: int | None = None,
        pad_token_id: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self.eos_token_ids = eos_token_ids
        self.bos_token_id = bos_token_id
        self.pad_token_id = pad_token_id

    @property
    def vocab_size(self) -> int:
        """Tokens that the tokenizer knows; a model's embedding may be larger."""
        return self._tokenizer.get_vocab_size(with_added_tokens=True)

    def vocabulary(self) -> dict[str, int]:
        """Every token with its id, those that were added among them."""
        known: dict[str, int] = self._tokenizer.get_vocab(with_added_tokens=True)
        return known

    @cached_property
    def special_token_ids(self) -> frozenset[int]:
        """Those that `decode` leaves out."""
        added = self._tokenizer.get_added_tokens_decoder()
        return frozenset(token_id for token_id, token in added.items() if token.special)

    def special_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Of those special tokens that are among these texts."""
        known = (self._tokenizer.token_to_id(text) for text in texts)
        return self.special_token_ids.intersection(token_id for token_id in known if token_id is not None)

    def added_ids(self, texts: Iterable[str]) -> dict[str, int]:
        """Of those texts that are tokens of their own, special ones or not: whatever they stand in, they are one."""
        added = {token.content: token_id for token_id, token in self._tokenizer.get_added_tokens_decoder().items()}
        return {text: added[text] for text in texts if text in added}

    def as_json(self) -> str:
        """As `tokenizer.json` has it."""
        text: str = self._tokenizer.to_str()
        return text

    def is_plain(self) -> bool:
        """Whether each token is the text that it stands for."""
        special = self.special_token_ids
        plain = ((token, token_id) for token, token_id in self.vocabulary().items() if token_id not in special)
        return all(self._tokenizer.decode([token_id]) == token for token, token_id in plain)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> IntArray:
        """int32 [n]. With `add_special_tokens`, what the tokenizer puts around a text (a bos token, mostly).

        Raises ConfigError for text that the vocabulary cannot express.
        """
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except Exception as error:  # the library raises nothing narrower
            raise ConfigError(f"the tokenizer cannot encode {text[:80]!r}: {error}") from error
        return np.array(encoding.ids, dtype=np.int32)

    def encode_batch(self, texts: Sequence[str], *, add_special_tokens: bool = True) -> list[IntArray]:
        """`encode` for many texts at once."""
        return [self.encode(text, add_special_tokens=add_special_tokens) for text in texts]

    def decode(
        self, token_ids: IntArray, *, special_tokens: bool = False, written: frozenset[int] = frozenset()
    ) -> str:
        """The text of one row, special tokens left out unless `special_tokens`, or unless they are among `written`."""
        ids: list[int] = token_ids.tolist()
        if written and not special_tokens:
            special = self.special_token_ids
            ids = [token_id for token_id in ids if token_id in written or token_id not in special]
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not (special_tokens or written))
        return text

    def decode_batch(self, token_ids_T: IntArray, offsets: LongArray) -> list[str]:
        """The texts of N rows, special tokens left out.

        token_ids_T: int32 [T], all rows together. offsets: int64 [N + 1], row i is offsets[i]:offsets[i + 1].
        """
        flat, ends = token_ids_T.tolist(), offsets.tolist()
        rows = [flat[start:end] for start, end in pairwise(ends)]
        texts: list[str] = self._tokenizer.decode_batch(rows, skip_special_tokens=True)
        return texts


def load_tokenizer(folder: str | Path) -> TextTokenizer:
    """The tokenizer of a Hugging Face folder (`tokenizer.json` and the small JSON files beside it).

    Raises ConfigError naming the folder when the file is missing or damaged, or no end token is known.
    """
    folder = Path(folder)
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{folder} has no tokenizer.json; save a fast tokenizer there with "
            "AutoTokenizer.from_pretrained(...).save_pretrained(folder)"
        )
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{path} is not a tokenizer that `tokenizers` can read: {error}") from error
    names = read_json(folder / "tokenizer_config.json")
    return TextTokenizer(
        tokenizer,
        eos_token_ids=_eos_token_ids(folder, tokenizer, names),
        bos_token_id=_token_id(tokenizer, names.get("bos_token")),
        pad_token_id=_token_id(tokenizer, names.get("pad_token")),
    )


def _eos_token_ids(folder: Path, tokenizer: Tokenizer, names: dict[str, object]) -> tuple[int, ...]:
    ids: dict[int, None] = {}
    for file in ("generation_config.json", "config.json"):
        given = read_json(folder / file).get("eos_token_id")
        for token_id in given if isinstance(given, list) else [given]:
            if isinstance(token_id, int):
                ids[token_id] = None
    named = _token_id(tokenizer, names.get("eos_token"))
    if named is not None:
        ids[named] = None
    if not ids:
        raise ConfigError(
            f"the tokenizer in {folder} has no end token, so no completion could ever stop; set eos_token in "
            "tokenizer_config.json or eos_token_id in config.json"
        )
    return tuple(ids)


def _token_id(tokenizer: Tokenizer, token: object) -> int | None:
    content = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(content) if isinstance(content, str) else None


def write_preset_tokenizer(preset: Preset, folder: Path) -> None:
    """Write the tokenizer of a preset into `folder`, and its chat template where it has one."""
    write_character_tokenizer(preset.characters, preset.max_context, folder, preset.words)
    if preset.chat_template:
        (folder / "chat_template.jinja").write_text(preset.chat_template, encoding="utf-8")


def write_character_tokenizer(characters: str, max_context: int, folder: Path, words: Sequence[str] = ()) -> None:
    """Write a fast tokenizer with one token for each character and each word, after pad, bos and eos, into `folder`.

    A bos token is put before every text. A word is one token wherever it stands, the longest first. A character that is
    not in the vocabulary is an error when it is encoded, never another token in its place.
    """
    vocabulary = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *characters, *words))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # not in the vocabulary: see above
    pieces = [*map(re.escape, sorted(words, key=len, reverse=True)), r"[\s\S]"]
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("|".join(pieces)), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary[BOS])]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "bos_token": BOS,
        "eos_token": EOS,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_context,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8")
