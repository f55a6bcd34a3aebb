"""Each row of the matrix samples, syncs, updates, validates, saves, stops and resumes; each pair that cannot
is refused at the start, with its reason.
"""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.commands import Command, run_command
from tests.matrix.choices import FIRST, RECORDED, Choices, overrides, world
from tests.matrix.rows import FILE, refusal

from bapo_lightning.modules.policy.folder import model_path
from bapo_lightning.tools.rehearsal.script import write_script
from bapo_lightning.tools.rehearsal.steps import Rehearsal, table

MATRIX = json.loads(FILE.read_text())
FOLDER = Path("outputs/matrix")  # kept: where a row fails, its logs say why
SECONDS = 900  # of one command, on a machine that is shared
ACTS = 2  # train and stop, resume


class Forked(Command):
    """A command of a rehearsal, forked from the warm process."""

    def __init__(self, module: str, arguments: Sequence[str], log: Path) -> None:
        super().__init__(module, arguments)
        self._log = log

    def wait(self) -> int:
        """Waits for the end, and writes the log."""
        self._log.write_text("".join(self.communicate(SECONDS)))
        return self.returncode


def _rows() -> list[object]:
    rows = enumerate(MATRIX["rows"], 1)
    groups = (
        (number, row, "ray" if row["engine"].startswith("ray") else str(number)) for number, row in rows
    )
    return [pytest.param(row, id=str(n), marks=pytest.mark.xdist_group(group)) for n, row, group in groups]


def with_bos(name: str, folder: Path) -> Path:
    """The model of a tiny world, whose tokenizer has a BOS token."""
    shutil.copytree(model_path(f"package://bapo_lightning/tiny_worlds/{name}/model"), folder)
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "bos_token": "<pad>"}))
    return folder


@pytest.mark.drill
@pytest.mark.parametrize("choices", _rows())
def test_a_row_runs_stops_and_resumes(choices: Choices, request: pytest.FixtureRequest) -> None:
    folder = FOLDER / request.node.callspec.id
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    given = overrides(choices)
    if choices["bos"] == FIRST:
        given.append(f"model.path={with_bos(world(choices), folder / 'model')}")
        # Behind a token that it was not trained with, the tiny model is hardly ever right.
        given += ["reward=functions", "reward.functions=[tests.runs.own_rewards.length]"]
        given += ["reward.require_stop=null"] if world(choices) == "sums" else []
    if choices["regime"] in RECORDED:
        recorded = folder / "recorded"
        script = write_script(world(choices), given, folder)
        done = run_command("bapo_lightning.cli.train", *script.overrides, f"run_folder={recorded}")
        assert done.returncode == 0, done.stderr
        given.append(f"regime.schedule={recorded}")
    rehearsal = Rehearsal(write_script(world(choices), given, folder), folder, Forked)
    has_run = rehearsal.perform(ACTS)
    (folder / "rehearsal.json").write_text(
        json.dumps({"choices": dict(choices), **rehearsal.record()}, indent=1)
    )
    assert has_run, f"{choices}\n{table(rehearsal.parts)}"


@pytest.mark.parametrize(
    "refused", MATRIX["refused"], ids=lambda refused: ", ".join(refused["choices"].values())
)
def test_a_pair_is_refused_with_its_reason(refused: dict) -> None:
    assert refusal(tuple(refused["choices"].items())) == refused["reason"]
