"""An algorithm's loss for others' trainers is ours, whole and over micro-batches, and in TRL's trainer."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hydra.core.global_hydra import GlobalHydra
from scripts import doc_tables
from tests.zoo import algorithms

from bapo_lightning.losses import policy_loss
from bapo_lightning.modules.token_tables import prepared_for_update
from bapo_lightning.objectives.objective import token_loss
from bapo_lightning.objectives.token_table import table_of
from bapo_lightning.objectives.weighting import weigh
from bapo_lightning.reference import Settings, search
from bapo_lightning.system.errors import ConfigError
from bapo_lightning.tools.replay.replay import cuts, loss_of, replay
from bapo_lightning.tools.replay.step import capture, read_step

ROOT = Path(__file__).resolve().parents[1]

LISTED = doc_tables.parts("docs/other_trainers.md", "losses")[1].splitlines()
REFUSED = {  # and the part, or the column, that the refusal names
    **dict.fromkeys(("bnpo", "dcpo_sas", "gdpo", "opo", "reinforce_pp", "spo"), "stages.batch_advantages"),
    "reinforce_pp_baseline": "stages.batch_advantages",
    "aepo": "stages.second_sampling",
    **dict.fromkeys(("pipo", "spear", "spear_turns"), "stages.replay"),
    "direct_advantage": "stages.step_advantages",
    "ghpo": "rules.hints",
    "luffy": "rules.experts",
    **dict.fromkeys(("flowrl", "flowrl_authors_code"), "log_z"),
    **dict.fromkeys(("score_centering", "score_centering_mis", "score_centering_tis"), "candidate_logp"),
    "estr": "candidate_behaviour_logp",
}
LIMIT = f"scale.max_new_tokens={algorithms.LONGEST_RESPONSE}"
B, T = 12, 7


def batch(seed=0):
    """The arguments of a call, and all columns that some algorithm reads; NaN where nothing is trained on."""
    draw = torch.Generator().manual_seed(seed)
    mask = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=draw)

    def random(low, high):
        values = low + (high - low) * torch.rand(B, T, generator=draw, dtype=torch.float64)
        return values.where(mask, torch.nan)

    logp = random(-4, 0)
    own = {"logp": logp, "behaviour_logp": (logp + random(-0.5, 0.5)).clamp_max(0), "mask": mask}
    own["advantages"] = torch.randn(B, generator=draw, dtype=torch.float64)
    columns = {"entropy": random(0, 2), "entry_entropy": random(0, 2), "group": torch.arange(B) // 4}
    columns |= {name: random(-9, -6) for name in ("mean_logp", "entry_mean_logp")}
    return own, columns


def reference_bounds(parts, target=0.4):
    """Bounds of our one-file Algorithm 1 for the tokens of an update."""
    tables = []
    for part in parts:
        kept = part["mask"].bool()
        logp, old = (part[name].detach()[kept] for name in ("logp", "behaviour_logp"))
        advantage = part["advantages"].reshape(len(kept), -1).expand(kept.shape)[kept]
        num_tokens = sum(each["mask"].sum() for each in parts)
        weight = torch.full_like(logp, 1 / float(num_tokens))
        known = {"advantage": advantage, "weight": weight, "behaviour_logp": old}
        tables.append(SimpleNamespace(ratio=(logp - old).exp(), **known))
    found = search(Settings(target=target), tables)
    return float(found.low), float(found.high)


def with_graph(given):
    return {
        name: values.clone().requires_grad_() if name in ("logp", "entropy") else values
        for name, values in given.items()
    }


def of_update(name, given):
    """Loss and gradient of the update, made of the parts that bapo-train has."""
    method, mask = algorithms.method(name), given["mask"]
    rows = torch.arange(B)[:, None].expand(B, T)
    known = {key: value.reshape(B, -1).expand(B, T)[mask] for key, value in given.items() if key != "mask"}
    weight = weigh(method.weighting, mask, float(mask.sum()), float(B))[mask]
    table = table_of(
        known.pop("logp"), known.pop("behaviour_logp"), advantage=known.pop("advantages"), weight=weight,
        sequence=rows[mask], position=(mask.cumsum(1) - 1)[mask], age=torch.zeros_like(rows[mask]),
        count=torch.ones_like(weight), **{"entropy": weight, "group": rows[mask], **known},
    )  # fmt: skip
    bounds = method.bounds.choose([table.detach()])
    (columns,) = prepared_for_update(method.objective, [table], bounds, 1)
    loss, _ = token_loss(table, bounds, columns, method.objective)
    return loss, *torch.autograd.grad(loss, given["logp"]), bounds


@pytest.mark.parametrize("name", algorithms.names())
def test_an_algorithm_has_the_loss_and_gradient_of_bapo_train_or_is_refused(name):
    made = doc_tables.loss_or_refusal(name)
    title = doc_tables.as_loss(made)
    listed = [line.split("|")[1].strip() for line in LISTED if f"`{name}`" in line]
    assert listed == [title] * bool(title), "make tables writes it again"
    if isinstance(made, ConfigError):
        assert f"algorithm={name} " in str(made) and "run it with bapo-train" in str(made)
        return
    own, columns = batch()
    needed = doc_tables.needed(made)
    given = with_graph(own | {key: columns[key] for key in needed})
    expected, gradient, bounds = of_update(name, given)
    loss, metrics = made(**given)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    assert torch.autograd.grad(loss, given["logp"])[0].equal(gradient)
    assert (metrics["clip_low"], metrics["clip_high"]) == (bounds.low, bounds.high)
    for key in needed:
        with pytest.raises(ConfigError, match=f"algorithm={name} reads {key}, which is not given"):
            made(**{other: values for other, values in given.items() if other != key})


@pytest.mark.parametrize("name", ["bapo", "grpo", "gspo", "m2po", "kl_cov", "real", "top_entropy"])
def test_micro_batches_of_an_update_add_up_to_it(name):
    own, columns = batch()
    made = policy_loss(name, LIMIT)
    given = with_graph(own | {key: columns[key] for key in doc_tables.needed(made)})
    whole, found = made(**given)
    parts = [{key: values[rows] for key, values in given.items()} for rows in torch.arange(B).split(5)]
    losses = []
    for part, shared in zip(parts, made.look_ahead(parts), strict=True):
        loss, metrics = made(**part, shared=shared)
        losses.append(loss)
        assert metrics["clip_low"] == found["clip_low"] and metrics["clip_high"] == found["clip_high"]
    torch.testing.assert_close(torch.stack(losses).sum(), whole)
    split = torch.autograd.grad(torch.stack(losses).sum(), given["logp"])[0]
    torch.testing.assert_close(split, torch.autograd.grad(whole, given["logp"])[0])


def test_the_authors_code_searches_in_each_micro_batch():
    own, _ = batch()
    parts = [{key: values[rows] for key, values in own.items()} for rows in torch.arange(B).split(4)]
    made = policy_loss("bapo_authors_code")
    alone = [made.look_ahead([part])[0].bounds.high for part in parts]
    assert [shared.bounds.high for shared in made.look_ahead(parts)] == alone
    assert len(set(map(float, alone))) > 1


def test_a_correction_is_a_factor_of_each_weight():
    own, _ = batch()
    given, factor = with_graph(own), 2.0 * torch.ones(B, T)
    loss, doubled = policy_loss("bapo")(**given)[0], policy_loss("bapo")(**given, correction=factor)[0]
    torch.testing.assert_close(doubled, 2 * loss)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_more_than_a_loss_is_refused(name):
    with pytest.raises(ConfigError, match=rf"algorithm={name} .*{REFUSED[name]}.*run it with bapo-train"):
        policy_loss(name)


def test_rules_about_groups_are_left_to_the_trainer():
    assert policy_loss("dapo").left_out == ("rules.admission", "rules.length_shaping")
    assert policy_loss("bapo").left_out == ()
    rewards = torch.tensor([[1.0, 0.0, 0.0, 1.0]])
    torch.testing.assert_close(policy_loss("rloo").advantages(rewards), torch.tensor([[2, -2, -2, 2]]) / 3)


def test_options_are_those_of_the_command_line():
    own, _ = batch()
    ends = [policy_loss("bapo", f"algorithm.positive_share_target={target}") for target in (0.01, 0.99)]
    low, high = (made(**own)[1]["clip_high"] for made in ends)
    assert low == pytest.approx(1.2) and high == pytest.approx(3.0)
    with pytest.raises(ConfigError, match="did you mean grpo"):
        policy_loss("gpro")
    with pytest.raises(ConfigError, match=r"algorithm\.bounds\.low\.step"):
        policy_loss("bapo", "algorithm.bounds.low.step=0")


def test_a_program_that_uses_hydra_itself_keeps_its_configuration():
    GlobalHydra.instance().hydra = of_caller = object()
    try:
        assert policy_loss("bapo").name == "bapo" and GlobalHydra.instance().hydra is of_caller
    finally:
        GlobalHydra.instance().clear()


def test_shapes_and_names_of_columns_are_checked():
    own, columns = batch()
    made = policy_loss("bapo")
    with pytest.raises(ValueError, match=r"advantages must have the shape \[12\] or \[12, 7\].*got \[3\]"):
        made(**{**own, "advantages": torch.ones(3)})
    with pytest.raises(ValueError, match="entropi is not a column of a policy loss; did you mean entropy"):
        made(**own, entropi=columns["entropy"])
    with pytest.raises(ConfigError, match="needs gradients of entropy"):
        policy_loss("entropy_bonus")(**own, entropy=columns["entropy"])


def test_a_batch_without_tokens_costs_nothing_and_half_precision_is_widened():
    own, _ = batch()
    given = with_graph({**own, "mask": torch.zeros(B, T, dtype=torch.bool)})
    loss, metrics = policy_loss("bapo")(**given)
    loss.backward()
    assert loss == 0 and not given["logp"].grad.any() and metrics["target_met"]
    own["logp"] = own["logp"].bfloat16()
    assert policy_loss("bapo")(**own)[0].isfinite()


def test_what_is_remembered_of_updates_is_in_the_state():
    own, _ = batch()
    made, again = policy_loss("bapo_memory"), policy_loss("bapo_memory")
    made(**own)
    again.load_state_dict(made.state_dict())
    assert again.rule.past.any() and again.rule.past.equal(made.rule.past)
    assert policy_loss("bapo").state_dict() == {}


@pytest.mark.parametrize("seed", range(8))
def test_bounds_are_those_of_the_reference(seed):
    given, _ = batch(seed)
    given = {name: values.float() if values.is_floating_point() else values for name, values in given.items()}
    _, numbers = policy_loss("bapo")(**given)
    assert (float(numbers["clip_low"]), float(numbers["clip_high"])) == reference_bounds([given])


def trl_example():
    spec = importlib.util.spec_from_file_location("trl_example", ROOT / "examples/trl_grpo_trainer.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    return example


@pytest.mark.slow
def test_trl_trains_twenty_updates_within_the_bounds_of_the_reference(monkeypatch, tmp_path):
    example = trl_example()
    updates, used = [], []

    class Recorded(example.PolicyLossTrainer):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            look_ahead = self.policy_loss.look_ahead

            def recorded(parts):
                updates.append([{name: values.detach() for name, values in part.items()} for part in parts])
                shared = look_ahead(parts)
                used.append((float(shared[0].bounds.low), float(shared[0].bounds.high)))
                capture(f"{len(used)}.step", parts, self.policy_loss)
                return shared

            self.policy_loss.look_ahead = recorded

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(example, "PolicyLossTrainer", Recorded)
    monkeypatch.setattr(
        example, "policy_loss", lambda name: policy_loss(name, "algorithm.positive_share_target=0.12")
    )
    made = example.GRPOConfig
    monkeypatch.setattr(example, "GRPOConfig", lambda **options: made(**options | {"max_steps": 20}))
    example.main()
    assert len(updates) == 20 and all(len(parts) == 2 for parts in updates)
    assert used == [reference_bounds(parts, 0.12) for parts in updates]
    assert len(set(used)) > 2
    steps = [read_step(f"{number}.step") for number in range(1, 21)]
    loss = loss_of(steps[0], None, ())
    replayed = [{*replay(loss, step, cuts(step)["recorded"]).bounds} for step in steps]
    assert loss.rule.target == 0.12 and replayed == [{bounds} for bounds in used]


def test_an_option_of_trls_own_loss_is_refused(monkeypatch):
    example = trl_example()
    arguments = example.GRPOConfig(use_cpu=True, bf16=False, entropy_coef=0.1)
    monkeypatch.setattr(example.GRPOTrainer, "__init__", lambda self: setattr(self, "args", arguments))
    with pytest.raises(ValueError, match="entropy_coef would not be read"):
        example.PolicyLossTrainer(loss=policy_loss("bapo"))
