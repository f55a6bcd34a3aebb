"""Limits of one call."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallLimits:
    """Limits of one call, and its output."""

    seconds: float  # of wall-clock time, and about as many of CPU time
    memory_megabytes: int  # of address space in addition to the interpreter's
    file_megabytes: int  # of one file, and of the scratch folder
    output_bytes: int  # kept of a program's output
    shows_last_value: bool  # if nothing was printed, the value of the last expression is
    walls: str  # "kernel" or "none"
