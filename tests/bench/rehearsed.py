"""What the GPU check would rehearse."""

from __future__ import annotations

from typing import Any

from gpu.checks import Check, Machine
from tests.bench.faults_of_checks import Patch, ended

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.validate import validate


def read_rehearsal(check: Check, machine: Machine, monkeypatch: Patch) -> None:
    """Reads the configuration that a check would rehearse on a machine; raises ConfigError if it is none."""
    given: list[str] = []

    def run(command: list[str], **options: Any) -> Any:
        given.extend(command)
        return ended(0, {"resume": True})(command)

    monkeypatch.setattr("gpu.rehearsal.subprocess.run", run)
    monkeypatch.setattr("gpu.rehearsal.does_not_fit", lambda overrides: "")
    list(check.run(machine))
    validate(compose_run([text for text in given[3:] if not text.startswith("rehearsal.")]), "ranks")
