"""From problems to scored groups: the scheduler, the sampler and the collectors."""
