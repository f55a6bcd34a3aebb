"""What new users typed in their first afternoon, and what they are told."""

import copy
import pickle
import shlex
from pathlib import Path

import pytest
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from tests.configuration.compositions import found

from bapo_lightning import configure, fit
from bapo_lightning.callbacks.run_manifest import session_start
from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.configuration.conf_dir import conf_dir
from bapo_lightning.configuration.origins import name_origins
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.commands.evaluate import hydra_overrides

TYPED = [
    (1, "hydra/launcher=jobli", 'pip install -e ".[sweep]"'),
    (4, "algorithm=Bapo", "algorithm=Bapo is not a choice; did you mean bapo?"),
    (5, "+callbacks.mine={_target_:math.pi}", "is a float, not a class or function"),
    (5, "+callbacks.mine={_target_:collections.OrderedDict}", "is not a lightning Callback"),
    (6, "optimizer.scheduler={_target_:mine.Cosine,T_max:9}", "optimizer.scheduler.T_max is not an option"),
    (7, "optimizer.scheduler.name=x", "optimizer.scheduler takes _target_, _partial_, warmup_updates"),
    (7, "model.lora.r=0", "which takes rank, alpha, target_modules"),
    (7, "data.validation_samples.nope=3", "write +data.validation_samples.nope=VALUE"),
    (10, "seed=1.5", "seed=1.5 must be"),
    (10, "name=../../evil", "letters, digits and . _ + - only"),
]


@pytest.mark.parametrize(("number", "typed", "answer"), TYPED)
def test_it_is_answered_with_what_was_meant(number, typed, answer):
    try:
        compose_run([typed])
        told = found(typed)
    except ConfigError as error:
        told = list(error.problems)
    assert any(answer in text for text in told), told


@pytest.mark.parametrize(("overrides", "end"), [
    (["experiment=sums", "reward=environment", "environment=python"],
     "(experiment=sums sets it; reward.require_stop=null takes it back)"),
    (["experiment=additions", "scale.prompts_per_batch=7"], "(regime=replay sets it)"),
    (["experiment=sums", "reward.require_stop=3"], "reward.require_stop=3 must be true or false"),
    (["experiment=sums", "optimizer.optimizer={lr: -1}"], "write a positive number"),
])  # fmt: skip
def test_a_refused_key_that_nobody_typed_names_the_choice_that_set_it(overrides, end):
    with pytest.raises(ConfigError) as error:
        configure(*overrides)
    (problem,) = error.value.problems
    assert problem.endswith(end)


def test_a_key_of_the_users_own_file_is_not_blamed_on_a_shipped_choice(tmp_path):
    (tmp_path / "algorithm").mkdir()
    own = "defaults: [grpo]\nname: mine\nobjective: {_target_: nowhere.at.all}\n"
    (tmp_path / "algorithm" / "mine.yaml").write_text(own)
    with pytest.raises(ConfigError) as error:
        configure(f"hydra.searchpath=[{tmp_path}]", "algorithm=mine")
    assert "nowhere.at.all cannot be imported" in str(error.value) and "sets it" not in str(error.value)
    path = create_config_search_path(conf_dir())
    path.prepend("own", str(tmp_path))
    try:
        Hydra.create_main_hydra2("train", path)  # as a command with `--config-dir` does
        with pytest.raises(ConfigError, match="algorithm=mine sets it"), name_origins(["algorithm=mine"]):
            raise ConfigError(["algorithm.objective._target_=nowhere.at.all cannot be imported"])
    finally:
        GlobalHydra.instance().clear()


@pytest.mark.parametrize(
    "override",
    ["algorithm=Bapo", "algorithm=a,b", "seed=[1", "+seed=1", "~nope", "nope=1", "+data/x@y=1", "/a=b", "=1"],
)
def test_what_cannot_be_composed_is_refused_in_words_by_the_library_too(override):
    with pytest.raises(ConfigError):
        configure(override)


def test_a_slow_run_shows_and_saves_by_time():  # 8
    callbacks = compose_run([])["callbacks"]
    assert callbacks["console"]["seconds"] == 30 and callbacks["checkpoint"]["minutes"] == 10


def test_a_file_is_a_problem_set(tmp_path):  # 15
    file = tmp_path / "guess.jsonl"
    file.touch()
    chosen = hydra_overrides(["checkpoint=model", f"sets={file}"])
    assert chosen[:2] == ["+problem_set@data.validation.table=table", f"data.validation.table.path={file}"]
    with pytest.raises(ConfigError, match="or a file"):
        hydra_overrides(["checkpoint=model", "sets=nothing.jsonl"])


@pytest.mark.parametrize("name", ["rows.jsonl", "folder", "wrong.xlsx", "folder/rows.jsonl"])
@pytest.mark.parametrize("is_full", [True, False])
def test_a_file_chosen_as_data_is_refused_with_how_a_table_is_read(tmp_path, monkeypatch, name, is_full):
    monkeypatch.chdir(tmp_path)
    if name == "folder":
        Path(name).mkdir()
    else:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    name = str(tmp_path / name) if is_full else name
    with pytest.raises(ConfigError) as refused:
        configure(f"data={name}")
    (text,) = refused.value.problems
    assert text == f"data={name} is not a choice; your own table is data=table data.train.path={name}"


@pytest.mark.parametrize(("low", "is_shown"), [(0.2, True), (0.8, False)])  # 15
def test_an_epsilon_in_the_place_of_a_bound_is_reported(tmp_path, capsys, low, is_shown):
    fit("debug=fast", f"run_folder={tmp_path / 'run'}", "algorithm=grpo", f"algorithm.bounds.low={low}")
    hint = "algorithm.bounds.low=0.2 is an importance ratio; for an epsilon of 0.2 write 0.8"
    assert (hint in capsys.readouterr().out) is is_shown


def test_the_command_of_a_manifest_is_read_back_by_a_shell(monkeypatch):  # 14
    typed = ["python", "+callbacks.alarms.mine={metric: train/reward, below: 0.3}", 'group="a b"', "x='$y'"]
    monkeypatch.setattr("sys.orig_argv", typed)
    assert shlex.split(session_start()["command"]) == typed


def test_a_configuration_can_be_read_by_attribute():
    config = configure("debug=fast", experiment="additions", staleness=8)
    assert (config.regime.epochs, config.regime.minibatches) == (1, 8)
    with pytest.raises(AttributeError, match="has no option epoch"):
        _ = config.regime.epoch
    assert copy.deepcopy(config.regime) == config.regime == pickle.loads(pickle.dumps(config.regime))
