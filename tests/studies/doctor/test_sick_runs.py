"""The corpus of sick runs: its faults, its settings, and the page that judges the doctor by it."""

from array import array
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bapo_lightning.tiny_worlds.locks.task import lock_problems, opened
from bapo_lightning.tools.doctor import causes
from bapo_lightning.tools.doctor.curves import CUT, REWARD
from bapo_lightning.types import Completion, FinishReason, Segment
from studies.doctor import others
from studies.doctor.__main__ import COMMAND
from studies.doctor.corpus import SickRun, compact, expanded, read_corpus, runs_of
from studies.doctor.faults import Erring, Kept, Overflow, _shifted
from studies.doctor.verdict import judge, judged, read_others, until
from studies.map.kept import KeptRuns

ROOT = Path(__file__).resolve().parents[3]
CONFIG = read_corpus()
KEPT = KeptRuns(ROOT / "studies/kept/doctor.jsonl")


def test_every_cause_has_a_twin_of_the_same_seed_and_settings():
    every = {run.name: {*run.overrides} for run in runs_of(CONFIG)}
    assert len(every) == CONFIG.seeds * (len(CONFIG.causes) + len(CONFIG.twins))
    for name, cause in CONFIG.causes.items():
        added = every[f"{name}-s3"] - every[f"{cause.twin}-s3"]
        assert 0 < len(added) <= 3 and not any(text.startswith("seed=") for text in added)
    engines = [cause.engine for cause in CONFIG.causes.values() if cause.engine]
    assert sorted(engines) == ["layer", "lost", "pinned", "pinned", "shifted", "temperature", "temperature"]
    named = [*CONFIG.named, *(name for names in CONFIG.mismatch.values() for name in names)]
    assert {*named} <= {*CONFIG.causes, *CONFIG.twins}


def test_every_finding_has_a_name_that_the_doctor_gives():
    source = Path(causes.__file__).read_text()
    assert [cause.finding for cause in CONFIG.causes.values() if f'"{cause.finding}"' not in source] == [None]


def test_kept_runs_have_the_settings_of_the_file():
    KEPT.check({run.name: run.overrides for run in runs_of(CONFIG)})
    assert [run.name for run in runs_of(CONFIG) if run.name not in KEPT] == []


def test_the_page_is_what_the_command_writes(tmp_path):
    from studies.doctor.__main__ import main

    page = ROOT / "docs/results/doctor.md"
    copy = tmp_path / "doctor.md"
    copy.write_text(page.read_text())
    kept = ROOT / "studies/kept/doctor.jsonl"
    assert main(["--kept", str(kept), "--output", str(tmp_path), "--page", str(copy)]) == 0
    assert copy.read_text() == page.read_text() and COMMAND in page.read_text()


def test_other_doctors_get_every_run_under_their_own_names():
    curves = {
        REWARD: [0.5, None, 0.2], "train/skipped_updates": [0.0, 0.0, 1.0], "policy/entropy": [0.3, 0.3, 0.3],
    }  # fmt: skip
    first, _, last = others.rows_of(curves)
    assert first == {"reward": 0.5, "reward_std": 0.5, "entropy": 0.3} and np.isnan(last["grad_norm"])
    assert others.renamed(first, others.RLWATCH) == {"reward_mean": 0.5, "reward_std": 0.5, "entropy": 0.3}
    known = read_others(ROOT / "studies/kept/doctor_others.json")
    assert len(known) == 3
    assert all({*found} == {run.name for run in runs_of(CONFIG)} for found in known.values())


def test_what_is_kept_is_the_curve_in_four_digits():
    curves = {REWARD: ([0, 1, 2], [0.123456, 1e-9, 3.0]), CUT: ([0], [0.5])}
    assert expanded(compact(curves)) == {REWARD: ([0, 1, 2], [0.1235, 1e-9, 3.0]), CUT: ([0], [0.5])}
    assert until(curves, 1) == {REWARD: ([0], [0.123456]), CUT: ([0], [0.5])}


@pytest.mark.parametrize(("cause", "share", "said", "delay"), [
    ("cut", 0.9, "answers cut", 8), ("cut", 0.0, "nothing", None), ("healthy", 0.9, "answers cut", None),
    ("micro_batch", 0.9, "answers cut", None),
])  # fmt: skip
def test_a_delay_is_that_of_the_right_cause_alone(cause, share, said, delay):
    curves = {CUT: ([0, 4, 8], [share] * 3), REWARD: ([*range(12)], [0.5] * 12)}
    found = judged(CONFIG, SickRun(cause, 1, ()), curves)
    assert (found.said, found.delay, found.judges) == (said, delay, True)


def test_nothing_is_judged_of_runs_that_are_not_kept(tmp_path):
    assert judge(CONFIG, KeptRuns(tmp_path / "none.jsonl")) == []


def test_faults_do_what_they_say():
    segment = Segment(array("i", [5, 6, 7]), array("f", [-1, -2, -3]), 4)
    assert [*_shifted(segment).logprobs] == [-2, -3, -1]
    source = SimpleNamespace(named_weights=lambda wanted: iter([("a", torch.ones(1)), ("b", torch.ones(1))]))
    taken = dict(Kept(source, {"a": torch.zeros(1)}).named_weights())
    assert (float(taken["a"]), float(taken["b"])) == (0, 1)
    overflow = Overflow(4)
    weight = torch.nn.Linear(1, 1, bias=False)
    for step in range(9):
        weight.weight.grad = torch.ones(1, 1)
        overflow.on_train_batch_start(None, weight, None, step)
        overflow.on_after_backward(None, weight)
        assert bool(weight.weight.grad.isinf()) == (step in (4, 8))
    problems = lock_problems("train", 50)
    texts = [Completion(each.answer[0], 2, FinishReason.STOP) for each in problems]
    assert all(score.value == 1 for score in opened(problems, texts))
    assert np.mean([score.value for score in Erring(false_negative=0.5)(problems, texts)]) == pytest.approx(
        0.5, abs=0.2
    )
    assert {score.value for score in Erring(false_positive=1.0)(problems, texts)} == {1.0}
    wrong = [Completion("#", 2, FinishReason.STOP)] * 50
    assert {score.value for score in Erring(false_positive=1.0)(problems, wrong)} == {1.0}
