"""What is suggested for a mistake is never what was typed, and never another method for a matter of case."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.configuration.compositions import found

from bapo_lightning.configuration.compose import compose_run, dotted_keys, meant_key, node_at
from bapo_lightning.configuration.conf_dir import choice_files
from bapo_lightning.errors import ConfigError, nearest, taken

PLAIN = compose_run(["experiment=additions"])
KEYS = sorted(dotted_keys(PLAIN))


@pytest.mark.parametrize("group", ["algorithm", "regime", "rollout", "reward", "data"])
def test_a_choice_in_other_letters_is_that_choice(group):
    names = sorted({*choice_files(group)} - {"base"})
    for name in names:
        for typed in {name.upper(), name.title(), name.capitalize()} - {name}:
            assert taken(typed, names).startswith(f"did you mean {name}?")


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KEYS), st.sampled_from(["name", "r", "nope", "Upper", "lr", "alpha"]))
def test_the_key_that_was_typed_is_never_suggested(key, child):
    typed = f"{key}.{child}"
    if node_at(PLAIN, typed.split(".")) is not None:
        return
    told = meant_key(typed, PLAIN)
    assert not told.startswith("did you mean") or not {typed, key} & {*told[13:-1].split(" or ")}


@settings(max_examples=150, deadline=None)
@given(st.text("abcAB", min_size=1, max_size=4), st.lists(st.text("abcAB", min_size=1, max_size=4)))
def test_nearest_prefers_the_same_letters_and_never_gives_the_text_back(typed, options):
    near = nearest(typed, options)
    assert typed not in near
    if any(option != typed and option.casefold() == typed.casefold() for option in options):
        assert near[0].casefold() == typed.casefold()


@pytest.mark.parametrize(
    ("override", "words"),
    [
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
        ("optimizer.scheduler.name=x", "optimizer.scheduler takes _target_, _partial_, warmup_updates"),
        ("optimizer.scheduler={_target_:mine,T_max:9}", "optimizer.scheduler.T_max is not an option"),
        ("data.validation_samples.nope=3", "data.validation_samples is empty; write +data.validation"),
    ],
)
def test_what_hydra_cannot_read_is_answered_in_the_form_that_it_takes(override, words):
    with pytest.raises(ConfigError) as error:
        compose_run([override])
    (problem,) = error.value.problems
    assert words in problem


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("collections.OrderedDict", "is no lightning Callback"),
        ("torch.optim.AdamW", "is no lightning Callback"),
        ("math.pi", "is a float, no class or function"),
        ("json", "is a module, no class or function"),
        ("json.dump_", "cannot be imported; did you mean json.dump?"),
    ],
)
def test_what_can_be_imported_but_is_of_the_wrong_kind_says_so(target, words):
    texts = found(f"+callbacks.mine={{_target_:{target}}}")
    assert any(words in text for text in texts)
    assert not any(f"did you mean {target}?" in text for text in texts)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("torch.nn.Linear", "is a class that is made anew in each call"),
        ("torch.nn.functional", "is a module"),
    ],
)
def test_what_is_no_objective_is_refused_before_anything_starts(target, words):
    (problem,) = found("algorithm=grpo", f"algorithm.objective._target_={target}")
    assert words in problem
