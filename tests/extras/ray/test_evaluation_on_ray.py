"""An evaluation over all engines of a fleet."""

import pytest
from tests.cli.evaluations import MODEL, SMALL, results, run


@pytest.mark.slow
@pytest.mark.drill
def test_it_has_the_samples_and_counts_of_one_engine(nodes, tmp_path):
    one, several = tmp_path / "one", tmp_path / "several"
    run(f"checkpoint={MODEL}", *SMALL, "rollout.engine.max_rows=8", f"run_folder={one}")
    fleet = ["rollout=ray", f"rollout.engine.address={nodes.address}", "rollout.engine.requests_per_call=8"]
    run(f"checkpoint={MODEL}", *SMALL, *fleet, "rollout.engine.cpu_threads=1", f"run_folder={several}")
    assert (one / "samples.jsonl").read_bytes() == (several / "samples.jsonl").read_bytes()
    assert results(one)["sets"] == results(several)["sets"]
