"""One token per character, as an ordinary Hugging Face fast tokenizer."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from bapo_lightning.tiny_world.task import CHARACTERS, END_MARK

PAD_TOKEN = "<pad>"


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Tokenizer of the toy language: `<pad>` is id 0, the end token `#` the last id; no token is added to a
    prompt.

    A character outside the language becomes `<pad>`, since the language has no word for "unknown".
    """
    vocabulary = {token: index for index, token in enumerate([PAD_TOKEN, *CHARACTERS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=END_MARK,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
