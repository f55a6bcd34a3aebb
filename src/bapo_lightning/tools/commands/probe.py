"""Whether a server's log-probs belong to a model folder: `python -m bapo_lightning probe URL FOLDER`.

URL is a vLLM or SGLang server, or another one with OpenAI's completions API; FOLDER is any model that
transformers reads, or a LoRA adapter. The exit code is 0 if they belong together, 1 if they do not, and 2 if
that is unknown.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, get_args

from bapo_lightning.report.progress.display import displayed_phases
from bapo_lightning.runs.command import command, end_with, number_type, parser_of
from bapo_lightning.system.errors import ConfigError, first_line
from bapo_lightning.system.phases import phase
from bapo_lightning.system.values import (
    CountOrZero,
    Dtype,
    PositiveFactor,
    Seconds,
    SecondsOrZero,
    Seed,
    Size,
)

if TYPE_CHECKING:
    from bapo_lightning.tools.probe.session import Found, ProbeSession
    from bapo_lightning.tools.probe.weights import Weights

DIFFERS = 1  # exit code


@command(2)
def main(arguments: Sequence[str] | None = None) -> int:
    """Probes once, or after each of several syncs."""
    parsed = _parser().parse_args(arguments)
    with displayed_phases():
        return _watch(parsed) if parsed.watch else _once(parsed)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("probe", __doc__)
    parser.add_argument("url", metavar="URL", help="address of the server, with or without /v1")
    text = "model folder, adapter folder or hub name; with --watch also a glob, or a folder of model folders"
    parser.add_argument("folder", metavar="FOLDER", help=text)
    text = "another folder that the server may hold, such as the export before; may be repeated"
    parser.add_argument("--also", action="append", default=[], metavar="FOLDER", help=text)
    parser.add_argument("--base", metavar="MODEL", help="base model of an adapter (default: named by it)")
    text = "precision that the server computes in (default: whichever fits)"
    parser.add_argument("--dtype", choices=get_args(Dtype), help=text)
    numbers = {
        "prompts": (Size, 16, "prompts of random tokens"),
        "tokens": (Size, 32, "tokens of each"),
        "sampled": (Size, 16, "tokens that the server samples after each prompt"),
        "temperature": (PositiveFactor, 1.0, "of sampling"),
        "seed": (Seed, 0, "of the random tokens"),
        "watch": (CountOrZero, 0, "probes to make, each after a new export; 0: one, of FOLDER as it is"),
        "every": (Seconds, 5.0, "seconds between two looks for a new export, or for its weights"),
        "grace": (SecondsOrZero, 60.0, "seconds that the server may take to have an export's weights"),
        "timeout": (Seconds, 300.0, "seconds that the server may take for an answer"),
    }
    for name, (kind, default, help_) in numbers.items():
        text = f"{help_} (default: {default:g})"
        metavar = "SECONDS" if kind in (Seconds, SecondsOrZero) else "N"
        parser.add_argument(f"--{name}", type=number_type(kind), default=default, metavar=metavar, help=text)
    parser.add_argument(
        "--model", metavar="NAME", help="name of the model at the server (default: its first)"
    )
    parser.add_argument("--api-key-from", metavar="VARIABLE", help="environment variable with the API key")
    parser.add_argument("--device", default="cpu", help="of torch, on which FOLDER computes (default: cpu)")
    parser.add_argument("--json", action="store_true", help="print lines of JSON")
    return parser


def _session(parsed: argparse.Namespace) -> ProbeSession:
    with phase("loading libraries"):
        import torch

        from bapo_lightning.tools.probe.client import ProbeServer
        from bapo_lightning.tools.probe.session import ProbeSession

    try:
        torch.zeros(1, device=parsed.device).tolist()
    except (RuntimeError, AssertionError) as error:
        raise ConfigError([f"--device={parsed.device} cannot be used ({first_line(error)})"]) from None
    server = ProbeServer(parsed.url, parsed.model, parsed.api_key_from, parsed.timeout)
    server.find_model()  # before anything is loaded or waited for
    numbers = parsed.prompts, parsed.tokens, parsed.sampled, parsed.temperature, parsed.seed
    return ProbeSession(server, *numbers, parsed.dtype)


def _once(parsed: argparse.Namespace) -> int:
    from bapo_lightning.tools.probe.console import as_json, lines

    session = _session(parsed)
    weights, *others = (_weights(path, parsed) for path in (parsed.folder, *parsed.also))
    result = _probed(session, weights, others)
    url = session.server.url
    if parsed.json:
        print(as_json(result, 1, url, weights.name))
    else:
        print("\n".join(lines(result, url, weights.name)))
    return _code(result)


def _watch(parsed: argparse.Namespace) -> int:
    from bapo_lightning.tools.probe.console import as_json, line
    from bapo_lightning.tools.probe.exports import next_export

    session, export, code = _session(parsed), None, 0
    others = [_weights(path, parsed) for path in parsed.also]
    before: list[Weights] = []
    for number in range(1, parsed.watch + 1):
        export = next_export(parsed.folder, export, parsed.every)
        session.next_export()
        weights = _weights(export.path, parsed)
        give_up = time.monotonic() + parsed.grace
        result = _probed(session, weights, [*before, *others])
        while _code(result) and time.monotonic() < give_up:
            time.sleep(parsed.every)
            result = _probed(session, weights, [*before, *others])
        shown = as_json(result, number, session.server.url, weights.name) if parsed.json else ""
        print(shown or line(result, number, weights.name), flush=True)
        code |= _code(result)
        before = [weights]
        weights.name = f"the export before ({weights.path})"
    return code


def _probed(session: ProbeSession, weights: Weights, others: Sequence[Weights]) -> Found:
    """A probe; of an adapter also with its base model, which a server holds that never got the adapter.

    A server may hold an adapter in its weights, whose sums 16 bits round, or next to them.
    """
    if not weights.has_adapter:
        return session.probe(weights, others)
    others = [*others, weights.without_adapter]
    first = session.probe(weights, others)
    second = session.probe(weights.apart, others) if _code(first) else first
    return first if _code(second) else second


def _weights(path: str, parsed: argparse.Namespace) -> Weights:
    from bapo_lightning.modules.policy.folder import model_path
    from bapo_lightning.tools.probe.weights import Weights

    return Weights(model_path(path), parsed.device, path, parsed.base)


def _code(result: Found) -> int:
    return 0 if result.diagnosis.verdict == "matches" else DIFFERS


if __name__ == "__main__":
    end_with(main)
