"""One update of ten tokens made by hand, on which every monitor is measured.

    token  policy version  advantage  behaviour  proximal  ratio  policy   weight  gradient is
    a1     2                +2         0.5       0.5       1.6    0.8      0.05    clipped above
    a2     4                +2         0.5       0.5       1.0    0.5      0.05    alive
    a3     4                +2         0.25      0.25      1.2    0.3      0.05    alive
    b1     4                -2         0.2       0.2       0.5    0.1      0.05    clipped below
    c1     3                +2         0.1       0.1       1.0    0.1      0.1     alive
    d1     2                -1         0.2       0.2       0.5    0.1      0.1     clipped below
    d2     2                -1         0.2       0.2       1.75   0.35     0.1     alive
    d3     3                -1         0.2       0.6       1.5    0.9      0.1     alive
    d4     3                -1         0.25      0.25      1.0    0.25     0.1     alive
    d5     3                -1         0.1       0.05      1.0    0.05     0.1     alive

`behaviour`, `proximal` and `policy` are probabilities; ratio = policy / proximal. Samples a and b are group
"p", complete at version 4; c and d are group "q", complete at version 3. a and d have two segments. The
update trains version 5 with two bound searches, [0.7, 1.2] for the tokens of "p" and [0.9, 1.6] for those of
"q".
"""

from array import array
from dataclasses import replace
from types import SimpleNamespace

import torch
from tests.builders import group

from bapo_lightning.callbacks.monitors.monitor import MonitoredUpdate
from bapo_lightning.data.batches.batch import collate
from bapo_lightning.objectives.bounds import BoundSearch
from bapo_lightning.objectives.token_table import TokenTable, table_of
from bapo_lightning.types import FinishReason, Rollout, Segment

VERSION = 5
VERSIONS = {"a": (2, 4, 4), "b": (4,), "c": (3,), "d": (2, 2, 3, 3, 3)}
BEHAVIOUR = {"a": (0.5, 0.5, 0.25), "b": (0.2,), "c": (0.1,), "d": (0.2, 0.2, 0.2, 0.25, 0.1)}
SEQUENCE = [0, 0, 0, 1, 2, 3, 3, 3, 3, 3]
POSITION = [0, 1, 2, 0, 0, 0, 1, 2, 3, 4]
PROXIMAL = torch.tensor([0.5, 0.5, 0.25, 0.2, 0.1, 0.2, 0.2, 0.6, 0.25, 0.05])
RATIO = torch.tensor([1.6, 1.0, 1.2, 0.5, 1.0, 0.5, 1.75, 1.5, 1.0, 1.0])
ADVANTAGE = torch.tensor([2.0, 2, 2, -2, 2, -1, -1, -1, -1, -1])
WEIGHT = torch.tensor([0.05] * 4 + [0.1] * 6)
SLOPE = torch.tensor([0.0, 2, 2, 0, 2, 0, -1, -1, -1, -1])
ENTROPY = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])


def groups(versions=VERSIONS):
    """The two groups; a and c are right, and d's reward is lowered by 0.5 for its length."""
    rollouts = {name: rollout(versions[name], BEHAVIOUR[name]) for name in "abcd"}
    p = group("p", [rollouts["a"], rollouts["b"]], [1.0, 0.0], [2.0, -2.0])
    q = group("q", [rollouts["c"], rollouts["d"]], [1.0, 0.0], [2.0, -1.0])
    long = replace(q.samples[1], reward=-0.5)
    return [replace(p, ready_version=4), replace(q, samples=(q.samples[0], long), ready_version=3)]


def rollout(versions, probabilities):
    """A response to a prompt of one token, one segment for each policy version."""
    logprobs = torch.tensor(probabilities).log().tolist()
    segments = []
    for version in sorted(set(versions)):
        sampled = [value for value, own in zip(logprobs, versions, strict=True) if own == version]
        segments.append(Segment(array("i", range(len(sampled))), array("f", sampled), version))
    return Rollout(array("i", [1]), tuple(segments), FinishReason.STOP)


def update(versions=VERSIONS, oldest_trained=None, **changes):
    """The update above, with samples of other `versions`, or with tokens older than `oldest_trained` left
    out; `changes` are fields of `Update`.
    """
    behaviour = torch.tensor([value for name in "abcd" for value in BEHAVIOUR[name]]).log()
    version = torch.tensor([value for name in "abcd" for value in versions[name]])
    number = torch.arange(len(RATIO))
    tokens = table_of(
        (PROXIMAL * RATIO).log(), behaviour, PROXIMAL.log(), entropy=ENTROPY, age=VERSION - version,
        sequence=torch.tensor(SEQUENCE), group=number, position=torch.tensor(POSITION),
        count=torch.ones_like(RATIO), advantage=ADVANTAGE, weight=WEIGHT,
    )  # fmt: skip
    tokens = replace(tokens, ratio=RATIO, slope=SLOPE)
    trained = version >= (oldest_trained or 0)
    counts = {"rollout/num_samples": 6.0, "rollout/num_tokens": 14.0}
    fields = {
        "index": 4, "version": VERSION, "module": module(), "metrics": {"time/update_seconds": 2.0},
        "tokens": TokenTable.of({name: values[trained] for name, values in tokens.columns.items()}),
        "searches": [search(0.7, 1.2, met=True), search(0.9, 1.6, met=False)],
        "batch": collate(groups(versions), counts, oldest_trained),
    }  # fmt: skip
    return MonitoredUpdate(**(fields | changes))


def module(weight="rollout_prob"):
    rule = SimpleNamespace(weight=weight)
    return SimpleNamespace(last_learning_rate=0.5, correction=None, step_scale=None, bound_rule=rule)


def search(low, high, met, share=0.4):
    return BoundSearch(torch.tensor(low), torch.tensor(high), torch.tensor(share), torch.tensor(met))
