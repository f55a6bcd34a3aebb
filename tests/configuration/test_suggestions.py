"""What is suggested for a mistake is never what was typed, and never another method for a matter of case."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.configuration.compositions import found

from bapo_lightning.configuration.compose import compose_run, dotted_keys, meant_key, node_at
from bapo_lightning.configuration.conf_dir import choice_files, conf_dir
from bapo_lightning.configuration.hydra_versions import BASE
from bapo_lightning.configuration.origins import name_origins
from bapo_lightning.system.errors import ConfigError, nearest, suggestion

PLAIN = compose_run(["experiment=additions"])
KEYS = sorted(dotted_keys(PLAIN))
GROUPS = sorted(one.relative_to(conf_dir()).as_posix() for one in Path(conf_dir()).rglob("*") if one.is_dir())


@pytest.mark.parametrize("group", GROUPS)
def test_a_choice_in_other_letters_is_that_choice(group):
    names = sorted({*choice_files(group)} - {"base"})
    for name in names:
        for typed in {name.upper(), name.title(), name.capitalize()} - {name}:
            assert suggestion(typed, names).startswith(f"did you mean {name}?")


def meant(typed):
    """What is suggested for a key, or the sentence where nothing is."""
    told = meant_key(typed, PLAIN)
    return told[13:-1].split(" or ") if told.startswith("did you mean") else told


@pytest.mark.parametrize("child", ["name", "r", "nope", "Upper", "lr", "alpha"])
def test_a_wrong_child_has_the_children_of_its_place_and_never_the_place(child):
    for key in KEYS:
        if node_at(PLAIN, [*key.split("."), child]) is None:
            found = meant(f"{key}.{child}")
            assert isinstance(found, str) or not {f"{key}.{child}", key} & {*found}
    for key in KEYS:
        node = node_at(PLAIN, key.split("."))
        if isinstance(node, dict) and node and child == "nope":
            assert all(name in meant(f"{key}.zzqq") for name in node)


def test_a_part_in_other_letters_is_that_key():
    for key in KEYS:
        parts = key.split(".")
        for place, part in enumerate(parts):
            for typed in {part.upper(), part.title()} - {part}:
                assert meant(".".join([*parts[:place], typed, *parts[place + 1 :]])) == [key]


@pytest.mark.parametrize("edit", ["{0}s", "{0}{2}", "{1}{3}", "x{3}", "{4}", "{3}"])
def test_a_key_with_one_edit_is_answered_by_keys_that_exist(edit):
    for key in KEYS:
        place, _, name = key.rpartition(".")
        typed = edit.format(name, name[1:2] + name[:1], name[-1], name[2:], name[:-1])
        typed = f"{place}.{typed}" if place else typed
        if not typed.endswith(".") and typed not in {*KEYS, ""}:
            found = meant(typed)
            assert name in found if isinstance(found, str) else typed not in found and {*found} <= {*KEYS}


@settings(max_examples=150, deadline=None)
@given(st.text("abcAB", min_size=1, max_size=4), st.lists(st.text("abcAB", min_size=1, max_size=4)))
def test_nearest_prefers_the_same_letters_and_never_gives_the_text_back(typed, options):
    near = nearest(typed, options)
    assert typed not in near
    if any(option != typed and option.casefold() == typed.casefold() for option in options):
        assert near[0].casefold() == typed.casefold()


# Hydra 1.4 deletes a key that is null.
NULL = (
    [("~algorithm.objective.dual_clip", "~algorithm.objective.dual_clip: it is already null; leave")]
    if BASE
    else []
)


@pytest.mark.parametrize(("override", "words"), [
    ("--seed=3", "--seed=3 cannot be read; write seed=3"),
    ("-scale.group_size=3", "write scale.group_size=3"),
    ("seed:3", "write seed=3"),
    ("scale.group_size: 3", "write scale.group_size=3"),
    ("seed=1,", "write spaces between overrides: seed=1"),
    ("seed=1, name=x", "write spaces between overrides: seed=1 name=x"),
    ("seed", "write seed=VALUE"),
    ("algorithm=grpo,bapo", "for a run of each write -m algorithm=grpo,bapo"),
    ("seed=1,2", "for a list seed=[1,2]"),
    ("model.lora.r=0", "model.lora is null; write model/lora=default as well, which takes rank, alpha"),
    ("seed.x=1", "seed is one value (0), without options; write seed=VALUE"),
    *NULL,
    ("optimizer.scheduler.name=x", "optimizer.scheduler takes _target_, _partial_, warmup_updates"),
    ("optimizer.scheduler={_target_:mine,T_max:9}", "optimizer.scheduler.T_max is not an option"),
    ("data.validation_samples.nope=3", "data.validation_samples is empty; write +data.validation"),
])  # fmt: skip
def test_what_hydra_cannot_read_is_answered_in_the_form_that_it_takes(override, words):
    with pytest.raises(ConfigError) as error:
        compose_run([override])
    (problem,) = error.value.problems
    assert words in problem


@pytest.mark.parametrize(("target", "words"), [
    ("collections.OrderedDict", "is not a lightning Callback"),
    ("torch.optim.AdamW", "is not a lightning Callback"),
    ("math.pi", "is a float, not a class or function"),
    ("json", "is a module, not a class or function"),
    ("json.dump_", "cannot be imported; did you mean json.dump?"),
])  # fmt: skip
def test_what_can_be_imported_but_is_of_the_wrong_kind_says_so(target, words):
    texts = found(f"+callbacks.mine={{_target_:{target}}}")
    assert any(words in text for text in texts)
    assert not any(f"did you mean {target}?" in text for text in texts)


@pytest.mark.parametrize(("target", "words"), [
    ("torch.nn.Linear", "is a class that is made again in each call"),
    ("torch.nn.functional", "is a module"),
])  # fmt: skip
def test_what_is_no_objective_is_refused_before_anything_starts(target, words):
    (problem,) = found("algorithm=grpo", f"algorithm.objective._target_={target}")
    assert words in problem


def test_a_key_that_repeats_another_one_is_reported_under_the_name_that_was_written():
    wrong = "temperature=-1 must be a number of at least 0"
    typed = ["experiment=additions", "rollout.temperature=-1"]
    with pytest.raises(ConfigError) as error, name_origins(typed):
        raise ConfigError([f"rollout.weight_sync.{wrong}", "seed=-1 is odd"])
    assert [*error.value.problems] == [f"rollout.{wrong}", "seed=-1 is odd"]


@pytest.mark.parametrize(("arguments", "said"), [
    (["run_name=${oc.env:NOPE}", "seed=-1"], "run_name cannot be resolved"),
    (["--resolve"], "--resolve prints nothing alone; write --cfg job --resolve"),
])  # fmt: skip
def test_the_command_answers_in_a_sentence(arguments, said):
    command = [sys.executable, "-m", "bapo_lightning.cli.train", "experiment=additions", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and said in done.stderr and "Traceback" not in done.stderr
