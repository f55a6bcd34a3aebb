"""Contents of the files of a run folder. Readers validate by these shapes, so that later code need not check:
a field that is present has the type given here. Each command checks the fields that it needs (`value_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import cache
from typing import Annotated, Any, NotRequired

from annotated_types import Ge, Le
from pydantic import AfterValidator, TypeAdapter, ValidationError
from typing_extensions import TypedDict  # pydantic reads typing's only from Python 3.12

from bapo_lightning.types import ScoreStatus

LARGEST = 1e100  # a number whose squares and sums are finite as well
Number = Annotated[float, Ge(-LARGEST), Le(LARGEST)]
Count = Annotated[int, Ge(0), Le(1 << 53)]  # a float holds it
Plain = dict[str, Any]


class _ProblemSet(TypedDict, total=False):
    kept: Count
    digest: str


class _Problems(TypedDict, total=False):
    train: _ProblemSet
    validation: dict[str, _ProblemSet]


class Manifest(TypedDict, total=False):
    """manifest.json."""

    id: str
    experiment: str | None
    algorithm: str | None
    regime: str | None
    seed: Count | None
    staleness: Annotated[int, Ge(1), Le(1 << 53)] | None  # updates on each rollout batch
    problems: _Problems | None
    command: str
    started_at: str | None
    git_commit: str | None
    versions: dict[str, str]
    python: str
    platform: str
    status: str | None
    error: str
    stopped_by: str
    wall_seconds: Annotated[Number, Ge(0)]
    resumes: list[Plain]
    date: Annotated[str, AfterValidator(datetime.fromisoformat)]  # that chat templates write
    first_prompt: str
    models: dict[str, dict[str, str]]  # digests of parts, by the key of the model's path


class _Scale(TypedDict, total=False):
    num_rollout_batches: Count
    group_size: Count


class _Regime(TypedDict, total=False):
    async_generation: bool
    partial_tokens: Count | None
    max_age: Count | None
    epochs: Count
    minibatches: Count


class _BoundSearch(TypedDict, total=False):
    start: Number | None


class _Bounds(TypedDict, total=False):
    low: _BoundSearch | Number | None
    high: _BoundSearch | Number | None


class _Algorithm(TypedDict, total=False):
    name: str
    bounds: _Bounds | None


class _Model(TypedDict, total=False):
    path: str
    made_by: str | None


class _Data(TypedDict, total=False):
    prompt: Plain
    validation: Plain
    validation_samples: dict[str, Count]


class _Rollout(TypedDict, total=False):
    engine: Plain


class _EvaluatedSet(TypedDict):
    num_problems: Count
    problems: str  # their digest


class _Evaluated(TypedDict, total=False):
    sets: dict[str, _EvaluatedSet]


class Config(TypedDict, total=False):
    """config.yaml: of a run, or of an evaluation."""

    name: str
    run_folder: str | None
    k: Count | None
    scale: _Scale
    regime: _Regime
    algorithm: _Algorithm
    model: _Model
    data: _Data
    rollout: _Rollout
    evaluated: _Evaluated


class MetricsRow(TypedDict):
    """A line of metrics.jsonl; a metric is absent, null, or a number, which need not be finite."""

    step: Count


class LedgerRow(TypedDict):
    """A line of ledger.jsonl."""

    epoch: Count
    problem: str
    fate: str
    reason: NotRequired[str]
    version: NotRequired[Count]


class _Tokens(TypedDict):
    text: list[str]
    first: Count
    ratio: list[Number]
    age: list[Count]
    clipped: list[Count]
    feedback_at: NotRequired[list[Count]]


class _Turn(TypedDict):
    by: str
    text: str
    calls: NotRequired[Count]
    errors: NotRequired[Count]
    void: NotRequired[bool]


class RolloutRow(TypedDict):
    """A line of rollouts.jsonl."""

    step: Count
    problem: str
    prompt: str
    gold: str
    response: str
    finish: str
    status: str
    score: NotRequired[Number]
    reward: Number
    advantage: Number
    num_tokens: Count
    versions: list[Count]
    origin: NotRequired[str]
    hint: NotRequired[Number | None]
    turns: NotRequired[list[_Turn]]
    branch: NotRequired[Count]
    parent: NotRequired[Count | None]
    tokens: NotRequired[_Tokens]


class SampleRow(TypedDict):
    """A line of an evaluation's samples.jsonl."""

    set: str
    problem: str
    sample: Count
    status: Annotated[str, AfterValidator(ScoreStatus)]
    answer: str
    num_tokens: Count
    finish: str


class ReplyFields(TypedDict, total=False):
    """Fields of a `Reply`."""

    text: str
    is_done: bool
    score: Number | None
    state: Any
    calls: Count
    errors: Count
    is_void: bool
    is_lost: bool
    after: int | None


class ReplyRow(TypedDict):
    """A line of replies.jsonl."""

    key: str
    reply: ReplyFields


class _PlannedRun(TypedDict, total=False):
    exit_code: int | None


class Sweep(TypedDict):
    """sweep.json."""

    runs: dict[str, _PlannedRun]


def shaped(shape: Any, value: Any) -> Any:
    """`value`, if it has the shape. Raises ValueError that says briefly what is wrong with it."""
    # Extra fields in fates and texts reach no page; a reply has no extra fields.
    extra = {LedgerRow: "ignore", RolloutRow: "ignore", ReplyRow: "forbid"}.get(shape, "allow")
    try:
        return _adapter(shape).validate_python(value, strict=True, extra=extra)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where, given = ".".join(map(str, first["loc"])), repr(first["input"])
        given = given if len(given) <= 60 else f"{given[:60]}..."
        fault = first["msg"][0].lower() + first["msg"][1:]
        fault += "" if first["type"] == "missing" else f", got {given}"
        raise ValueError(f"{where or 'it'}: {fault}") from None


_adapter: Callable[[Any], Any] = cache(TypeAdapter)
