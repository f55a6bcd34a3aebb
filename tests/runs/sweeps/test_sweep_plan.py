"""The runs of a sweep: files, command line, names of folders, and errors before anything starts."""

import itertools
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.overrides import hydra_value
from bapo_lightning.errors import ConfigError
from bapo_lightning.run_folder.config_keys import short_names
from bapo_lightning.runs.sweeps.names import folder_name, run_names
from bapo_lightning.runs.sweeps.plan import compose_runs, finished_runs, read_plan

SWEEPS = sorted(path.stem for path in Path(conf_dir(), "sweeps").glob("*.yaml"))


def unquoted(value):
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, list):
        return [unquoted(item) for item in value]
    return (
        {unquoted(key): unquoted(item) for key, item in value.items()} if isinstance(value, dict) else value
    )


@pytest.mark.parametrize(
    "value",
    [
        *(
            None,
            True,
            3,
            1e-5,
            "grpo",
            "a,b",
            "null",
            "1e5",
            "x y",
            "it's",
            'say "hi"',
            "tail\\",
            'a\\"b',
            "",
            "a=b",
            "(a)",
        ),
        *(["wandb", "b,c", None, [1, 2]], {"a": 1, "b": [{"c": "x y"}]}, "outputs/run-1"),
    ],
)
def test_hydra_reads_back_the_value_that_was_meant(value):
    override = OverridesParser.create().parse_override(f"key={hydra_value(value)}")
    assert unquoted(override.value()) == value and not override.is_sweep_override()


def test_short_names_are_the_shortest_endings_that_tell_keys_apart():
    keys = ["low.end", "high.end", "seed", "+data.seed", "regime.epochs"]
    assert short_names(keys) == {
        "low.end": "low.end",
        "high.end": "high.end",
        "seed": "seed",
        "+data.seed": "data.seed",
        "regime.epochs": "epochs",
    }


def test_runs_have_names_of_their_own_that_are_file_names():
    jobs = [
        ("a.low=1", "b.low=2", "seed=0"),
        ("a.low=2", "b.low=1", "seed=0"),
        ('url="http://x/y,z"', "seed=0"),
        ('url="http://x/y;z"', "seed=0"),
        ("x=A", "seed=0"),
        ("x=a", "seed=0"),
        (f"text={'long' * 100}", "seed=0"),
    ]
    names = run_names(jobs)
    assert names[:2] == ["a.low_1-b.low_2-seed_0", "a.low_2-b.low_1-seed_0"]
    assert len({name.lower() for name in names}) == len(jobs)
    assert all(len(name) < 140 and not set(name) & set('/,;:"= ') for name in names)
    assert names == run_names(jobs)


def test_the_order_of_overrides_does_not_change_the_folder_of_a_sweep():
    assert (
        folder_name("smoke", ["b=1", "a=2"]) == folder_name("smoke", ["a=2", "b=1"]) == "sweep-smoke-a_2-b_1"
    )
    assert folder_name("smoke", []) == "sweep-smoke"
    assert folder_name("smoke", ["x.low=1"]) != folder_name("smoke", ["y.low=1"])


@pytest.mark.slow
@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_run_of_every_sweep_can_be_composed(sweep):
    plan = read_plan([f"sweep={sweep}"])
    first_of_each = {
        run: job for run, job in plan.jobs.items() if "seed" not in run or run.endswith("seed_0")
    }
    configs = compose_runs(type(plan)(**{**vars(plan), "jobs": first_of_each}))
    assert len(configs) == len(first_of_each) >= 2


def test_the_sweeps_have_the_runs_that_they_announce():
    counts = {sweep: len(read_plan([f"sweep={sweep}"]).jobs) for sweep in SWEEPS}
    expected = {
        "baselines": 20,
        "staleness": 75,
        "bounds": 20,
        "bapo_target": 30,
        "quickstart": 30,
        "additions": 30,
        "smoke": 2,
    }
    assert {sweep: counts[sweep] for sweep in expected} == expected


def test_the_staleness_sweep_has_1_2_4_8_and_16_updates_per_rollout_batch():
    content = yaml.safe_load(Path(conf_dir(), "sweeps", "staleness.yaml").read_text())
    assert [case["regime.epochs"] * case["regime.minibatches"] for case in content["cases"]] == [
        1,
        2,
        4,
        8,
        16,
    ]


def test_the_command_line_replaces_values_adds_dimensions_and_sets_what_is_common():
    plan = read_plan(
        [
            "sweep=smoke",
            "algorithm=bapo",
            "seed=0,1",
            "regime.epochs=range(1,3)",
            "debug=fast",
            "output_root=out",
        ]
    )
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


def test_a_sweep_can_be_given_the_name_of_its_folder_and_of_its_group_in_w_and_b():
    plan = read_plan(["sweep=smoke", "folder=mine", "logger=wandb", "scale.num_rollout_batches=14"])
    assert plan.folder == Path("outputs/mine")
    assert all(plan.overrides(run)[0] == "group=mine" for run in plan.jobs)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["sweep=nowhere"], "sweep=nowhere is no sweep; write one of additions, bapo_target"),
        ([], "sweep=nothing is no sweep"),
        (
            ["sweep=bounds", "algorithm.bounds.low=0.3"],
            "algorithm.bounds.low is set by the cases of sweep=bounds",
        ),
        (
            ["sweep=smoke", "launcher=cloud"],
            "launcher=cloud is no launcher; write one of local, ray, submitit",
        ),
        (
            ["sweep=smoke", "launcher.gpus=1"],
            "launcher=local has no such key; write one of parallel_runs, gpus_per_run",
        ),
        (["sweep=smoke", "a=[1"], "a=\\[1 cannot be read"),
    ],
)
def test_what_a_sweep_cannot_do_is_said_at_once(arguments, complaint):
    with pytest.raises(ConfigError, match=complaint):
        read_plan(arguments)


def test_keys_of_the_launcher_change_and_further_parameters_reach_submitit():
    changes = ["parallel_runs=4", "parameters.timeout_min=10", "parameters.slurm_setup=[module load cuda]"]
    keys = [f"launcher.{change}" for change in changes] + ["launcher.parameters.slurm_mail_type=END"]
    launcher = read_plan(["sweep=smoke", "launcher=submitit", *keys]).launcher
    assert (launcher["name"], launcher["cluster"], launcher["parallel_runs"]) == ("submitit", "slurm", 4)
    parameters = launcher["parameters"]
    assert (parameters["timeout_min"], parameters["slurm_mail_type"]) == (10, "END")
    assert (parameters["slurm_setup"], parameters["gpus_per_node"]) == (["module load cuda"], 1)


def test_a_key_that_does_not_exist_is_named_before_any_run_starts():
    with pytest.raises(ConfigError) as told:
        compose_runs(read_plan(["sweep=smoke", "scale.gruop_size=4"]))
    assert told.value.problems == ("scale.gruop_size is not an option; did you mean scale.group_size?",)
    with pytest.raises(ConfigError) as told:
        compose_runs(read_plan(["sweep=smoke", "algorithm=grpo,gpro"]))
    (problem,) = told.value.problems
    assert problem.startswith("algorithm=gpro: algorithm=gpro is no choice; did you mean grpo?")


def test_a_finished_run_of_another_configuration_is_not_taken_for_this_one(tmp_path):
    plan = read_plan(["sweep=smoke", f"output_root={tmp_path}"])
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
    with pytest.raises(
        ConfigError,
        match=r"algorithm_grpo finished with another configuration: algorithm.*share_target: 0.9 -> 0.5",
    ):
        finished_runs(plan, configs)
