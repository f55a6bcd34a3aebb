"""What this machine must have, missing on purpose."""

import os

from tests.configuration.compositions import found


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    (problem,) = found(f"run_folder={tmp_path}/run")
    assert problem.endswith(f"{tmp_path} is not writable; write another output_root")
