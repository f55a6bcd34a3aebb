"""Groups for rules of replay, and what every such rule must do."""

from tests.builders import group, rollout


def made(name, rewards, advantages=(), version=0):
    answers = [rollout([1], [2, index], [-1.0, -1.0], version) for index in range(len(rewards))]
    return group(name, answers, rewards, advantages)


def check_state(rule):
    """Checks that a rule goes on from its state."""
    one, other = rule(window=3), rule(window=3)
    for number in range(5):
        one.valued([], [made("a", [0.1 * number**2])])
    other.load_state_dict(one.state_dict())
    past = [made("b", [1.0, 0.0], [1.0, -1.0])]
    for mean in (0.9, 0.2):
        assert one.valued(past, [made("c", [mean])]) == other.valued(past, [made("c", [mean])])
