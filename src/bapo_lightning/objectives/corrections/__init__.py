"""Weights that correct for the gap between the policy that sampled a token and the trainer's own.

Decoupled PPO (arXiv 2110.00641, in AReaL arXiv 2505.24298) separates two things that PPO's one ratio mixes:
the limit of the update, and the origin of the data.

    L = - sum_t weight_t * w_t * min(r_t A_t, clip(r_t) A_t)

    r_t = pi / pi_proximal        w_t = correction(gap_t)        gap_t = pi_proximal / pi_behaviour

pi_proximal is the trainer's policy when the batch entered training, and pi_behaviour the policy that the
engine sampled from. w_t is a constant: no gradient flows through it. The normaliser inside weight_t counts
all tokens, including tokens of weight 0, as in AReaL: masked tokens are left out, and no other token is
scaled up instead.

`tokens` and `responses` define weights, `proximal` other choices of pi_proximal, `step_size` a factor for the
update's learning rate.
"""
