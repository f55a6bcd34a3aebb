"""Which conversations go on together: those that were answered, or those that were recorded."""

import time

from tests.data.rollouts.turns import ITEM, Counting, made, one_pass

from bapo_lightning.data.rollouts.rounds import Rounds
from bapo_lightning.types import Problem, WorkItem


def test_a_slow_answer_keeps_nobody_else_waiting():
    def delay(turn):
        return 0.5 if turn.problem.id == "7" and turn.number == 0 else 0.0

    environment = Counting(delay=delay)
    source = made(environment, workers=4)
    items = [ITEM, WorkItem(Problem("7", "", ""), 0), WorkItem(Problem("5", "", ""), 0)]
    groups = source.start(items, 2)
    begun = time.perf_counter()
    one_pass(source, groups)
    assert time.perf_counter() - begun < 5 and all(group.is_finished for group in groups)
    slow = environment.seen.index(("7", 0, "0 1"))
    others = [place for place, (problem, _, _) in enumerate(environment.seen) if problem != "7"]
    assert max(others) < slow  # all three turns of the others came before the slow one's first answer
    source.conversations.close()


def test_replies_that_came_apart_are_taken_together_again_whenever_they_come():
    def asked(slow, recorded=None, turns=3):
        def delay(turn):
            return 0.2 if turn.problem.id == slow and turn.number == 0 else 0.0

        source, rounds, batches = made(Counting(lambda _: turns, delay), workers=4), Rounds(recorded), []
        whole = source.engine.generate

        def generate(requests, sampling):
            batches.append([(item.group, item.index) for item in requests])
            return whole(requests, sampling)

        source.engine.generate = generate
        groups = source.start([ITEM, WorkItem(Problem("7", "", ""), 0)], 2)
        source.continued(source.requests(groups, 99), groups, rounds=rounds)
        source.conversations.close()
        return batches, rounds.taken

    batches, taken = asked(slow="7")
    assert taken[0] == [0, 1] and batches[1] == [(0, 0), (0, 1)]  # those of problem 7 go on later
    assert asked("4", taken) == (batches, taken)
    together, nothing = asked("7", recorded=())
    assert nothing == [] and together == [[(0, 0), (0, 1), (1, 0), (1, 1)]] * 3
    shorter, _ = asked("4", taken, turns=1)  # another policy's content: what was recorded does not come
    assert shorter == batches[:1]
