"""Messages of a job on a node of a cluster."""

import msgspec
import pytest
from support.records import example

from tputfind.runners import on_node


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(on_node.time, "monotonic", lambda: now[0])
    return now


def test_record_that_was_kept_back_is_sent_later(clock):
    sent = []
    telling = on_node._Telling(on_node.Word(number=1, node="a"), lambda slot, line: sent.append((slot, line)))
    first, later = (msgspec.structs.replace(example(), wall_s=seconds) for seconds in (1.0, 2.0))

    telling.measured(first)
    telling.measured(later)
    telling.send()
    assert len(sent) == 1

    clock[0] += on_node.ALIVE_S
    telling.send()
    telling.send()
    assert [slot for slot, _ in sent] == ["record", "record"]
    assert msgspec.json.decode(sent[-1][1])["record"]["wall_s"] == 2.0
