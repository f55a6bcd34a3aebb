"""Runs in virtual time: the package's own scheduler, admission, queue and collectors, with an engine and a
trainer whose calls only take time.

    plan, or a measured run -> ServiceTimes
    Setting, ServiceTimes   -> VirtualRun -> VirtualOutcome     one cell: split of the GPUs, max_age, ...
    many of them            -> Study -> page, pictures

docs/simulate.md lists the assumptions.
"""
