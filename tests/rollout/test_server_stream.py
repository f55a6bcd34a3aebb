"""What the tokens of a server's stream are labelled with."""

from array import array

import pytest

from bapo_lightning.rollout.gathered import Gathered
from bapo_lightning.rollout.vllm.answers import Span
from bapo_lightning.rollout.vllm.server_stream import check_spans
from bapo_lightning.system.errors import EngineError
from bapo_lightning.system.peers import PeerFault
from bapo_lightning.types import FinishReason, Segment


def spans(*ends):
    starts = (0, *(end for _, end in ends))
    pairs = zip(starts, ends, strict=False)
    return [Span(version=name, start=start, end=end) for start, (name, end) in pairs]


def test_vllms_spans_of_versions_must_be_those_of_the_tokens():
    check_spans([3, 3, 4], spans(("3", 2), ("4", 3)))
    check_spans([], [])
    moved = [Span(version="3", start=1, end=3), Span(version="4", start=3, end=4)]
    for wrong in (spans(("3", 3)), spans(("3", 1), ("4", 3)), moved, []):
        with pytest.raises(EngineError, match="labelled wrongly"):
            check_spans([3, 3, 4], wrong)
    with pytest.raises(PeerFault, match="which weights"):
        check_spans([3, 3, 4], None)


def test_tokens_of_one_version_are_one_segment_and_what_is_taken_is_gone():
    gathered = Gathered()
    for version, finish in ((3, None), (3, None), (4, FinishReason.STOP)):
        gathered.add(7, Segment(array("i", [version]), array("f", [-1.0]), version), finish)
    gathered.add(8, Segment(array("i"), array("f"), 4), None)
    gathered.add(9, Segment(array("i", [1]), array("f", [-1.0]), 4), None)
    gathered.drop([9, 10])
    made = gathered.take()
    assert [(len(part.token_ids), part.version) for part in made[7].segments] == [(2, 3), (1, 4)]
    assert made[7].finish is FinishReason.STOP and made[8].segments == () and set(made) == {7, 8}
    assert gathered.take() == {}
