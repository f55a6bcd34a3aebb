"""What stands in the record before training, and what a person sees of it."""

from tests import commands

from bapo_lightning.callbacks.validation import one_line
from bapo_lightning.run_folder.record import read_run


def accuracies(folder):
    return read_run(folder).series("val/additions/avg@4")


def test_the_first_row_has_the_accuracy_before_training(tmp_path):
    settings = ["scale.num_rollout_batches=2", "callbacks.validation.every=6", "optimizer.optimizer.lr=1e-12"]
    done = commands.train(*settings, f"run_folder={tmp_path / 'run'}")
    assert done.returncode == 0, done.stdout + done.stderr
    steps, values = accuracies(tmp_path / "run")
    assert steps == [0, 5, 11, 15] and len(set(values)) == 1  # the same seeds, and weights that do not move
    shown = done.stdout.split(f"held out before training: additions/avg@4 {values[0]:.3f}\n")[1].splitlines()
    assert all(line.startswith("  ") and " -> " in line and len(line) <= 80 for line in shown[:2])
    assert shown[0] != shown[1]
    assert "held out after 6 updates: additions/avg@4" in done.stdout


def test_it_can_be_left_out_and_is_not_repeated_when_a_run_goes_on(tmp_path):
    without = ["callbacks.validation.first=false", f"run_folder={tmp_path / 'without'}"]
    assert commands.train("scale.num_rollout_batches=1", *without).returncode == 0
    assert accuracies(tmp_path / "without")[0] == [3, 7]
    longer = [f"run_folder={tmp_path / 'with'}", "resume=auto", "callbacks.checkpoint.every=8"]
    for batches in (1, 2):
        assert commands.train(f"scale.num_rollout_batches={batches}", *longer).returncode == 0
    assert accuracies(tmp_path / "with")[0] == [0, 3, 7, 11, 15]


def test_a_stock_callback_does_not_take_it_for_the_accuracy_of_trained_weights(tmp_path):
    saver = "_target_: lightning.pytorch.callbacks.ModelCheckpoint, dirpath: ${run_folder}/best"
    option = f"+callbacks.best={{{saver}, monitor: val/additions/avg@4, mode: max, save_top_k: -1}}"
    settings = [
        "scale.num_rollout_batches=1",
        "callbacks.validation.every=6",
        f"run_folder={tmp_path / 'run'}",
    ]
    done = commands.train(*settings, option)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list((tmp_path / "run" / "best").iterdir())) == 2  # after updates 6 and 8


def test_a_long_text_is_one_line_with_its_end():
    assert one_line("two\n  lines", 24) == "two lines"
    shortened = one_line("The question is: " + "word " * 50 + "answer 42", 24)
    assert len(shortened) == 24 and shortened.startswith("The") and shortened.endswith("answer 42")
