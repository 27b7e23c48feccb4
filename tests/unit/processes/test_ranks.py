"""Answers of several processes, merged to those of one job."""

from msgspec.structs import replace
from support.records import example

from tputfind.processes.messages import Timed
from tputfind.processes.ranks import Job
from tputfind.record.record import Row


def rows(*peaks_bytes):
    return [Timed(row=Row(batch_size=2**at, peak_reserved_bytes=peak)) for at, peak in enumerate(peaks_bytes)]


def test_unchecked_rows_of_rank_0_do_not_shift_the_peaks_of_others(tmp_path):
    job = Job(lambda: None, 5.0, tmp_path, replace(example().spec, dtype="fp32", gpus=2, phase="train", parallel="ddp"))
    job.begin(1, iter(rows(5, 9)), lambda: None)

    answers = list(job.answers(each for timed in rows(1, 2) for each in (Timed(unchecked=timed.row), timed)))
    job.end()

    assert [answer.row.peak_reserved_bytes for answer in answers if answer.row is not None] == [5, 9]
