"""Types of option values, with their ranges, and the dotted names among them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from annotated_types import Ge, Gt, Le, Lt, Predicate


@dataclass(frozen=True)
class Advice:
    """Metadata of an annotation: what is wrong with a value that it refuses, and what to write instead."""

    text: str


MIXED, FULL = "bf16-mixed", "32-true"  # Lightning's names of the precisions that training can use
PRECISION_ADVICE = (
    "is none of its values: gradients underflow in float16, small updates of bfloat16 weights vanish; write "
    f"{MIXED}, {FULL}, or auto"
)
Name = Annotated[
    str,
    Predicate(re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*").fullmatch),
    Advice("must be letters, digits and . _ + - only, as it names folders, and begin with a letter or digit"),
]
LONGEST_NAME = 255  # bytes of a file name, on the file systems of Linux
PathName = Annotated[
    str,
    Predicate(
        lambda path: all(len(part.encode(errors="replace")) <= LONGEST_NAME for part in path.split("/"))
    ),
    Advice(f"is not a text, or has a name of more than {LONGEST_NAME} bytes, the limit of file names"),
]
Count = Annotated[int, Ge(1)]
MOST = 1_000_000
Size = Annotated[int, Ge(1), Le(MOST)]  # of things that are held in memory or made at once
CountOrZero = Annotated[int, Ge(0)]
Seed = Annotated[int, Ge(0), Lt(2**32), Advice("must be a whole number from 0 to 4294967295")]
# Threads that wait, and threads or processes of other machines.
Threads = Annotated[int, Ge(1), Le(4096)]
ThreadsOrZero = Annotated[int, Ge(0), Le(4096)]
# Threads that compute and processes, on this machine; 64 also if a configuration is only inspected.
MOST_WORKERS = max(64, 16 * (os.cpu_count() or 1))
Workers = Annotated[
    int, Ge(1), Le(MOST_WORKERS), Advice(f"must be a whole number from 1 to {MOST_WORKERS} on this machine")
]
Port = Annotated[int, Ge(1), Le(65535)]
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
# Largest factor of losses and rewards; larger ones make gradients infinite, or drown the other terms.
LARGEST_FACTOR = 10_000
Factor = Annotated[float, Ge(0), Le(LARGEST_FACTOR)]
PositiveFactor = Annotated[float, Gt(0), Le(LARGEST_FACTOR)]
SignedFactor = Annotated[float, Ge(-LARGEST_FACTOR), Le(LARGEST_FACTOR)]
Megabytes = Annotated[int, Ge(1), Le(1 << 24)]  # 16 terabytes; the kernel's limits count bytes in 64 bits
LONGEST = 100_000_000  # seconds, three years: waits beyond the range of the system's clocks are never tried
Seconds = Annotated[float, Gt(0), Le(LONGEST)]
Minutes = Annotated[float, Gt(0), Le(LONGEST // 50)]
SecondsOrZero = Annotated[float, Ge(0), Le(LONGEST)]
MinutesOrZero = Annotated[float, Ge(0), Le(LONGEST // 50)]
Share = Annotated[float, Gt(0), Le(1)]
# Keys and values of running responses, after new weights: the old ones stay, or the new weights read the
# tokens again.
StaleContext = Literal["keep", "recompute"]
TrainDtype = Annotated[
    Literal["float32", "bfloat16"],
    Advice("cannot be trained in (gradients underflow in float16); write one of float32, bfloat16"),
]
Dtype = Literal["float32", "bfloat16", "float16"]  # of weights, caches and computation
EngineDtype = Literal["float32", "bfloat16", "float16", "bf16-mixed"]


def is_http_address(url: str) -> bool:
    """Whether it is the address of a server, with a host and, if it names one, a valid port."""
    try:
        address = urlsplit(url)
        return address.scheme in ("http", "https") and bool(address.hostname) and address.port != 0
    except ValueError:  # brackets of IPv6 without an address, a port that is not a number
        return False


def imported(name: str) -> Any:
    """Returns the class, function or module of a dotted name. Raises ImportError, AttributeError, ValueError
    or TypeError if it cannot be imported, also if its module exits, like a script without a main guard.
    """
    from hydra.utils import get_object  # slow, and most modules only need types from here

    try:
        return get_object(name)
    except SystemExit as error:
        if type(error) is not SystemExit:  # a signal stopped this process
            raise
        raise ImportError(f"Error loading '{name}':\n{error!r}") from error
