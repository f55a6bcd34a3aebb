"""What a run needs before it is started: memory, work and time from formulas, none of it from torch.

    config.json -> ModelShape
    run configuration -> RunShape    -> memory, work -> Plan -> console
    table -> Gpu, assumptions

Formulas and where they come from: docs/plan.md.
"""
