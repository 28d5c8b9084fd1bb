"""Frames between two ends over a channel that loses, doubles, delays, damages and breaks."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horn.transport._stream import ACK_FRAMES, ASK_FRAMES, FrameStream
from horn.wire.frames import BadFrame

FINE, LOST, DOUBLED, LATE, DAMAGED, BROKEN = "fine", "lost", "doubled", "late", "damaged", "broken"


class End:
    """One end: what it has to say, what it has taken, and what is on the way to it."""

    def __init__(self, n_frames):
        self.stream = FrameStream("frames of the other")
        self.unsaid = deque(range(1, n_frames + 1))
        self.taken = []
        self.coming = deque()
        self.must_tell = False

    def take(self, item):
        stream = self.stream
        match item:
            case ("frame", seq, value, ack):
                stream.known(max(ack, stream.n_known))
                if stream.admit(seq):
                    self.taken.append(value)
                self.must_tell |= stream.asks_again
            case ("word", seq, sent, again, ask):
                self.must_tell |= stream.heed(seq, sent, again) or ask


class Pair:
    """Two ends, and what happens to the n-th thing on the way, from a list; then all is fine."""

    def __init__(self, n_frames, fates):
        self.ends = (End(n_frames), End(n_frames))
        self.fates = deque(fates)
        self.late = []

    def carry(self, to, item):
        fate = self.fates.popleft() if self.fates else FINE
        overtaken, self.late = self.late, []
        match fate:
            case "fine":
                self.ends[to].coming.append(item)
            case "doubled":
                self.ends[to].coming += [item, item]
            case "late":
                self.late = [(to, item)]
            case "broken":  # of what is on the way, nobody knows how much arrives
                for end in self.ends:
                    while len(end.coming) > 1:
                        end.coming.pop()
                    end.stream.go_back()
                    end.must_tell = True
        for whose, before in overtaken:
            self.ends[whose].coming.append(before)

    def send(self, at, n_frames, ask):
        end, other = self.ends[at], 1 - at
        stream = end.stream
        if end.must_tell or ask:
            end.must_tell = False
            self.carry(other, ("word", stream.n_in, stream.n_put, stream.asks_again, ask))
            stream.asks_again = False
        for _ in range(n_frames):
            frame = stream.next()
            if frame is None and end.unsaid:
                frame = stream.add((end.unsaid.popleft(), stream.n_in))
            if frame is None:
                return
            stream.put(frame)
            self.carry(other, ("frame", frame.seq, *frame.parts))

    def receive(self, at):
        end = self.ends[at]
        while end.coming:
            end.take(end.coming.popleft())


fates = st.lists(st.sampled_from([FINE, FINE, LOST, DOUBLED, LATE, DAMAGED, BROKEN]), max_size=60)


@settings(max_examples=200, deadline=None)
@given(fates, st.integers(1, 30), st.lists(st.integers(0, 5), min_size=1, max_size=10))
def test_each_frame_is_taken_once_and_in_order(fates, n_frames, bursts):
    pair = Pair(n_frames, fates)
    for turn in range(2 * (len(fates) + n_frames) + 10):
        for at in (0, 1):
            pair.send(at, bursts[turn % len(bursts)] or 1, ask=turn % 3 == 2)
            for end in pair.ends:  # at no time anything else
                assert end.taken == list(range(1, len(end.taken) + 1))
            pair.receive(1 - at)
    for end in pair.ends:
        assert end.taken == list(range(1, n_frames + 1))
        assert not end.stream.kept and not end.stream.is_repeating


def test_what_was_sent_is_free_when_it_is_known_and_nobody_reads_it():
    stream, is_read = FrameStream("task 1"), [True, True]
    frame = stream.add([b"x"])
    stream.put(frame, lambda: not is_read[0])
    stream.go_back()
    assert stream.next() is frame and stream.is_repeating
    stream.put(frame, lambda: not is_read[1])
    assert not frame.is_free() and stream.next() is None
    stream.known(1)
    assert not frame.is_free() and not stream.kept
    is_read[0] = False
    assert not frame.is_free()
    is_read[1] = False
    assert frame.is_free()


def test_what_was_never_sent_cannot_be_known():
    stream = FrameStream("frames of task 1")
    stream.put(stream.add([]))
    stream.add([])  # not given to the link
    with pytest.raises(BadFrame, match="frames of task 1: acknowledged: got frame 2"):
        stream.known(2)


def test_the_peer_is_asked_once_for_what_is_missing_and_told_after_so_many():
    stream = FrameStream("task 1")
    assert not stream.admit(2) and stream.asks_again
    stream.asks_again = False  # it was asked
    for _ in range(ASK_FRAMES - 1):
        assert not stream.admit(3) and not stream.asks_again
    assert not stream.admit(3) and stream.asks_again
    assert stream.admit(1) and not stream.asks_again and not stream.admit(1)
    for seq in range(2, ACK_FRAMES):
        assert stream.admit(seq) and not stream.owes_word
    assert stream.admit(ACK_FRAMES) and stream.owes_word


def test_a_word_shows_what_is_lost_and_nothing_that_is_on_its_way():
    sender, receiver = FrameStream("task 1"), FrameStream("task 0")
    for _ in range(3):
        sender.put(sender.add([]))
    assert receiver.admit(1)
    assert receiver.heed(0, sender.n_put, False) and receiver.asks_again  # 2 and 3 were before it
    receiver.asks_again = False
    assert not sender.heed(receiver.n_in, 0, True) and sender.is_repeating
    assert not receiver.heed(0, sender.n_put, False)  # before this word nothing was sent again
    assert sender.next().seq == 2
