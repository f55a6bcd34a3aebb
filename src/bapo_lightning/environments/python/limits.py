"""Limits of one call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call, and what it is shown."""

    seconds: float  # of wall-clock time, and about as many of CPU time
    memory_megabytes: int  # of address space beyond that of the interpreter
    file_megabytes: int  # of one file, and of the scratch folder
    output_bytes: int  # that are kept of what the program writes
    shows_last_value: bool  # where nothing was printed, the value of the last expression is
    walls: str  # "kernel" or "none"
