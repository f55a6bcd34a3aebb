"""A taskset of verifiers 0.4 for `harness.py`: say the word of the prompt. Its episodes have one turn."""

from collections.abc import Iterator

import verifiers.v1 as vf

__all__ = ["WordsTaskset"]
WORDS = ("left", "right")


class WordData(vf.TaskData):
    word: str


class WordTask(vf.Task[WordData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def said(self, trace: vf.Trace) -> float:
        return float(self.data.word in trace.last_reply)


class WordsTaskset(vf.Taskset[WordTask, vf.TasksetConfig]):
    def load(self) -> Iterator[WordTask]:
        for word in WORDS:
            yield WordTask(WordData(prompt=word, word=word), self.config.task)
