"""Imported by processes that are forked from: what libraries make once in a process, a second in all."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("llama")  # names of the weights of all families, as regular expressions
