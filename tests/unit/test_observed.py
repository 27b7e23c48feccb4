"""Logs of servers as load generators write them, and malformed ones."""

import gzip

import pytest

from tputfind.errors import BadRequest
from tputfind.readers.csv_files import log_of

ROWS = [(0.5 * number, 0.5 * number + 0.02) for number in range(120)]
PLAIN = "\n".join(["sent,answered", *(f"{sent},{answered}" for sent, answered in ROWS)])


def written(tmp_path, content: str | bytes):
    path = tmp_path / "log.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_seconds_in_any_order_of_rows_and_columns_are_read(tmp_path, pack):
    lines = [f"{number},{answered},{sent}" for number, (sent, answered) in enumerate(ROWS)]
    log = log_of(written(tmp_path, pack("\n".join(["id,Answered,sent", *reversed(lines)]).encode())))

    assert log.name == "log.csv"
    assert log.sent_ms.tolist() == pytest.approx([1000 * sent for sent, _ in ROWS])
    assert log.latency_ms.tolist() == pytest.approx([20.0] * 120)
    assert log.begun_ms is None
    assert log.ended_ms is None


def test_dates_are_read(tmp_path):
    lines = [f"2026-11-24T10:00:{n % 60:02}.5+01:00,2026-11-24T10:00:{n % 60:02}.75+01:00" for n in range(120)]

    assert set(log_of(written(tmp_path, "\n".join(["sent,answered", *lines]))).latency_ms) == {250.0}


def test_batch_begin_and_end_are_read_if_both_columns_exist(tmp_path):
    lines = [f"{sent},{sent + 0.01},{sent + 0.015},{answered}" for sent, answered in ROWS]
    both = log_of(written(tmp_path, "\n".join(["sent,begun,ended,answered", *lines])))

    assert both.begun_ms == pytest.approx(both.sent_ms + 10)
    assert both.ended_ms == pytest.approx(both.sent_ms + 15)
    assert log_of(written(tmp_path, "\n".join(["sent,begun,other,answered", *lines]))).begun_ms is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "its header lacks sent and answered"),
        (PLAIN.replace("answered", "latency"), "its header lacks answered: 'sent,latency'"),
        (PLAIN.replace("sent,answered", "sent,sent,answered"), "two columns are named sent"),
        (PLAIN.partition("\n")[2], "its header lacks sent and answered"),
        ("\n".join(PLAIN.splitlines()[:60]), "59 requests are too few: at least 100 are needed"),
        (PLAIN.replace("5.0,5.02", "5.0,"), "line 12: answered is empty: leave out requests that failed"),
        (PLAIN.replace("5.0,5.02", "5.0"), "line 12: answered is empty"),
        (PLAIN.replace("5.0,5.02", "5.0,soon"), "line 12: answered: 'soon'"),
        (PLAIN.replace("5.0,5.02", "5.0,nan"), "line 12: answered: "),
        (PLAIN.replace("5.0,5.02", "5.0,4.0"), "line 12: answered before it was sent"),
        (PLAIN.replace("5.0,5.02", "5.0,2026-11-24"), "line 12: answered: '2026-11-24' is a date, and those before"),
        ("sent,answered\n" + "1,2\n" * 120, "all requests were sent at the same time"),
        (PLAIN.encode() + b"\n\xff,1", "the byte 0xff is not UTF-8 text"),
        (gzip.compress(PLAIN.encode(), mtime=0)[:50], "is cut short or broken: gzip cannot unpack it"),
    ],
)
def test_malformed_log_is_refused_with_its_line(tmp_path, content, said):
    with pytest.raises(BadRequest) as refused:
        log_of(written(tmp_path, content))
    assert str(tmp_path / "log.csv") in refused.value.message
    assert said in refused.value.message
    assert "sent and answered, in seconds" in refused.value.hint


def test_missing_log_is_refused(tmp_path):
    with pytest.raises(BadRequest, match="cannot be read: No such file"):
        log_of(tmp_path / "none.csv")
