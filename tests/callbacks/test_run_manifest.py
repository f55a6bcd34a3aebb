"""The status of a run on disk."""

from types import SimpleNamespace

from bapo_lightning.callbacks.run_manifest import RunManifest
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.run_folder.record import read_manifest


def test_a_run_that_failed_stays_so_when_its_last_update_is_saved_afterwards(tmp_path):
    manifest, trainer = RunManifest(tmp_path, {}), SimpleNamespace(is_global_zero=True)
    manifest.on_save_checkpoint(trainer, None, {})
    assert read_manifest(tmp_path)["status"] == "running"
    manifest.on_exception(trainer, None, EngineError("no engine is left"))
    manifest.on_save_checkpoint(trainer, None, {})
    found = read_manifest(tmp_path)
    assert (found["status"], found["error"]) == ("failed", "EngineError: no engine is left")
