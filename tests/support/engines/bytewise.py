"""A tokenizer with a token for each byte, so that characters beyond ASCII take several."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from streamrl.models.tokenizer import TextTokenizer


def bytewise() -> TextTokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return TextTokenizer(tokenizer, eos_token_ids=(0,))


BYTEWISE = bytewise()
