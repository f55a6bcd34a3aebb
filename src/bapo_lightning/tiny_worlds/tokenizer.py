"""A Hugging Face fast tokenizer with one token per character."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

PAD_TOKEN = "<pad>"


def build_tokenizer(characters: str) -> PreTrainedTokenizerFast:
    """Returns the tokenizer of a toy language, which adds no token to a prompt.

    `<pad>` has id 0; the last character ends a response and has the last id. A character outside the language
    becomes `<pad>`, because there is no token for unknown characters.
    """
    vocabulary = {token: index for index, token in enumerate([PAD_TOKEN, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=PAD_TOKEN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        eos_token=characters[-1],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
