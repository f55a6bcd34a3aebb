"""What stands in the record before training, and what a person sees of it."""

import pytest
from tests import commands

from bapo_lightning.callbacks.validation import one_line
from bapo_lightning.run_folder.record import read_run


def train(folder, batches, *settings):
    done = commands.train(f"scale.num_rollout_batches={batches}", f"run_folder={folder}", *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, *read_run(folder).series("val/additions/avg@4")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    saver = "_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: ${run_folder}/best"
    best = f"+callbacks.best={{{saver}, monitor: val/additions/avg@4, mode: max, save_top_k: -1}}"
    return folder, *train(folder, 2, "callbacks.validation.every=6", "optimizer.optimizer.lr=1e-12", best)


def test_the_first_row_has_the_accuracy_before_training(run):
    _, output, steps, values = run
    assert steps == [0, 5, 11, 15] and len(set(values)) == 1  # the same seeds, and weights that do not move
    shown = output.split(f"held out before training: additions/avg@4 {values[0]:.3f}\n")[1].splitlines()
    assert all(line.startswith("  ") and " -> " in line and len(line) <= 80 for line in shown[:2])
    assert shown[0] != shown[1]
    assert "held out after 6 updates: additions/avg@4" in output


def test_a_stock_callback_does_not_take_it_for_the_accuracy_of_trained_weights(run):
    assert len(list((run[0] / "best").iterdir())) == 3  # after updates 6, 12 and 16


def test_it_can_be_left_out_and_is_not_repeated_when_a_run_goes_on(tmp_path):
    assert train(tmp_path / "without", 1, "callbacks.validation.first=false")[1] == [3, 7]
    for batches, expected in ((1, [0, 3, 7]), (2, [0, 3, 7, 11, 15])):
        settings = ("resume=auto", "callbacks.checkpoint.every=8")
        assert train(tmp_path / "with", batches, *settings)[1] == expected


def test_a_long_text_is_one_line_with_its_end():
    assert one_line("two\n  lines", 24) == "two lines"
    shortened = one_line("The question is: " + "word " * 50 + "answer 42", 24)
    assert len(shortened) == 24 and shortened.startswith("The") and shortened.endswith("answer 42")
