"""bapo-lightning: off-policy reinforcement learning of language models with BAPO (arXiv 2510.18927) on
Lightning.
"""

__version__ = "0.1.0"
