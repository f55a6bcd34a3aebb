"""The policy as a Hugging Face model folder."""
