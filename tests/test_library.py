"""The package from Python: any Trainer trains, logs, resumes and validates; mistakes end in a sentence."""

import csv
import json
import os
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from tests.commands import run_command

import bapo_lightning
from bapo_lightning import BapoModule, RolloutDataModule, configure, fit
from bapo_lightning.__main__ import COMMANDS, module_of
from bapo_lightning.system.errors import ConfigError, DataError

ROOT = Path(__file__).resolve().parents[1]
FAST = ("debug=fast", "callbacks.entropy_rule.every=0")


def misnamed_reward(texts):
    return [0.0] * len(texts)


def length_reward(completions, num_tokens, **columns):
    return [1.0 / count for count in num_tokens]


def trainer(folder, *callbacks, **options):
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    quiet |= {"enable_checkpointing": any(isinstance(item, ModelCheckpoint) for item in callbacks)}
    return lightning.Trainer(
        accelerator="cpu", callbacks=list(callbacks), default_root_dir=folder, **(quiet | options)
    )


@pytest.fixture(scope="module")
def config():
    return configure(*FAST, experiment="additions", staleness=8)


@pytest.fixture(scope="module")
def trained(config, tmp_path_factory):
    """A module and its Trainer after 8 updates, with a checkpoint of update 3 and a log."""
    folder = tmp_path_factory.mktemp("own")
    module = BapoModule(config)
    every_third = ModelCheckpoint(folder, "{step}", every_n_train_steps=3, save_top_k=-1)
    own = trainer(folder, every_third, logger=CSVLogger(folder, flush_logs_every_n_steps=1))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", ".*log_every_n_steps")
        own.fit(module, datamodule=RolloutDataModule(config))
    return module, own, folder


def test_a_trainer_of_your_own_makes_one_pass_and_logs_every_metric(trained):
    _, own, folder = trained
    assert own.global_step == 8 and own.current_epoch == 1 and own.log_every_n_steps == 1
    assert {"train/reward", "bapo/positive_share", "val/additions/avg@4"} <= set(own.callback_metrics)
    (table,) = folder.rglob("metrics.csv")
    rows = list(csv.DictReader(table.open()))
    assert len(rows) == 8 and all(float(row["bapo/clip_high"]) >= 1.2 for row in rows)


def test_it_goes_on_from_lightnings_checkpoint_to_the_same_weights(config, trained):
    module, _, folder = trained
    assert "\n" not in repr(config) and len(repr(config)) < 200  # of a notebook's last line
    again = BapoModule(config)
    trainer(folder).fit(again, datamodule=RolloutDataModule(config), ckpt_path=folder / "step=3.ckpt")
    expected = module.state_dict()
    assert all(torch.equal(expected[name], value) for name, value in again.state_dict().items())


def test_a_checkpoint_of_a_trainer_of_your_own_knows_its_date_and_its_model(config, trained):
    saved = torch.load(trained[2] / "step=3.ckpt", weights_only=False)
    data, state = RolloutDataModule(config), saved["RolloutDataModule"] | {"date": "2020-02-29T12:00:00"}
    data.load_state_dict(state)
    saved["models"]["model.path"]["tokenizer"] = "?"
    assert data._tokenizer.apply_chat_template.keywords["strftime_now"]("%d %b %Y") == "29 Feb 2020"
    with pytest.raises(DataError, match=r"model\.path: the tokenizer of .* is not the one"):
        BapoModule(config).on_load_checkpoint(saved)


def test_modules_load_from_files_of_lightning_and_from_run_folders(trained, tmp_path):
    folder = trained[2]
    loaded = BapoModule.load_from_checkpoint(folder / "step=6.ckpt")
    saved = torch.load(folder / "step=6.ckpt", weights_only=False)["state_dict"]
    assert all(torch.equal(saved[name], value) for name, value in loaded.state_dict().items())
    run = fit(*FAST, f"run_folder={tmp_path / 'run'}", experiment="additions", staleness=4)
    loaded = BapoModule.load_from_checkpoint(run.path)
    assert loaded.config.staleness.updates_per_rollout_batch == 4
    assert len(repr(run)) < 200  # of a notebook's last line
    with pytest.raises(ConfigError, match="is a model, not a checkpoint; write configure"):
        BapoModule.load_from_checkpoint(loaded.config.model.path)


@pytest.mark.parametrize("ask", ["validate", "test"])
def test_validating_and_testing_answer_the_held_out_sets(config, trained, tmp_path, ask):
    module, own, _ = trained
    found = getattr(trainer(tmp_path), ask)(module, datamodule=RolloutDataModule(config), verbose=False)
    last = {name: value for name, value in own.callback_metrics.items() if name.startswith("val/")}
    assert found == [pytest.approx({name: float(value) for name, value in last.items()})]


def test_stock_callbacks_end_training(config, tmp_path):
    early = EarlyStopping("train/reward", patience=1, min_delta=1.0, check_on_train_epoch_end=False)
    own = trainer(tmp_path, early)
    own.fit(BapoModule(config), datamodule=RolloutDataModule(config))
    assert own.global_step == 2


def test_several_ranks_are_referred_to_fit(config):
    data = RolloutDataModule(config)
    data.trainer = SimpleNamespace(world_size=2)
    with pytest.raises(ConfigError, match=r"trainer\.devices=2.*torchrun"):
        data.setup("fit")


def test_fit_is_make_train_with_a_reward_of_your_own(tmp_path):
    problems = [{"problem": f"{a}+{b}=", "answer": str(a + b)} for a in range(10) for b in range(10)]
    table = tmp_path / "own sums.jsonl"
    table.write_text("\n".join(map(json.dumps, problems)))
    lengths = ("scale.max_prompt_tokens=8", "scale.max_new_tokens=16", "scale.overlong_buffer=4")
    sizes = (*FAST, f"output_root={tmp_path}", *lengths)
    own = {"model": "additions", "data": table, "reward": length_reward, "algorithm": "grpo", "staleness": 1}
    run = fit(*sizes, **own)
    assert run.manifest["status"] == "finished" and run.manifest["algorithm"] == "grpo"
    assert run.config["reward"]["functions"] == [f"{__name__}.length_reward"]
    (row,) = run.rows  # on-policy: one update on each rollout batch
    assert 1 / 16 <= row["train/reward"] <= 1
    longer = fit(*sizes, f"resume={run.path}", "scale.num_rollout_batches=2", **own)
    assert longer.path.samefile(run.path) and longer.rows[0] == row and len(longer.rows) == 2


@pytest.mark.parametrize(("given", "message"), [
    ({"reward": lambda completions: [0.0] * len(completions)}, "define it at the top"),
    ({"reward": "maths"}, "maths.*math"),
    ({"model": "additions"}, r"data\.train\.path"),
    ({"data": "additions"}, r"model\.path"),
    ({"staleness": 7, "experiment": "additions"}, r"staleness=7 does not divide"),
    ({"algorithm": "gpro"}, "grpo"),
    ({"reward": misnamed_reward}, "needs TRL's signature"),
])  # fmt: skip
def test_mistakes_end_in_a_sentence(given, message):
    with pytest.raises(ConfigError, match=message):
        configure(**given)


def test_nothing_else_is_exported():
    with pytest.raises(AttributeError, match="has no attribute 'trainer'"):
        bapo_lightning.trainer  # noqa: B018


def test_every_command_has_a_script_and_a_line():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert declared == {f"bapo-{name}": f"{module_of(name)}:main" for name in COMMANDS}
    package = ROOT / "src/bapo_lightning"
    files = [*package.glob("*/commands/*.py"), *package.glob("cli/*.py")]
    names = {path.stem for path in files} - {"multirun", "__init__"}
    assert names == {file.removeprefix("cli.") for file, _ in COMMANDS.values() if "command" not in file}


def asked(*arguments, **variables):
    command = [sys.executable, "-m", "bapo_lightning", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, **variables})


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_help_and_version(command):
    shown = asked(command, "--help")
    assert shown.returncode == 0 and shown.stdout.startswith("usage: python -m bapo_lightning " + command)
    version = run_command(module_of(command), "--version").stdout
    assert version == f"bapo-lightning {bapo_lightning.__version__}\n"


def test_a_shell_completes_choices_and_keys():
    for begun, whole in [("algorithm=gr", "algorithm=grpo"), ("regime.ep", "regime.epochs=")]:
        line = f"bapo-train {begun}"
        shown = asked("train", "--shell-completion", "query=bash", COMP_LINE=line, COMP_POINT=str(len(line)))
        assert whole in shown.stdout.split()


def test_the_package_lists_its_commands_and_knows_a_misspelt_one():
    assert "  eval-table   one table of several evaluations" in asked().stdout
    assert asked("--version").stdout == f"bapo-lightning {bapo_lightning.__version__}\n"
    wrong = asked("trian")
    assert (wrong.returncode, wrong.stderr) == (1, "error: trian is not a command; did you mean train?\n")


@pytest.mark.parametrize(("overrides", "named", "words"), [
    ((), {"algoritm": "bapo"}, "fit has no argument algoritm; did you mean algorithm?"),
    ((), {"reward": 3}, "reward=3 must be a name, a function, or a list of them"),
    ((), {"reward": []}, "reward=[] must be"),
    ((), {"algorithm": ["grpo", "bapo"]}, "must be the name of one algorithm; call it once for each"),
    ((), {"data": 3.5}, "data=3.5 must be one name or path"),
    ((), {"model": ["a"]}, "model=['a'] must be one name or path; call it once for each"),
    ((), {"experiment": 1}, "experiment=1 must be the name of one experiment"),
    ((), {"staleness": "a"}, "staleness='a' must be a whole number in [1, 1000000]"),
    ((), {"staleness": 0}, "staleness=0 must be a whole number in [1, 1000000]"),
    ((), {"staleness": True}, "staleness=True must be"),
    (("regime.minibatches=2",), {"staleness": 7}, "staleness=7 and regime.minibatches=2 say the same"),
    (("regime=async",), {"staleness": 7}, "staleness=7 and regime=async say the same"),
    (("algorithm=grpo",), {"algorithm": "bapo"}, "algorithm='bapo' and algorithm=grpo say the same"),
    (("model.path=x",), {"model": "y"}, "model='y' and model.path=x say the same"),
    (("",), {}, "'' is not an override"),
    ((), {"algorithm": "../x"}, "algorithm=../x is not a choice"),
    ((3,), {}, 'is not an override; write a text, "KEY=VALUE"'),
    (("debug=fast",), {"staleness": 7, "experiment": "additions"}, "staleness=7 does not divide"),
    (("algorithm=grpo,bapo",), {}, "write -m algorithm=grpo,bapo"),
])  # fmt: skip
def test_a_wrong_argument_is_named_as_it_was_written(overrides, named, words):
    with pytest.raises(ConfigError) as error:
        fit(*overrides, **named)
    (problem,) = error.value.problems
    assert words in problem


WRONG = [
    "", " ", 0, -1, 1.5, True, float("nan"), float("inf"), 10**30, [], {}, [1], {"a": 1}, b"x", object(),
    ["grpo", "bapo"], "nothing", "a=b", "a,b", "x\ny", "../x", "{a:1}", "'q'", "???", len,
]  # fmt: skip


@pytest.mark.parametrize("name", ["experiment", "model", "data", "reward", "algorithm", "staleness"])
def test_no_argument_of_another_type_or_range_ends_in_a_traceback(name):
    told = []
    for value in WRONG:
        try:
            configure(**{"experiment": "additions", name: value})
        except ConfigError as error:
            told.append(str(error))
        else:  # any text may be the name of a table
            assert name == "data" and isinstance(value, str) and value.strip(), value
    assert all(name in text and "regime.minibatches" not in text for text in told), told
    assert len(told) >= 17
