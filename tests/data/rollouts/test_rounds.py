"""Which conversations go on together: those that were answered, or those that were recorded."""

import threading
import time
from concurrent.futures import Future

from tests.data.rollouts.turns import ITEM, Counting, made, one_pass

from bapo_lightning.data.rollouts.conversations import Rounds
from bapo_lightning.types import Problem, Reply, WorkItem


def test_a_slow_answer_keeps_nobody_else_waiting():
    def delay(turn):
        return 0.2 if turn.problem.id == "7" and turn.number == 0 else 0.0

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


def test_those_that_are_there_go_on_without_the_others_and_one_at_least():
    rounds, replies = Rounds(), [Reply(str(number)) for number in range(3)]
    waiting = {number: Future() for number in range(3)}
    waiting[2].set_result(replies[2])
    waiting[0].set_result(replies[0])
    assert rounds.take(waiting, patience=0.0) == {0: replies[0], 2: replies[2]} and list(waiting) == [1]
    threading.Timer(0.05, waiting[1].set_result, [replies[1]]).start()
    assert rounds.take(waiting, patience=0.0) == {1: replies[1]} and not waiting
    assert rounds.taken == [[0, 2], [1]]
    rounds, waiting = Rounds([[1], [0, 2]]), {number: Future() for number in range(3)}  # recorded
    for number in (0, 2):
        waiting[number].set_result(replies[number])
    threading.Timer(0.05, waiting[1].set_result, [replies[1]]).start()
    assert rounds.take(waiting, patience=0.0) == {1: replies[1]}
    assert rounds.take(waiting, patience=0.0) == {0: replies[0], 2: replies[2]}
    assert rounds.taken == [[1], [0, 2]]


def test_conversations_go_on_together_as_they_were_recorded_whenever_replies_come():
    def asked(slow, recorded, turns=3):
        def delay(turn):
            return 0.1 if turn.problem.id == slow and turn.number == 0 else 0.0

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

    everyone, first, second = [(0, 0), (0, 1), (1, 0), (1, 1)], [(0, 0), (0, 1)], [(1, 0), (1, 1)]
    apart = [[0, 1]] * 3 + [[2, 3]] * 3  # those of problem 7 go on later
    for slow in ("4", "7"):
        assert asked(slow, apart) == ([everyone, first, first, second, second], apart)
    assert asked("7", ()) == ([everyone] * 3, [])
    # another policy's content: what was recorded does not come
    assert asked("4", apart, turns=1) == ([everyone], [[0, 1], [2, 3]])
