import threading
import time
from types import SimpleNamespace

import lightning as L
import pytest
from lightning.pytorch.demos.boring_classes import BoringModel

from bapo_lightning.callbacks.watchdog import Watchdog


def wait_for(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def started(folder, seconds):
    dog = Watchdog(folder, minutes=seconds / 60)
    dog.on_train_start(SimpleNamespace(global_rank=0), None)
    return dog


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "watchdog"]


def reports(dog):
    return dog.path.read_text().count("nothing has happened") if dog.path.exists() else 0


def test_a_hang_is_shown_with_the_stacks_of_all_threads_again_and_again(tmp_path, capsys):
    dog, release = started(tmp_path, 0.1), threading.Event()

    def a_thread_that_hangs():
        release.wait()

    other = threading.Thread(target=a_thread_that_hangs)
    other.start()
    dog.on_train_batch_end(None, None, None, None, 36)
    wait_for(lambda: reports(dog) >= 2)
    dog.on_exception(None, None, RuntimeError())
    release.set()
    other.join()
    text = dog.path.read_text()
    assert "minutes, since update 37 ended\n" in text.splitlines(keepends=True)[0]
    assert "a_thread_that_hangs" in text and "test_a_hang_is_shown" in text
    said = capsys.readouterr().err.splitlines()
    assert len(said) == reports(dog)
    assert said[0].startswith("warning: nothing has happened for") and str(dog.path) in said[0]
    assert "callbacks.watchdog.minutes" in said[0]
    assert threads() == []


def test_progress_keeps_it_quiet_and_a_hang_after_it_does_not(tmp_path):
    dog = started(tmp_path, 0.5)
    for index in range(60):
        dog.on_train_batch_end(None, None, None, None, index)
        time.sleep(0.01)
    assert not dog.path.exists()
    wait_for(lambda: reports(dog) == 1)
    dog.on_train_end(None, None)
    assert "since update 60 ended" in dog.path.read_text()


def test_a_file_that_cannot_be_written_does_not_end_the_watch(tmp_path, capsys):
    dog = started(tmp_path / "missing", 0.05)
    said = []

    def is_said_twice():
        said.append(capsys.readouterr().err)
        return "".join(said).count("cannot be written (No such file") >= 2

    wait_for(is_said_twice)
    dog.teardown(None, None, "fit")
    assert threads() == []


@pytest.mark.parametrize("fails", [False, True])
def test_it_lives_as_long_as_training(tmp_path, fails):
    alive = []

    class Model(BoringModel):
        def training_step(self, batch, batch_idx):
            alive.append(len(threads()))
            if fails and batch_idx == 2:
                raise RuntimeError("as meant")
            return super().training_step(batch, batch_idx)

    trainer = L.Trainer(
        accelerator="cpu", max_steps=3, callbacks=[Watchdog(tmp_path, 60)], limit_val_batches=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    try:
        trainer.fit(Model())
    except RuntimeError as error:
        assert fails and str(error) == "as meant"
    assert alive == [1, 1, 1] and threads() == []
    assert not (tmp_path / "watchdog.log").exists()
