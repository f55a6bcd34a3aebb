"""No damage of a measured run ends the simulation that reads it in a traceback."""

import random

import yaml
from tests.damages import of_fields, of_file
from tests.report.synthetic_runs import synthetic_row, write_run

from bapo_lightning.extras.simulation.configured import lengths_of
from bapo_lightning.extras.simulation.times import measured_times
from bapo_lightning.system.errors import BapoLightningError
from bapo_lightning.system.run_folder.record import read_run


def test_no_damage_of_a_measured_run_ends_in_a_traceback(tmp_path):
    run, rows = tmp_path / "run", [synthetic_row(step, 6, "bapo", random.Random(0)) for step in range(6)]
    write_run(run, rows)
    config = yaml.safe_load((run / "config.yaml").read_text())
    (run / "config.yaml").write_text(yaml.safe_dump(config | {"regime": {"async_generation": False}}))
    for file in (path for path in sorted(run.iterdir()) if path.suffix in (".json", ".jsonl")):
        content = file.read_bytes()
        found = [*of_file(content).values(), *(changed for _, _, changed in of_fields(file.name, content))]
        for changed in random.Random(file.name).sample([one for one in found if one is not None], 12):
            file.write_bytes(changed)
            for read in (measured_times, lengths_of):
                try:
                    read(read_run(run))
                except BapoLightningError as error:
                    assert "has no regime" not in str(error)
        file.write_bytes(content)
