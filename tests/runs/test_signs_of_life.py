"""What takes long in a run that is no terminal's is named by time, also where no update ends."""

import io
import sys
import threading
from functools import wraps

import pytest

from bapo_lightning import fit
from bapo_lightning.data.rollouts import sampler
from bapo_lightning.data.rollouts.answers import ValidationSet
from bapo_lightning.modules.bapo_module import BapoModule
from bapo_lightning.report.progress import display
from bapo_lightning.report.progress.display import phases_text
from bapo_lightning.rollout.hf.engine import HFEngine
from bapo_lightning.runs import inputs, reward_trial

SLOW = [
    (inputs, "read_problems", "reading tokenizer and problems"),
    (reward_trial, "judged", "reading tokenizer and problems: trying the reward"),
    (ValidationSet, "metrics", "validation"),
    (HFEngine, "generate", "sampling"),
    (sampler, "judged", "scoring"),
    (BapoModule, "apply_gradients", "updating"),
]


class Told(io.StringIO):
    """A stream that can be waited for."""

    def __init__(self):
        super().__init__()
        self.written = threading.Condition()

    def write(self, text):
        with self.written:
            self.written.notify_all()
            return super().write(text)

    def has(self, words):
        with self.written:
            return self.written.wait_for(lambda: words in self.getvalue(), 60)


@pytest.mark.slow
def test_every_slow_part_of_a_run_gives_signs_of_life(tmp_path, monkeypatch):
    named = {}
    monkeypatch.setattr(sys, "stderr", told := Told())
    monkeypatch.setattr(display, "FIRST_SIGN", 0.02)
    monkeypatch.setattr(display, "MOST_SILENT", 0.02)

    def slowed(method, words):
        @wraps(method)
        def slow(*arguments, **options):
            if words not in named and words in phases_text():  # engines are asked for other things, too
                named[words] = told.has(words)
            return method(*arguments, **options)

        return slow

    for owner, name, words in SLOW:
        monkeypatch.setattr(owner, name, slowed(getattr(owner, name), words))
    fit("debug=fast", f"run_folder={tmp_path / 'run'}", experiment="additions")
    assert named == {words: True for *_, words in SLOW}


def test_signs_come_at_longer_times(monkeypatch):
    monkeypatch.setattr(sys, "stderr", told := Told())
    times = iter(range(10**6))
    monkeypatch.setattr(display.time, "monotonic", lambda: next(times) / 1e6)
    monkeypatch.setattr(display, "FIRST_SIGN", 30.0)
    monkeypatch.setattr(display, "MOST_SILENT", 100.0)
    monkeypatch.setattr(display.PrintableStream, "written_at", 0.0)
    waits = []

    class Ended:
        def wait(self, seconds):
            waits.append(round(seconds))
            return len(waits) > 5

    display._tell(lambda: "", Ended())
    assert waits == [30, 60, 100, 100, 100, 100] and told.getvalue().count("still at work, 0 s\n") == 5
