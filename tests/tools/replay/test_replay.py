"""A recorded update, replayed: numbers of its run, any algorithm, shapes of other trainers, hostile files."""

import math
import re
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from tests.commands import start_ranks, train, train_to_end
from tests.test_losses import LIMIT, REFUSED, batch
from tests.zoo import algorithms

from bapo_lightning import capture
from bapo_lightning.losses import policy_loss
from bapo_lightning.system.errors import ConfigError, DataError
from bapo_lightning.system.run_folder.record import read_rows
from bapo_lightning.tools.commands.replay import main
from bapo_lightning.tools.replay import step as step_file
from bapo_lightning.tools.replay.callback import SHOWN, Capture
from bapo_lightning.tools.replay.replay import cuts, difference, loss_of, replay, with_advantages_of
from bapo_lightning.tools.replay.step import KEY, read_step

SMALL = ("callbacks=capture", "callbacks.validation.every=0", "scale.micro_batch_tokens=100")
RUNS = {
    "searched": ("algorithm=bapo", "algorithm.positive_share_target=0.3"),
    "each_micro_batch": ("algorithm=bapo_authors_code", "correction=truncated_is"),
    "whitened": ("algorithm=reinforce_pp",),  # by a stage, which has acted
    "two_ranks": ("algorithm=bapo_authors_code", "strategy=ddp", "trainer.devices=2"),
    "picked": ("algorithm=kl_cov", "algorithm.objective.share=0.2"),  # by responses, positions and ages
}
SLOW = [*RUNS][1:]
# Refused in addition to the losses that have no form for other trainers, and why.
LACKS = {
    **dict.fromkeys(("bapo_memory", "entropy_bonus"), "remembers earlier updates"),
    "rover": "reads mean_logp, which is not given",
    "erc": "reads entry_entropy, which is not given",
}


def parts_of(own, size=4):
    return [{key: values[rows] for key, values in own.items()} for rows in torch.arange(12).split(size)]


@pytest.fixture(scope="module")
def bapo():
    return policy_loss("bapo")


@pytest.fixture
def made(tmp_path, bapo):
    """A step of three micro-batches, and the arguments of its loss."""
    own, columns = batch()
    own |= {"entropy": columns["entropy"], "group": columns["group"]}
    rewards = {"reward": torch.arange(12) % 4 % 3.0}
    file = capture(tmp_path / "step.safetensors", parts_of(own | rewards), bapo, 3)
    return file, own


@pytest.mark.parametrize("name", ["searched", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_replayed_update_has_the_numbers_of_its_run(name, tmp_path):
    train_to_end(tmp_path / "run", 1, *SMALL, *RUNS[name], "callbacks.capture.updates=[1,6]")
    rows = read_rows(tmp_path / "run")
    for update in (1, 6):
        step = read_step(tmp_path / f"run/steps/{update}.safetensors")
        found = replay(loss_of(step, None, ()), step, cuts(step)["recorded"])
        expected = {key: rows[update][metric] for key, metric in SHOWN.items()}
        assert found.numbers == pytest.approx(expected, rel=1e-5, abs=1e-7), update
        assert step.numbers == pytest.approx(expected) and int(step.columns["part"].max()) > 0
    assert step.columns["age"].any()


@pytest.mark.parametrize("name", algorithms.names())
def test_any_algorithm_replays_with_the_gradient_of_autograd_or_is_refused_by_name(name, made):
    file, own = made
    step = read_step(file)
    given = own | {"logp": own["logp"].clone().requires_grad_()}
    try:
        loss = loss_of(step, name, [LIMIT])
        found, again = (replay(loss, step, cuts(step)[way]) for way in ("whole", "recorded"))
    except ConfigError as error:
        print(reason := str(error).partition("1. ")[2])
        told = LACKS.get(name, f"({'|'.join(REFUSED.values())})")
        assert re.match(f"algorithm={name} .*{told}", reason) and name in {**LACKS, **REFUSED}
        return
    assert name not in {**LACKS, **REFUSED}
    value, metrics = loss(**given)
    (gradient,) = torch.autograd.grad(value, given["logp"])
    assert found.numbers["loss"] == float(value.detach())
    assert found.bounds == [(float(metrics["clip_low"]), float(metrics["clip_high"]))]
    assert found.tokens["gradient"].equal(gradient[own["mask"]])
    assert getattr(loss.rule, "scope", "") == "microbatch" or difference(again, found) < 1e-12


def test_the_gradient_of_a_clipped_loss_is_the_closed_form(made):
    step = read_step(made[0])
    loss = loss_of(step, "grpo", ())
    tokens = replay(loss, step, cuts(step)["recorded"]).tokens
    ratio, advantage = tokens["ratio"], tokens["advantage"]
    alive = torch.where(advantage > 0, ratio <= 1.2, ratio >= 0.8)
    torch.testing.assert_close(tokens["gradient"], -ratio * advantage * alive / len(ratio))


@pytest.mark.parametrize(("name", "depends"), [("bapo", True), ("grpo", False), ("real", True)])
def test_it_is_known_whether_an_update_depends_on_its_cut(name, depends, made, capsys):
    assert main([str(made[0]), f"algorithm={name}"]) == 0
    shown = capsys.readouterr().out
    assert ("the update depends on the cut" in shown, "does not depend" in shown) == (depends, not depends)


def test_every_token_is_written(made, tmp_path, capsys):
    file, own = made
    assert main([str(file), "--output", str(tmp_path / "new/out.csv")]) == 0
    head, *lines = (tmp_path / "new/out.csv").read_text().splitlines()
    assert head == "response,advantage,ratio,clipped,gradient" and len(lines) == int(own["mask"].sum())
    assert "update 3, recorded under bapo" in capsys.readouterr().out


def test_a_table_does_not_replace_the_step(made, capsys):
    before = made[0].read_bytes()
    assert main([str(made[0]), "--output", f"{made[0].parent}/../{made[0].parent.name}/{made[0].name}"]) == 2
    assert "step.safetensors would replace the step; write another file" in capsys.readouterr().err
    assert made[0].read_bytes() == before


def test_another_algorithm_has_its_own_advantages_if_groups_are_whole(made, tmp_path):
    file, own = made
    step, loss = read_step(file), policy_loss("rloo")
    found = with_advantages_of(loss, step).columns["advantages"]
    expected = loss.advantages((torch.arange(12) % 4 % 3.0).view(3, 4)).flatten()
    rows = torch.arange(12).repeat_interleave(step.columns["length"])
    torch.testing.assert_close(found, expected[rows].double())
    few = {key: values[:11] for key, values in own.items()} | {"reward": torch.ones(11)}
    for rest in (few, own):  # a group has lost a response; rewards are unknown
        assert with_advantages_of(loss, read_step(capture(tmp_path / "few", [rest]))) is None


def test_options_of_advantages_are_followed_or_refused(made, tmp_path, capsys):
    file, own = made
    rewards = {"reward": torch.arange(12) % 4 % 3.0}
    for name in ("grpo", "dapo"):
        step = capture(tmp_path / "grpo", [own | rewards], policy_loss("grpo"))
        table = ("--output", f"{tmp_path}/{name}.csv")
        assert main([str(step), f"algorithm={name}", "algorithm.advantages.scale=none", *table]) == 0
        assert "with its advantages of the recorded rewards" in capsys.readouterr().out
        found = [float(line.split(",")[1]) for line in (tmp_path / f"{name}.csv").read_text().split()[1:]]
        centred = (rewards["reward"] - rewards["reward"].view(3, 4).mean(1).repeat_interleave(4)).double()
        assert found == pytest.approx(centred.repeat_interleave(read_step(step).columns["length"]).tolist())
        step = capture(tmp_path / "unknown", [own], policy_loss("grpo"))
        assert main([str(step), f"algorithm={name}", "algorithm.advantages.scale=none"]) == 2
        assert "cannot be replayed, since the step has no rewards of whole" in capsys.readouterr().err
    staged = step_file.replace(read_step(file), settings={"stages.whiten._target_": "a.b"})
    assert main([str(step_file.write_step(file, staged)), "algorithm.advantages.scale=none"]) == 2
    assert "since a stage changed the advantages" in capsys.readouterr().err


def test_recorded_options_hold_until_others_are_given(made, tmp_path):
    _, own = made
    known = policy_loss("bapo", "algorithm.positive_share_target=0.11", "algorithm.bounds.high.end=2.0")
    step = read_step(capture(tmp_path / "other", [own], known))
    assert loss_of(step, None, ()).settings == known.settings
    changed = loss_of(step, "bapo", ["algorithm.positive_share_target=0.2"])
    assert (changed.rule.target, float(changed.rule.highs[-1])) == (0.2, pytest.approx(2.0))
    assert loss_of(step, "bapo_rest", ()).rule.target == 0.4
    with pytest.raises(ConfigError, match="write algorithm=NAME"):
        loss_of(read_step(capture(tmp_path / "unnamed", [own])), None, ())


@pytest.mark.parametrize(
    "chosen",
    [
        {"objective._target_": "os.system"},
        {"bounds.kind": "${oc.env:HOME}"},
        {"_x_": 1},
        {"objective={_target_:torch.save}": 1},
    ],
)
def test_a_file_cannot_choose_code(made, chosen, tmp_path):
    step = read_step(made[0])
    with pytest.raises(ConfigError, match="which a file may not choose"):
        loss_of(step_file.replace(step, settings=chosen), None, ())


def write_often(rank, file, columns):
    for _ in range(300):
        step_file.write_step(file, step_file.Step(columns, update=rank))


def test_ranks_that_write_one_file_leave_the_file_of_one(made):
    start_ranks(write_often, (made[0], read_step(made[0]).columns), 2)
    assert read_step(made[0]).update in (0, 1) and [*made[0].parent.iterdir()] == [made[0]]


DAMAGES = {
    "logp": (lambda x: x.log(), "wrong values of logp, the first nan at 0"),
    "behaviour_logp": (lambda x: -x, "wrong values of behaviour_logp, the first"),
    "advantages": (lambda x: x[1:], r"advantages of shape \[.*\], not \[.*\]"),
    "length": (lambda x: x + 1, "its lengths add up to"),
    "part": (lambda x: x - 1, "wrong values of part, the first -1 at 0"),
    "group": (lambda x: x.float(), "has group as torch.float32, not as int64"),
    "entropy": (lambda x: None, ""),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_column_is_refused(name, made):
    damage, said = DAMAGES[name]
    step = read_step(made[0])
    columns = {**step.columns, name: damage(step.columns[name])}
    if columns[name] is None:
        columns = {**step.columns, "entropi": step.columns["entropy"] + 1}
        said = "unknown column entropi; did you mean entropy"
    with safe_open(made[0], "pt") as opened:
        about = opened.metadata()
    save_file(columns, made[0], about)
    with pytest.raises(DataError, match=f"{said}.*; write it again with callbacks=capture or bapo_lightning"):
        read_step(made[0])


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "is not a file"), (b"", "shorter than any header"), (b"no tensors here", "longer than the file")],
)
def test_what_is_no_step_is_refused(content, said, tmp_path, capsys):
    file = tmp_path / "step"
    if content is not None:
        file.write_bytes(content)
    assert main([str(file)]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("about", "said"),
    [
        (None, "is not a step"), ("{", "Expecting property name"), ("[" * 9999, "recursion"),
        ('{"version": 2}', "has version 2 of the format, and this release reads 1"),
        ('{"version": 1, "algorithm": "../x"}', "algorithm"), ('{"version": 1}', "algorithm: field required"),
    ],
)  # fmt: skip
def test_other_metadata_are_refused(about, said, made):
    save_file(read_step(made[0]).columns, made[0], about and {KEY: about})
    with pytest.raises(DataError, match=said):
        read_step(made[0])


def test_a_torn_file_and_one_that_is_too_large_are_refused(made, monkeypatch):
    file, step = made[0], read_step(made[0])
    with monkeypatch.context() as patch:
        patch.setattr(step_file, "MOST_BYTES", 100)
        with pytest.raises(DataError, match=r"is too large: .* bytes, 100 at most$"):
            read_step(file)
        with pytest.raises(ValueError, match=r"^the update is too large: .* bytes, 100 at most$"):
            step_file.write_step(file, step)
    with monkeypatch.context() as patch:
        patch.setattr(step_file, "MOST_PLACES", 83)
        with pytest.raises(DataError, match=r"is too large: 12 responses of up to 7 tokens, .* at most$"):
            read_step(file)
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DataError, match="its header promises"):
        read_step(file)


def test_an_update_without_tokens_is_refused(made, tmp_path):
    own = made[1] | {"mask": torch.zeros(12, 7)}
    with pytest.raises(ValueError, match="the update has no token"):
        capture(tmp_path / "none", [own])
    with pytest.raises(ValueError, match="got none"):
        capture(tmp_path / "none", [])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"group": torch.zeros(4, 7)}, r"group must have a number for each response, \[B\], got \[4, 7\]"),
        ({"advantages": torch.ones(3)}, r"advantages must have the shape \[4\] or \[4, 7\]"),
        ({"logits": torch.ones(4)}, "logits is not a column of a step; did you mean logp"),
        ({"age": torch.ones(4)}, "micro-batch 0 has no age"),
    ],
)
def test_columns_are_checked_where_they_are_captured(made, change, said, tmp_path):
    parts = parts_of(made[1])
    parts[1] |= change
    with pytest.raises(ValueError, match=said):
        capture(tmp_path / "wrong", parts)


@pytest.mark.parametrize(
    ("change", "update", "said"),
    [
        (
            {"logp": torch.full((4, 7), math.nan)},
            0,
            "the update has .* wrong values of logp, the first nan at 0",
        ),
        ({"group": torch.full((4,), -1)}, 0, "the update has 4 wrong values of group, the first -1 at 0"),
        ({}, -1, "update: input should be greater than or equal to 0, got -1"),
        ({}, torch.tensor(3), r"update: input should be a valid integer, got tensor\(3\)"),
    ],
)
def test_no_file_is_written_that_would_be_refused(made, change, update, said, tmp_path):
    with pytest.raises(ValueError, match=said):
        capture(tmp_path / "wrong", [parts_of(made[1])[0] | change], update=update)
    ones = dict.fromkeys(("logp", "behaviour_logp"), -torch.ones(8193, 1)) | {"mask": torch.ones(8193, 1)}
    with pytest.raises(ValueError, match="the update is too large: 8193 responses of up to 1 tokens, 8,192"):
        capture(tmp_path / "wrong", [ones | {"advantages": torch.ones(8193)}])
    assert [*tmp_path.iterdir()] == [made[0]]


@dataclass(eq=False)
class OfOneResponse(Capture):
    """A capture in a process whose steps hold one response."""

    def on_fit_start(self, trainer, pl_module):
        step_file.MOST_RESPONSES = 1


def test_a_run_continues_without_the_file_of_an_update_that_is_refused(tmp_path):
    own = f"callbacks.capture._target_={__name__}.OfOneResponse"
    asked = "callbacks.capture.updates=[0,99999]"
    done = train(*SMALL, own, asked, f"run_folder={tmp_path}/run", "scale.num_rollout_batches=1")
    count = len(read_rows(tmp_path / "run"))
    assert f"updates=[0, 99999]: write numbers from 0 to {count - 1}, the updates of this" in done.stdout
    said = "warning: update 0 was not captured: the update is too large: "
    assert done.returncode == 0 and said in done.stdout and not (tmp_path / "run/steps").exists(), done.stdout


@pytest.mark.parametrize(("updates", "warns"), [([], True), ([0, 3], False), ([4], True)])
def test_updates_that_a_run_does_not_have_are_warned_of(updates, warns, capsys):
    trainer = SimpleNamespace(datamodule=SimpleNamespace(num_updates=4), is_global_zero=True)
    Capture("run", updates).on_train_start(trainer, None)
    said = (
        f"warning: callbacks.capture.updates={updates}: write numbers from 0 to 3, the updates of this run\n"
    )
    assert capsys.readouterr().out == (said if warns else "")
