import pytest
from tests.configuration.compositions import found

from bapo_lightning.configuration.compose import compose_run
from bapo_lightning.system.errors import ConfigError


@pytest.mark.parametrize(("override", "words"), [
    ("sed=4", "sed is not an option; did you mean seed?"),
    ("lr=1e-4", "lr is not an option; did you mean optimizer.optimizer.lr (learning rate)?"),
    ("regime.epoch=4", "regime.epoch is not an option; did you mean regime.epochs?"),
    ("callbacks.alarms.entropi.above=3", "did you mean callbacks.alarms.entropy.above?"),
    ("algorithm.clip.low=3", "did you mean algorithm.bounds.low?"),
    ("algoritm=grpo", "algoritm is not an option; did you mean algorithm?"),
    ("trainer.detect_anomaly=true", "; write +trainer.detect_anomaly for another option"),
    ("nothing_like_it=1", "the configuration takes name, seed"),
    ("~sed", "sed is not an option; did you mean seed?"),
    ("+seed=4", "seed is already an option; leave out the + before it"),
    ("algorithm=gpro", "algorithm=gpro is not a choice; did you mean grpo?"),
    ("logger=[wanb]", "logger=wanb is not a choice; did you mean wandb? it takes csv, mlflow"),
    ("problem_set@data.train=table", "is not chosen here; your own table is data=table"),
    ("data.train.path=mine.jsonl", "your own table is data=table data.train.path=FILE"),
    ("run_folder=outputs/läuft", """put the value in quotes: 'run_folder="outputs/läuft"'"""),
])  # fmt: skip
def test_a_sentence_names_the_key_or_the_choice_that_is_meant(override, words):
    with pytest.raises(ConfigError) as error:
        compose_run([override, "debug=fast"])
    (problem,) = error.value.problems
    assert words in problem
    assert "\n" not in problem and "base," not in problem


@pytest.mark.parametrize(("override", "words"), [
    ("+sed=4", "sed is not an option; did you mean seed?"),
    ("+regime.epoch=4", "regime.epoch is not an option of bapo_lightning.data.rollouts.regime.Regime"),
])  # fmt: skip
def test_a_plus_does_not_let_a_misspelt_key_through(override, words):
    (problem,) = found(override)
    assert problem.startswith(words)


def test_two_mistakes_do_not_hide_the_keys_that_there_are():
    with pytest.raises(ConfigError, match="sed is not an option; did you mean seed"):
        compose_run(["sed=4", "algoritm=grpo"])
