"""The doctor on made-up curves and logs; docs/results/doctor.md has runs that are sick on purpose."""

import json
import math
import os
import random

import pytest

from bapo_lightning.callbacks.alarm import build_alarms
from bapo_lightning.system.errors import DataError
from bapo_lightning.tools.commands.doctor import main
from bapo_lightning.tools.doctor import curves as names
from bapo_lightning.tools.doctor.causes import CAUSES, Facts, diagnose, facts_of, usual_alarms
from bapo_lightning.tools.doctor.curves import contradictions, curves_of

FACTS = facts_of({})
LORA = Facts(FACTS.detectors, has_adapters=True)
STEPS = range(0, 80, 4)  # updates with a fresh batch


def measured(function, steps=STEPS):
    return [*steps], [function(step) for step in steps]


def engine(difference, tilt, reward=lambda step: 0.4):
    """Curves of an engine that is wrong from update 40 on."""
    noise = random.Random(0)
    wrong = measured(lambda step: difference(step - 36) if step >= 40 else 1e-7)
    return {
        names.MISMATCH: wrong,
        names.BIAS: (wrong[0], [-tilt * value for value in wrong[1]]),
        names.REWARD: measured(lambda step: reward(step) + noise.gauss(0, 0.02), range(80)),
    }


def rising(step):
    return 0.2 + step / 100


@pytest.mark.parametrize(("curves", "facts", "cause", "since"), [
    (engine(lambda age: 0.05 * age, 0.9), FACTS, "old weights in the engine", 40),
    (engine(lambda age: 0.05 * age, 0.9, rising), FACTS, "partly synced engine", 40),
    (engine(lambda age: 0.05 * age, 0.9), LORA, "adapter not delivered", 40),
    (engine(lambda age: 0.06, 0.8), FACTS, "old weights in the engine", 40),
    (engine(lambda age: 0.06, 0.4), FACTS, "another temperature", 40),
    (engine(lambda age: 0.6, 1e-7), FACTS, "shifted log-probs", 40),
    (engine(lambda age: 0.15 if age > 36 else 1e-7, 0.5), FACTS, "engine mismatch", 76),
    ({names.UNREAD: ([0, 4], [0.9, 0.2]), names.CUT: ([0, 4], [0.1, 0.1])}, FACTS, "answers unread", 0),
    ({names.UNREAD: ([0, 4], [0.9, 0.9]), names.CUT: ([0, 4], [0.9, 0.9])}, FACTS, "answers cut", 0),
    ({names.CONTRADICTED: ([0, 4], [1, 3]), names.ACCEPTED: ([0, 4], [0, 0.3])}, FACTS,
     "verifier accepts wrong answers", 4),
    ({names.CONTRADICTED: ([0, 4], [1, 3]), names.ACCEPTED: ([0, 4], [0, 0.7])}, FACTS,
     "verifier refuses right answers", 4),
    ({names.EFFECTIVE: measured(lambda step: 0.9 if step < 20 else 0.3, range(40)),
      names.AGE: measured(lambda step: 20, range(40))}, FACTS, "data too old", 20),
    ({names.MOVED: measured(lambda step: 2.0, range(40)),
      names.REWARD: measured(lambda step: 0.5 if step < 20 else 0.1, range(40))}, FACTS, "rate too high", 0),
    ({names.MOVED: measured(lambda step: 3.0 * (step % 3 < 1), range(40)),
      names.REWARD: measured(lambda step: 0.5 if step < 20 else 0.1, range(40))}, FACTS, "rate too high", 7),
    ({names.UNIFORM: measured(lambda step: 0.2 if step < 40 else 0.9),
      names.REWARD: measured(lambda step: 0.5, range(80))}, FACTS, "equal answers", 40),
    ({names.REWARD: measured(lambda step: 0.5, range(80)),
      names.ENTROPY: measured(lambda step: max(0.01, 1 - step / 10), range(80))}, FACTS,
     "entropy collapse", 17),
    ({names.SKIPPED: measured(lambda step: max(0, step - 8), range(40))}, FACTS, "gradients not finite", 9),
    ({names.UNIFORM: measured(lambda step: 1.0), names.REWARD: measured(lambda step: 0.0)}, FACTS,
     "no reward", 0),
    ({names.REWARD: measured(lambda step: 0.5 if step < 20 else 0.1, range(40)),
      names.ENTROPY: measured(lambda step: 0.3 if step < 24 else 1.2, range(40))}, FACTS,
     "entropy explosion", 24),
])  # fmt: skip
def test_each_cause_is_found_alone_and_dated(curves, facts, cause, since):
    first, *others = diagnose(curves, facts)
    assert (first.cause, first.since, others) == (cause, since, [])
    assert first.evidence and first.remedy


@pytest.mark.parametrize("curves", [
    {},
    {name: ([], []) for name in names.WATCHED},
    {name: ([0], [1e-9]) for name in names.WATCHED},
    engine(lambda age: 0.03, 0.02),  # bfloat16
    {names.UNIFORM: measured(lambda step: step / 80), names.REWARD: measured(lambda step: 0.95, range(80)),
     names.ENTROPY: measured(lambda step: 0.01, range(80))},  # solved
    {names.UNIFORM: measured(lambda step: 0.9), names.REWARD: measured(lambda step: 0.5, range(80))},
    {names.MOVED: measured(lambda step: 2.0 if step % 3 else 0.1, range(40))},  # lone spikes
    {names.MOVED: measured(lambda step: 0.9, range(40)),
     names.REWARD: measured(lambda step: step / 50 - 0.9, range(40))},  # rewards of -1 and 1
    {names.UNIFORM: measured(lambda step: 0.3 + step / 160),
     names.REWARD: measured(lambda step: 0.2 + step / 145, range(80))},  # more and more problems are solved
    {names.UNIFORM: measured(lambda step: 1.0 - (step == 40)), names.REWARD: measured(lambda step: 0.0)},
    {names.REWARD: measured(lambda step: step / 50, range(40)),
     names.ENTROPY: measured(lambda step: 0.3 if step < 24 else 1.2, range(40))},  # it explores, and learns
])  # fmt: skip
def test_silence_on_what_is_healthy_or_not_there(curves):
    assert diagnose(curves, FACTS) == []


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e300, 1e-300])
@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_no_curve_breaks_a_cause(value, length):
    curves = {name: measured(lambda step: value, range(length)) for name in names.WATCHED}
    for cause in CAUSES:
        assert all(finding.since < length for finding in cause(curves, LORA))


def test_alarms_of_a_run_are_the_detectors():
    own = {"mismatch": {"metric": names.MISMATCH, "below": None, "above": 0.5, "patience": 2}}
    detector = facts_of({"callbacks": {"alarms": own}}).detectors["mismatch"]
    assert (detector.above, detector.patience) == (0.5, 2)
    other = {"entropy": {"metric": names.REWARD, "below": 0.9, "patience": 1}}
    assert facts_of({"callbacks": {"alarms": other}}) == FACTS
    alarms = {alarm.name: alarm.metric for alarm in build_alarms(usual_alarms())}
    wanted = {"mismatch": names.MISMATCH, "effective": names.EFFECTIVE, "divergence": names.MOVED}
    assert wanted.items() <= alarms.items() and alarms["entropy"] == names.ENTROPY


@pytest.mark.parametrize("alarms", [3, [1], {"mismatch": 3}, {"mismatch": {"above": "low"}},
                                    {"entropy": {"below": 0.1, "patience": -1}}])  # fmt: skip
def test_a_damaged_configuration_is_one_error(alarms):
    with pytest.raises(DataError, match=r"^config\.yaml is damaged \(callbacks\.alarms"):
        facts_of({"callbacks": {"alarms": alarms}})


def test_a_damaged_group_size_is_one_error(make_run, capsys):
    folder = make_run("damaged")
    (folder / "config.yaml").write_text("scale: {group_size: x}\n")
    assert main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert "config.yaml' is damaged (scale.group_size" in said and said.count("\n") == 1


def test_verdicts_contradict_each_other_on_equal_texts_alone():
    rows = [
        {"step": step, "problem": problem, "response": text, "finish": "stop", "reward": 9.0, "score": score}
        for step, problem, text, score in [(0, "p", "x", 1.0), (0, "q", "x", 0.0), (4, "p", "x", 0.0)]
    ]
    hinted = [{**rows[1], "hint": 0.5, "score": 1.0}, {**rows[1], "turns": [{}], "score": 1.0}]
    found = contradictions([*rows, *hinted])
    assert found == {names.CONTRADICTED: ([0, 4], [0.0, 1.0]), names.ACCEPTED: ([0, 4], [0.0, 0.5])}
    assert contradictions([]) == {}
    others = [{**rows[2], "score": 0.7}, {**rows[2], "status": "timeout"}, {**rows[2], "status": "failed"}]
    assert contradictions([rows[0], *others]) == {
        names.CONTRADICTED: ([0, 4], [0.0, 0.0]), names.ACCEPTED: ([0, 4], [0.0, 0.0])
    }  # fmt: skip


def test_a_run_folder_is_read_with_shares_of_each_batch(make_run, capsys):
    rows = [
        {"step": step, names.REWARD: 0.3, "rollout/num_samples": 64 * (step % 4 == 0), "rollout/cut": 32.0,
         "rollout/uniform_groups": 2, "rollout/unparsable": 33, names.MISMATCH: None}
        for step in range(16)
    ]  # fmt: skip
    folder = make_run("sick", rows=rows)
    curves = curves_of(folder)
    assert curves[names.CUT] == ([0, 4, 8, 12], [0.5] * 4) and names.MISMATCH not in curves
    assert main([str(folder)]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "answers cut, since update 0 (certain)" and "50% of the answers" in said[1]
    healthy = make_run("healthy")
    os.utime(folder / "metrics.jsonl", (1, 1))
    os.utime(folder / "config.yaml", (1, 1))
    (folder / "view.html").touch()
    assert main([f"{folder.parent}/*"]) == 0
    assert capsys.readouterr().out.startswith(f"nothing found in {healthy}, to update 39 ")


def test_updates_without_finite_gradients_and_alarms_are_read(make_run, capsys):
    nan = float("nan")
    rows = [
        {"step": step, "train/loss": nan, "train/grad_norm": nan, names.REWARD: 0.3, "alarms/clipping": 1,
         names.SKIPPED: max(0, step - 3), "alarms/gradient": step, "alarms/trained_length": max(0, step - 5)}
        for step in range(9)
    ]  # fmt: skip
    assert main([str(make_run("nan", rows=rows))]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "gradients not finite, since update 4 (certain)" and "5 updates" in said[1]
    assert said[3:] == ["alarms that no finding explains (possible): gradient since update 1"]
    healthy = make_run("alarmed", rows=[{**row, names.SKIPPED: 0} for row in rows])
    assert main([str(healthy)]) == 0
    nothing, alarms = capsys.readouterr().out.splitlines()
    assert nothing.startswith("nothing found in ") and nothing.endswith(
        f"to update 8 (2 of {len(names.WATCHED)} curves read)"
    )
    assert alarms.endswith(": gradient since update 1, trained_length since update 6")
    assert main([str(healthy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["alarms"] == {"gradient": 1, "trained_length": 6}


def test_a_run_that_failed_before_its_first_update_is_an_error_with_its_own(make_run, capsys):
    folder = make_run("failed", rows=[], status="failed", error="EngineError: no GPU")
    assert main([str(folder)]) == 2
    said = capsys.readouterr().err
    assert said.endswith("has no curve that the doctor reads (failed; error: EngineError: no GPU)\n")


def test_logs_of_trl_and_verl_are_read_by_their_names(tmp_path, capsys):
    history = [
        {"step": step, "reward": 0.2, "entropy": 0.5, "frac_reward_zero_std": 0.1,
         "completions/clipped_ratio": 0.6, "sampling/sampling_logp_difference/mean": float("nan")}
        for step in range(1, 9)
    ]  # fmt: skip
    trl = tmp_path / "trainer_state.json"
    trl.write_text(json.dumps({"log_history": history, "global_step": 8, "max_steps": 8}))
    verl = tmp_path / "verl.jsonl"
    data = {"critic/rewards/mean": 0.5, "actor/ppo_kl": 3.0, "response_length/clip_ratio": 0.0}
    verl.write_text("".join(json.dumps({"step": step, "data": data}) + "\n" for step in range(1, 9)))
    assert main([str(trl), "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)["findings"]
    assert (found["cause"], found["since"]) == ("answers cut", 1)
    assert main([str(verl)]) == 1
    assert capsys.readouterr().out.startswith("rate too high, since update 1 (possible)")


def test_a_log_with_gradients_that_are_nan_says_so(tmp_path, capsys):
    log = tmp_path / "verl.jsonl"
    data = [{"critic/rewards/mean": 0.5, "actor/grad_norm": math.nan if step in (3, 5) else 0.1,
             "rollout_corr/log_ppl_abs_diff": 0.2} for step in range(8)]  # fmt: skip
    log.write_text("".join(json.dumps({"step": step, "data": row}) + "\n" for step, row in enumerate(data)))
    assert main([str(log), "--staleness"]) == 1
    said = capsys.readouterr().out
    assert "gradients not finite, since update 3" in said and "another temperature, since update 0" in said
    assert "staleness: distribution; " in said and "age unknown" in said


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", '{"step": 1}\n', '{"step": "nan", "reward": NaN}\n',
                                  '{"step": 1, "reward_std": 0.5, "grad_norm": 1}\n'])  # fmt: skip
def test_what_is_no_log_is_one_error(text, tmp_path, capsys):
    (tmp_path / "log.jsonl").write_text(text)
    assert main([str(tmp_path / "log.jsonl")]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
