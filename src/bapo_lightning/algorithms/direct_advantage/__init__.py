"""Direct Advantage Policy Optimization (arXiv 2412.18279): a critic of steps, trained before the policy,
gives each step of a response its advantage, and the policy's log-ratio is regressed on it.

    make critic -> command, make -> training -> a critic's folder
    StepCritic (critic, steps)      stage that gives steps their advantages
    direct_advantage (objective)    regression of a step's log-ratio
"""
