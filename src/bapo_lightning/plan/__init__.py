"""Computes memory, work and time of a run before it starts, from formulas and without torch.

    config.json -> ModelShape
    run configuration -> RunShape    -> memory, work -> Plan -> console
    table -> Gpu, assumptions

docs/plan.md has the formulas and their sources.
"""
