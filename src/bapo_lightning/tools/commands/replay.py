"""One recorded update again, under any algorithm: `python -m bapo_lightning replay FILE algorithm=dapo`.

FILE is written by `callbacks=capture` or, in another trainer, by `bapo_lightning.capture`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bapo_lightning.runs.command import command, end_with, parser_of

if TYPE_CHECKING:
    from bapo_lightning.tools.replay.replay import Replayed
    from bapo_lightning.tools.replay.step import Step

LARGEST = 5  # gradients that are shown
ALGORITHM = "algorithm="


@command(2, ValueError)
def main(arguments: Sequence[str] | None = None) -> None:
    """Replays the update and prints its numbers."""
    parser = parser_of("replay", __doc__)
    parser.add_argument("file", metavar="FILE", help="recorded update")
    text = "algorithm=NAME (default: the recorded one with its options), and options of it"
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help=text)
    parser.add_argument("--output", type=Path, metavar="FILE", help="table of every token as CSV")
    parsed = parser.parse_args(arguments)
    from bapo_lightning.system.errors import ConfigError
    from bapo_lightning.system.run_folder.text_file import write_csv
    from bapo_lightning.tools.replay.replay import cuts, loss_of, replay, with_advantages_of
    from bapo_lightning.tools.replay.step import read_step

    step = read_step(parsed.file)
    if parsed.output and parsed.output.exists() and parsed.output.samefile(parsed.file):
        raise ConfigError([f"--output={parsed.output} would replace the step; write another file"])
    chosen = [text.removeprefix(ALGORITHM) for text in parsed.overrides if text.startswith(ALGORITHM)]
    name = chosen[-1] if chosen else step.algorithm
    loss = loss_of(step, name, [text for text in parsed.overrides if not text.startswith(ALGORITHM)])
    changed = [text for text in parsed.overrides if text.lstrip("+~").startswith("algorithm.advantages")]
    recomputed = with_advantages_of(loss, step) if changed or name != step.algorithm else None
    staged = [key for key, value in step.settings.items() if key.startswith("stages.") and value is not None]
    if changed and (recomputed is None or (staged and name == step.algorithm)):
        reason = "a stage changed the advantages" if recomputed else "the step has no rewards of whole groups"
        raise ConfigError([f"{changed[0]} cannot be replayed, since {reason}; leave it out"])
    used, ways = recomputed or step, cuts(step)
    replayed = replay(loss, used, ways["recorded"])
    alone = {way: replay(loss, used, cut, is_alone=True) for way, cut in ways.items()}
    advantages = "recorded advantages" if recomputed is None else "its advantages of the recorded rewards"
    left_out = "".join(f"; without {rule}, which acts before an update" for rule in loss.left_out)
    number = "an update" if step.update is None else f"update {step.update}"
    print(f"{parsed.file}: {number}, recorded under {step.algorithm or 'an unknown algorithm'}")
    print(f"{loss.name}, with {advantages}{left_out}")
    print("\n".join([*_numbers(step, replayed), *_cuts(alone), *_largest(replayed)]))
    if parsed.output:
        parsed.output.parent.mkdir(parents=True, exist_ok=True)
        columns = [each.tolist() for each in replayed.tokens.values()]
        write_csv(parsed.output, [*replayed.tokens], zip(*columns, strict=True))


def _numbers(step: Step, replayed: Replayed) -> Iterator[str]:
    yield f"  {'':<20}{'replayed':>12}{'recorded':>12}"
    for name, value in replayed.numbers.items():
        recorded = f"{step.numbers[name]:>12.6g}" if name in step.numbers else f"{'-':>12}"
        yield f"  {name:<20}{value:>12.6g}{recorded}"
    for name in ("positive", "negative"):
        kept, whole = replayed.contributions[name], replayed.contributions[f"{name}_unclipped"]
        clipped = f"{1 - kept / whole:.1%} of its mass clipped" if whole else "no token"
        yield f"  {name + ' contribution':<20}{kept:>12.4g}  {clipped}"
    for one, other in (("behaviour_logp", "logp"), ("behaviour_logp", "entry_logp"), ("entry_logp", "logp")):
        if {one, other} <= step.columns.keys():
            gap = (step.columns[one] - step.columns[other]).abs().mean()
            yield f"  {f'|{one} - {other}|':<32}{gap:>12.2g} nats, mean of tokens"
    if "age" in step.columns:
        yield f"  {'age':<32}{step.columns['age'].float().mean():>12.4g} updates, mean of tokens"


def _cuts(alone: Mapping[str, Replayed]) -> Iterator[str]:
    from bapo_lightning.tools.replay.replay import ROUNDING, difference

    yield "  if the loss is called for each micro-batch alone:"
    yield f"  {'cut':<18}{'parts':>6}{'loss':>12}{'low':>14}{'high':>14}{'gradient off':>14}"
    gaps = {way: difference(each, alone["whole"]) for way, each in alone.items()}
    for way, each in alone.items():
        low, high = (f"{min(ends):.3g}..{max(ends):.3g}" for ends in zip(*each.bounds, strict=True))
        numbers = f"{len(each.bounds):>6}{each.numbers['loss']:>12.6g}{low:>14}{high:>14}{gaps[way]:>14.2g}"
        yield f"  {way:<18}{numbers}"
    if all(gap <= ROUNDING for gap in gaps.values()):
        yield "  the update does not depend on the cut"
    else:
        yield "  the update depends on the cut: choose bounds and picks for the whole update (`look_ahead`)"


def _largest(replayed: Replayed) -> Iterator[str]:
    yield f"  {'largest gradients':<20}{'response':>12}{'advantage':>12}{'ratio':>12}{'gradient':>12}"
    columns = [values.tolist() for values in replayed.tokens.values()]
    for token in replayed.tokens["gradient"].abs().argsort(descending=True)[:LARGEST].tolist():
        response, advantage, ratio, _, gradient = (values[token] for values in columns)
        yield f"  token {token:<14}{response:>12}{advantage:>12.4g}{ratio:>12.4g}{gradient:>12.4g}"


if __name__ == "__main__":
    end_with(main)
