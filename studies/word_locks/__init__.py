"""The locks in words: a world for a real language model, in which a run takes minutes.

task.py -> warm_start.py: models/smollm2-word-locks -> `make map MAP=word_locks`
"""
