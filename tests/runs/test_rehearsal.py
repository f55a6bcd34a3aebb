"""A rehearsal is the experiment itself: nothing but sizes, the hub's model and its tables are replaced."""

import json

import pytest
from tests.commands import run_command
from tests.configuration.compositions import composed

from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.configuration.targets import Target
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.system.run_folder.config_keys import differences
from bapo_lightning.tools.commands.rehearse import share_of
from bapo_lightning.tools.rehearsal.script import LONGEST, shipped_problems, write_script, write_table

EXPERIMENTS = [
    pytest.param(name, marks=[pytest.mark.slow] * (name not in ("bapo_7b", "own")))
    for name in choice_files("experiment")
    if not name.startswith("smollm2")  # whose model is made by a command
]
# Keys of what a hub has, and their small stand-ins.
STAND_INS = (
    *("model.path", "model.architecture", "run_folder", "debug"),
    *("data.train.path", "data.train.files", "data.train.config", "data.train.any_size"),
)
SIZES = (
    *("scale.", "regime.max_new_tokens", "regime.partial_tokens", "data.validation", "callbacks."),
    *("trainer.devices", "trainer.num_nodes", "optimizer.scheduler.total_updates"),
    *("rollout.engine.options.tensor_parallel_size", "rollout.engine.options.kv_cache_bytes"),
    *("rollout.engine.options.max_",),
)
# What `auto` and null mean on the experiment's own GPUs is written out.
SETTLED = (
    "trainer.precision", "rollout.engine.options.dtype", "rollout.engine.dtype",
    "rollout.engine.context_length",
)  # fmt: skip


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_nothing_is_replaced_but_sizes_and_what_only_the_hub_has(name, tmp_path):
    script = write_script(name, [], tmp_path)
    assert script.name == script.config.name == name
    changed = [key for key, before, now in differences(script.config.plain, script.plain) if before != now]
    assert [key for key in changed if not key.startswith((*STAND_INS, *SIZES, *SETTLED))] == []
    assert all(script.plain["scale"][key] <= longest for key, longest in LONGEST.items())


@pytest.mark.parametrize(
    "name",
    ["bapo_7b", *(pytest.param(name, marks=pytest.mark.slow) for name in ("octothinker_3b", "cs336_small"))],
)
def test_a_small_model_is_of_the_family_and_spells_every_prompt(name, tmp_path):
    from transformers import AutoConfig, AutoTokenizer

    script = write_script(name, [], tmp_path)
    config, tokenizer = (kind.from_pretrained(tmp_path / "model") for kind in (AutoConfig, AutoTokenizer))
    assert config.model_type == script.config.model.architecture["model_type"]
    assert config.tie_word_embeddings == script.config.model.architecture["tie_word_embeddings"]
    for problem in shipped_problems():
        assert tokenizer.decode(tokenizer.encode(problem["problem"])) == problem["problem"]
    prompt = script.config.data.prompt.make()
    for node in (script.plain["data"]["train"], *script.plain["data"]["validation"].values()):
        for problem in Target(node).make():
            assert len(prompt(tokenizer, problem)) <= script.plain["scale"]["max_prompt_tokens"]


WORLDS = ("additions", "locks", "sums")  # which are no tables


@pytest.mark.parametrize("name", sorted(choice_files("problem_set").keys() - {"base", *WORLDS}))
def test_every_table_of_the_hub_has_its_columns(name, tmp_path):
    path = "data.validation.it.path=owner/name"  # of files for one's own tables
    node = composed(
        f"+problem_set@data.validation.it={name}", *([path] if name in ("table", "verl") else [])
    )["data"]["validation"]["it"]
    for is_training in (True, False):
        given = dict(text.split("=") for text in write_table(node, is_training, tmp_path / "it.jsonl"))
        read = Target({**node, **given, **dict.fromkeys(("config", "revision", "files")), "any_size": True})
        problems = {problem.prompt: problem.answer for problem in read.make()}
        assert problems.items() <= {each["problem"]: each["answer"] for each in shipped_problems()}.items()
        assert len(problems) >= 8


def test_shares_take_turns_and_leave_nothing_out():
    names = list("abcdefgh")
    shares = [share_of(names, f"{number}/3") for number in (1, 2, 3)]
    assert sorted(name for share in shares for name in share) == names
    assert share_of(names, "4/3") == shares[0]
    for text in ("half", "0/3", "1/0", "auto/3", "\u00b2/3", f"1/{'9' * 5000}"):
        with pytest.raises(ConfigError, match=rf"rehearsal\.share={text} is not a share; write e\.g\. 1/3"):
            share_of(names, text)


def rehearse(*arguments):
    """The command, which starts one for each act."""
    return run_command("bapo_lightning.tools.commands.rehearse", *arguments, forks=True)


@pytest.mark.slow
def test_a_rehearsal_ends_with_a_table_of_all_parts(tmp_path):
    done = rehearse("experiment=additions", f"rehearsal.folder={tmp_path}")
    assert done.returncode == 0, done.stdout
    record = json.loads((tmp_path / "additions" / "rehearsal.json").read_text())
    assert all(part["ran"] for part in record["parts"]) and record["not_here"] == []
    assert "scale.num_rollout_batches: 56 -> 2" in record["sizes"]
    assert "1 of 1 experiments ran whole" in done.stdout


@pytest.mark.slow
def test_a_part_that_fails_is_reported_with_its_reason(tmp_path):
    disagreeing = "rollout.weight_sync.tolerance=1e-12"
    done = rehearse("experiment=additions", disagreeing, f"rehearsal.folder={tmp_path}")
    assert done.returncode == 3
    assert "train and stop        NO" in done.stdout and "engine and trainer disagree" in done.stdout
    assert "0 of 1 experiments ran whole: additions did not" in done.stdout


def test_an_experiment_that_does_not_exist_is_reported():
    done = rehearse("experiment=bapo_8b")
    assert done.returncode == 1 and "experiment=bapo_8b: no such experiment; write some of" in done.stderr
