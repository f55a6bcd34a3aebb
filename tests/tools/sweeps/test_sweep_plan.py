"""The runs of a sweep: files, command line, names of folders, and errors before anything starts."""

import itertools
import pickle
from functools import cache
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from omegaconf import OmegaConf
from tests.configuration.compositions import composed, names

from bapo_lightning.configuration import machine
from bapo_lightning.configuration.compose import composed_run, hydra_value
from bapo_lightning.system.errors import ConfigError, MachineError
from bapo_lightning.system.run_folder.config_keys import short_names
from bapo_lightning.tools.sweeps import plan as sweep_plan
from bapo_lightning.tools.sweeps.job import STOPPED
from bapo_lightning.tools.sweeps.plan import compose_runs, finished_runs, folder_name, run_names, together
from bapo_lightning.tools.sweeps.run import run_plan


@cache
def options(sweep):
    chosen = ["run_folder=unused", "hydra/sweeper=runs", *([f"sweep={sweep}"] if sweep else [])]
    config = composed_run(chosen, with_hydra=True)
    return OmegaConf.to_container(config.hydra.sweeper, resolve=False)


def plan_of(sweep, *arguments, root="outputs", **own):
    return sweep_plan.read_plan(sweep, options(sweep) | own, arguments, root)


def unquoted(value):
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [unquoted(item) for item in value]
    if isinstance(value, dict):
        return {unquoted(key): unquoted(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("value", [
    *(None, True, 3, 1e-5, "grpo", "a,b", "null", "1e5", "x y", "it's", 'say "hi"', "tail\\", 'a\\"b', ""),
    *("a=b", "(a)", ["wandb", "b,c", None, [1, 2]], {"a": 1, "b": [{"c": "x y"}]}, "outputs/run-1"),
])  # fmt: skip
def test_hydra_reads_back_the_value_that_was_meant(value):
    override = OverridesParser.create().parse_override(f"key={hydra_value(value)}")
    assert unquoted(override.value()) == value and not override.is_sweep_override()


def test_short_names_are_the_shortest_endings_that_tell_keys_apart():
    whole = {"low.end": "low.end", "high.end": "high.end", "seed": "seed", "regime.epochs": "epochs"}
    assert short_names([*whole, "+data.seed"]) == {**whole, "+data.seed": "data.seed"}


def test_runs_have_names_of_their_own_that_are_file_names():
    jobs = [
        *(("a.low=1", "b.low=2", "seed=0"), ("a.low=2", "b.low=1", "seed=0")),
        *(('url="http://x/y,z"', "seed=0"), ('url="http://x/y;z"', "seed=0")),
        *(("x=A", "seed=0"), ("x=a", "seed=0"), (f"text={'long' * 100}", "seed=0")),
    ]
    found = run_names(jobs)
    assert found[:2] == ["a.low_1-b.low_2-seed_0", "a.low_2-b.low_1-seed_0"]
    assert len({name.lower() for name in found}) == len(jobs)
    assert all(len(name) < 140 and not set(name) & set('/,;:"= ') for name in found)
    assert found == run_names(jobs)


def test_the_order_of_overrides_does_not_change_the_folder_of_a_sweep():
    assert folder_name("x", ["b=1", "a=2"]) == folder_name("x", ["a=2", "b=1"]) == "sweep-x-a_2-b_1"
    assert len(folder_name("x", [f"key{number}=value" for number in range(40)])) < 24
    assert folder_name("smoke", []) == "sweep-smoke"
    assert folder_name("smoke", ["x.low=1"]) != folder_name("smoke", ["y.low=1"])


@pytest.mark.slow
@pytest.mark.parametrize("sweep", names("sweep"))
def test_every_run_of_every_sweep_can_be_composed(sweep):
    plan = plan_of(sweep)
    jobs = {run: job for run, job in plan.jobs.items() if "seed" not in run or run.endswith("seed_0")}
    assert len(compose_runs(sweep_plan.SweepPlan("x", plan.folder, jobs, plan.common))) == len(jobs) >= 2


@pytest.mark.slow
def test_the_sweeps_have_the_runs_that_they_announce():
    counts = {"baselines": 20, "staleness": 75, "bounds": 20, "cs336_off_policy": 24}
    counts |= dict.fromkeys(("bapo_target", "quickstart", "additions"), 30)
    assert {sweep: len(plan_of(sweep).jobs) for sweep in counts} == counts
    updates = [case["regime.epochs"] * case["regime.minibatches"] for case in options("staleness")["cases"]]
    assert updates == [1, 2, 4, 8, 16]


def test_the_command_line_replaces_values_adds_dimensions_and_sets_what_is_common():
    arguments = ["algorithm=bapo", "seed=0,1", "regime.epochs=range(1,3)", "debug=fast", "output_root=out"]
    plan = plan_of("smoke", "sweep=smoke", *arguments, root="out")
    assert plan.folder == Path("out/sweep-smoke-debug_fast")
    assert list(plan.jobs.values()) == [
        ("algorithm=bapo", f"seed={seed}", f"regime.epochs={epochs}")
        for seed, epochs in itertools.product((0, 1), (1, 2))
    ]
    run = next(iter(plan.jobs))
    assert run == "algorithm_bapo-seed_0-epochs_1"
    assert plan.overrides(run) == (
        *("group=sweep-smoke-debug_fast", "debug=fast", "algorithm=bapo", "seed=0", "regime.epochs=1"),
        *(f"run_folder=out/sweep-smoke-debug_fast/{run}", "resume=auto"),
    )


def test_without_a_file_the_sweep_is_named_by_what_varies():
    plan = plan_of(None, "regime.epochs=1,2", "seed=0,1", "debug=fast")
    assert (plan.folder, len(plan.jobs)) == (Path("outputs/sweep-epochs-seed-debug_fast"), 4)


def test_a_sweep_can_be_given_the_name_of_its_folder_and_of_its_group_in_w_and_b():
    plan = plan_of("smoke", "logger=wandb", folder="mine")
    assert plan.folder == Path("outputs/mine")
    assert all(plan.overrides(run)[0] == "group=mine" for run in plan.jobs)


@pytest.mark.parametrize(("sweep", "arguments", "complaint"), [
    ("bounds", ["algorithm.bounds.low=0.3"], "algorithm.bounds.low is set by the cases of sweep=bounds"),
    ("smoke", ["run_folder=x"], "run_folder is set by a sweep itself"),
    ("smoke", ["seed=interval(0,1)"], "has no end of values; write KEY=A,B"),
    (None, ["algorithm=grpo"], "nothing is varied; write sweep=NAME"),
])  # fmt: skip
def test_what_a_sweep_cannot_do_is_said_at_once(sweep, arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        plan_of(sweep, *arguments)


@pytest.mark.parametrize(("key", "wrong"), [
    ("parameters", [7, None, [1], "abc", {"seed": 0}, {"seed": []}]),
    ("cases", [7, "abc", {"seed": 0}, [1], [[1]]]),
    ("reference", [7, [1], {"a": 1}]),
    ("folder", [7, [1], "n" * 300]),
])  # fmt: skip
def test_keys_of_a_file_have_types(key, wrong):
    told = rf"hydra\.sweeper\.{key}=.* (must be|must hold|is not a text|is a number)"
    for value in wrong:
        with pytest.raises(ConfigError, match=told):
            plan_of("smoke", **{key: value})


@pytest.mark.parametrize("root", [None, 7, 1.5, True, "", [1], {"a": 1}])
def test_the_root_of_a_sweep_is_a_path(root):
    with pytest.raises(ConfigError, match=r"output_root=.* must be text"):
        plan_of("smoke", root=root)


def test_keys_of_a_file_that_mean_nothing_or_two_things_are_reported():
    with pytest.raises(ConfigError, match="colour means nothing; write parameters, cases") as told:
        plan_of("smoke", colour="red", cases=[{"algorithm": "grpo"}])
    assert told.value.problems[1] == "sweep=smoke varies algorithm and has it in its cases"


def test_a_key_that_does_not_exist_is_named_before_any_run_starts():
    with pytest.raises(ConfigError) as told:
        compose_runs(plan_of("smoke", "scale.gruop_size=4"))
    assert told.value.problems == ("scale.gruop_size is not an option; did you mean scale.group_size?",)
    with pytest.raises(ConfigError) as told:
        compose_runs(plan_of("smoke", "algorithm=grpo,gpro"))
    (problem,) = told.value.problems
    assert problem.startswith("algorithm=gpro: algorithm=gpro is not a choice; did you mean grpo?")


def test_a_finished_run_of_another_configuration_is_not_taken_for_this_one(tmp_path):
    plan = plan_of("smoke", root=tmp_path)
    configs = compose_runs(plan)
    assert finished_runs(plan, configs) == []
    run, config = next(iter(configs.items()))
    folder = plan.folder / run
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text('{"status": "finished"}')
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert finished_runs(plan, configs) == [run]
    other = {**config, "algorithm": {**config["algorithm"], "positive_share_target": 0.9}}
    (folder / "config.yaml").write_text(yaml.safe_dump(other))
    told = r"algorithm_grpo finished with another configuration: algorithm.*share_target: 0.9 -> 0.5"
    with pytest.raises(ConfigError, match=told):
        finished_runs(plan, configs)


def test_a_run_that_its_launcher_gives_up_is_stopped(tmp_path):
    plan = plan_of("smoke", root=tmp_path)
    first, second = plan.jobs
    assert run_plan(plan, lambda jobs: iter([(first, 0)]), is_here=False) == {first: 0, second: STOPPED}


def refusing(config):
    needs = [f"GPUs: {config.seed + 1} needed", "memory: 7 GB", "model: gone"]
    raise MachineError(config.name, needs, ["wait"])


def test_what_a_machine_lacks_for_several_runs_is_reported_once_and_in_order(monkeypatch):
    monkeypatch.setattr(machine, "check_machine", refusing)
    with pytest.raises(MachineError) as error:
        sweep_plan.check_runs([composed("seed=0"), composed("seed=1"), composed("seed=0")])
    assert str(error.value) == (
        "additions cannot run on this machine:\n"
        "  1. GPUs: 1 needed\n  2. GPUs: 2 needed\n  3. memory: 7 GB\n  4. model: gone\n  wait"
    )
    copy = pickle.loads(pickle.dumps(error.value))
    assert (str(copy), copy.problems, copy.advice) == (str(error.value), error.value.problems, ("wait",))


def test_of_several_plans_the_largest_is_reported():
    plans = [("1 GPU", 7), ("2 GPUs", 4)]
    errors = [MachineError("a", [f"GPUs: {gpus}", f"memory: {size} GB"], [], size) for gpus, size in plans]
    for each in (errors, errors[::-1]):
        assert sorted(together(each).problems) == ["GPUs: 1 GPU", "GPUs: 2 GPUs", "memory: 7 GB"]


def test_what_is_wrong_on_any_machine_comes_first(monkeypatch):
    monkeypatch.setattr(machine, "check_machine", refusing)
    with pytest.raises(ConfigError) as error:
        sweep_plan.check_runs([composed(), *[composed("scale.group_size=0")] * 2])
    (problem,) = error.value.problems
    assert problem.startswith("scale.group_size=0 ") and not isinstance(error.value, MachineError)


def test_runs_of_several_experiments_are_named():
    errors = [MachineError(name, ["model: gone"], []) for name in ("a", "b", "a")]
    assert str(together(errors)) == "a, b cannot run on this machine:\n  1. model: gone"
