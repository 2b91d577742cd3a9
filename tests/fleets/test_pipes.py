import os
from multiprocessing import Pipe

import pytest

from fedavg.fleets import pipes
from fedavg.fleets.attendance import Seen
from fedavg.fleets.worker import Trained

pytestmark = pytest.mark.skipif(not pipes.STREAMS, reason="messages arrive whole here")


def trained(k: int) -> Trained:
    return Trained(float(k), {"train_loss": k / 8}, 100 + k, 2**40 + k, seen=Seen(float(k), 0.5, bytes([k]) * 64))


def test_messages_that_travel_in_one_frame_arrive_each_by_itself():
    here, there = Pipe()
    outbox, inbox = pipes.Outbox(there), pipes.Inbox(here)
    sent = [trained(k) for k in range(5)]
    for message in sent:
        outbox.put(message)
    outbox.flush()
    assert inbox.take() == sent
    pipes.send(there, "later")
    assert inbox.take() == ["later"]


def test_a_frame_that_arrives_in_parts_is_read_when_it_is_whole():
    """Cut within its header, and within its content."""
    here, there = Pipe()
    pipes.send(there, trained(7))
    frame = os.read(here.fileno(), 1 << 16)
    inbox, found = pipes.Inbox(here), []
    for part in (frame[:5], frame[5:40], frame[40:]):
        assert found == []
        os.write(there.fileno(), part)
        found = inbox.take()
    assert found == [trained(7)]


def test_nothing_is_written_where_there_is_nothing_to_say():
    here, there = Pipe()
    pipes.Outbox(there).flush()
    assert not here.poll()


def test_the_end_of_the_other_process_is_noticed():
    here, there = Pipe()
    there.close()
    assert pipes.Inbox(here).take() is None
