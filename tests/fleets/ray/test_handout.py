"""Who does which job, without Ray."""

from hypothesis import given
from hypothesis import strategies as st

from fedavg.fleets.ray.handout import Handout


def crew(handout, slots):
    for slot in range(slots):
        handout.joins(slot)
    return handout


def test_the_largest_go_first_each_to_whoever_has_the_least_to_do():
    handout = crew(Handout([5, 9, 4, 3, 7, 2]), 2)
    # 9 | 7, then 5 to the 7, 4 to the 9, 3 to one of 12 and 13, 2 to one of 13 and 15
    assert handout.deal() == {0: [1, 2, 5], 1: [4, 0, 3]}


def test_no_more_than_so_many_are_given_at_once():
    handout = crew(Handout([1, 1, 1, 1, 1], most=2), 2)
    assert handout.deal() == {0: [0, 2], 1: [1, 3]}
    assert handout.deal() == {}
    handout.reported(1, [1, 3])
    assert handout.deal() == {1: [4]}


def test_whoever_is_done_takes_over_what_another_has_not_begun():
    handout = crew(Handout([4, 4, 1, 1]), 2)
    assert handout.deal() == {0: [0, 2], 1: [1, 3]}
    assert handout.victim() is None, "both are busy"
    handout.reported(1, [1, 3])
    assert handout.victim() == 0
    handout.asked(0)
    assert handout.victim() is None, "it is asked already"
    handout.given_back(0, [2])
    assert handout.deal() == {1: [2]}
    handout.reported(0, [0])
    handout.reported(1, [2])
    assert handout.complete
    assert handout.by_slot == {0: [0], 1: [1, 3, 2]}


def test_a_worker_with_nothing_to_give_is_not_asked_again():
    handout = crew(Handout([1, 1, 1]), 2)
    handout.deal()
    handout.reported(1, [1])
    handout.asked(0)
    handout.given_back(0, [])
    assert handout.victim() is None


def test_a_worker_that_had_not_begun_is_asked_again():
    handout = crew(Handout([1, 1, 1]), 2)
    handout.deal()
    handout.reported(1, [1])
    handout.asked(0)
    handout.given_back(0, None)
    assert handout.victim() == 0


def test_an_answer_that_was_meant_for_the_list_before_says_nothing_of_this_one():
    handout = Handout([1.0] * 6)
    for slot in (0, 1):
        handout.joins(slot)
    dealt = handout.deal()
    handout.given_back(0, [])  # nobody has asked it in this list
    handout.reported(1, dealt[1])
    assert handout.victim() == 0


def test_what_a_lost_worker_did_is_done_again():
    handout = crew(Handout([3, 2, 1], most=1), 2)
    assert handout.deal() == {0: [0], 1: [1]}
    handout.reported(0, [0])
    assert handout.deal() == {0: [2]}
    handout.lost(0)
    assert not handout.complete
    handout.reported(1, [1])
    assert handout.deal() == {1: [0]}
    handout.reported(1, [0])
    assert handout.deal() == {1: [2]}
    handout.reported(1, [2])
    assert handout.complete
    assert handout.by_slot == {1: [1, 0, 2]}


def test_an_answer_that_comes_after_the_report_loses_nothing():
    """The worker gave back job 2 and then finished; the report overtook the answer."""
    handout = crew(Handout([4, 4, 1, 1]), 2)
    handout.deal()
    handout.reported(1, [1, 3])
    handout.asked(0)
    handout.reported(0, [0])
    assert not handout.complete
    assert handout.deal() == {}
    handout.given_back(0, [2])
    assert sorted(handout.deal().values()) == [[2]]


@given(
    sizes=st.lists(st.integers(0, 50), max_size=25),
    slots=st.integers(1, 4),
    most=st.none() | st.integers(1, 5),
    choices=st.lists(st.integers(0, 10**6), max_size=400),
)
def test_whatever_happens_each_job_counts_once(sizes, slots, most, choices):
    """Workers that report, give back, die and join in any order: at the end every job is in exactly one sum."""
    handout = crew(Handout(sizes, most), slots)
    queues: dict[int, list[int]] = {}
    reported: dict[int, list[int]] = {}
    asked: set[int] = set()
    newest = slots
    chooser = iter(choices)
    for _ in range(5000):
        for slot, jobs in handout.deal().items():
            assert slot not in queues
            queues[slot], reported[slot] = list(jobs), []
        if handout.complete:
            break
        if (victim := handout.victim()) is not None:
            handout.asked(victim)
            asked.add(victim)
        choice = next(chooser, None)
        act = (choice if choice is not None else 0) % (10 if choice is not None else 8)
        working = sorted(queues)
        if act == 8:
            handout.joins(newest)
            newest += 1
        elif act == 9 and working:
            dead = working[choice % len(working)]
            handout.lost(dead)
            del queues[dead]
            asked.discard(dead)
            if not any(slot in handout for slot in range(newest)):
                handout.joins(newest)
                newest += 1
        elif asked and act % 2:
            slot = min(asked)
            asked.discard(slot)
            left = queues.get(slot, [])
            back = left[0::2]
            if slot in queues:
                queues[slot] = left[1::2]
            handout.given_back(slot, back)
        elif working:
            slot = working[(choice or 0) % len(working)]
            if queues[slot]:
                reported[slot].append(queues[slot].pop(0))
            else:
                del queues[slot]
                handout.reported(slot, reported[slot])
        elif asked:
            handout.given_back(asked.pop(), [])
    assert handout.complete
    done = sorted(job for jobs in handout.by_slot.values() for job in jobs)
    assert done == list(range(len(sizes)))
