"""Recorded request times in common forms: numbers or dates, with or without a header, plain or compressed."""

import gzip

import pytest

from tputfind.errors import BadRequest
from tputfind.readers.csv_files import arrivals_of

SECONDS = [0.5 * number for number in range(120)]
DATES = [f"2026-11-24T10:{second // 60:02}:{second % 60:02}.500+01:00" for second in range(120)]
WITHOUT_ZONE = [date.removesuffix("+01:00") for date in DATES]


@pytest.mark.parametrize("header", ["", "sent_at\n"])
@pytest.mark.parametrize(("times", "gap"), [(SECONDS, 0.5), (DATES, 1.0), (WITHOUT_ZONE, 1.0)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_times_are_numbers_or_dates_packed_or_not(tmp_path, header, times, gap, pack):
    path = tmp_path / "times.csv"
    path.write_bytes(pack((header + "\n".join(f"{time},GET /" for time in times)).encode()))

    assert arrivals_of(path).gaps == pytest.approx([gap] * 119)


def test_dates_of_different_zones_are_set_on_one_clock(tmp_path):
    (tmp_path / "times.csv").write_text("\n".join([*DATES[:110], "2026-11-24T09:01:50.500Z"]))

    assert arrivals_of(tmp_path / "times.csv").gaps[-1] == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (
            "\n".join([*map(str, SECONDS), DATES[0]]).encode(),
            "line 121: '2026-11-24T10:00:00.500+01:00' is a date, and",
        ),
        ("\n".join([*DATES, "7"]).encode(), "line 121: '7' is a number, and those before it are dates"),
        ("\n".join([*DATES, "2026-13-01"]).encode(), "line 121: '2026-13-01' is not a number"),
        (("\n".join(map(str, SECONDS)) + "\nnan\n").encode(), "line 121: 'nan' is not"),
        ("time\n1.0\ncaf\u00e9\n".encode("latin-1"), "line 3: the byte 0xe9 is not UTF-8 text"),
        (gzip.compress(b"1\n2\n", mtime=0)[:-4], "is cut short or broken: gzip cannot unpack it"),
        (b"\x1f\x8bnot packed", "is cut short or broken: gzip cannot unpack it"),
        (b"1764459123123\n1764459123133\n", "line 1: '1764459123123' is too large for seconds: divide milliseconds by"),
        (b",timestamp\n0,2026-11-24\n", "its first column has no name, as an index: put the times first"),
        (b"id,time\n0,0.1\n1,0.2\n2,0.4\n", "its first column counts the lines: put the times first"),
        (b"id,time\n0,0.1\n2,0.2\n1,0.4\n", "its first column counts the lines: put the times first"),
        (b"arrival_ms\n0\n12.4\n", "its first column is in ms: convert it to seconds"),
        (b"sentMs\n0\n12.4\n", "its first column is in ms: convert it"),
        ("time (µs)\n0\n12.4\n".encode(), "its first column is in µs: convert it"),
        (b"minutes\n0\n12.4\n", "its first column is in minutes: convert it"),
        (b"day,time\n2026-11-24,10:00:00\n2026-11-24,10:00:01\n", "its dates and times are in two columns"),
        (b"time\n2026-11-24T10:00:00,123456+01:00\n", "its times have a decimal comma: put them in quotes"),
        (b"time,samples\n2026-11-24 10:00:00,045,4\n2026-11-24 10:00:01,045,4\n", "its times have a decimal comma"),
        *(
            ("\n".join(["time,samples", *(f"{time},1" for time in SECONDS), f"60.0,{cell}"]).encode(), said)
            for cell, said in [
                ("many", "line 122: samples: 'many' is not a whole number"),
                ("0", "line 122: samples: 0 is not between 1 and"),
                ("2.5", "line 122: samples: '2.5' is not a whole number"),
                ("nan", "line 122: samples: 'nan' is not a whole number"),
                ("", "line 122: samples: '' is not a whole number"),
            ]
        ),
    ],
)
def test_invalid_list_of_times_is_refused_with_its_line(tmp_path, content, said):
    (tmp_path / "times.csv").write_bytes(content)

    with pytest.raises(BadRequest) as refused:
        arrivals_of(tmp_path / "times.csv")

    assert said in refused.value.message


def test_span_of_times_takes_no_memory(tmp_path):
    (tmp_path / "times.csv").write_text("\n".join(["ticks", *map(str, range(100)), "90000000000"]))

    assert arrivals_of(tmp_path / "times.csv").gaps[-1] == 90000000000.0 - 99.0


def test_times_unpacking_beyond_limit_are_refused(tmp_path):
    (tmp_path / "times.csv").write_bytes(gzip.compress(b"0" * (2**27 + 1), compresslevel=1))

    with pytest.raises(BadRequest, match="is larger than 128 MiB"):
        arrivals_of(tmp_path / "times.csv")


def test_samples_column_gives_samples_of_each_request(tmp_path):
    lines = ["sent_at,path,Samples", *(f"{time},/,{1 + number % 3}" for number, time in enumerate(SECONDS))]
    (tmp_path / "times.csv").write_text("\n".join(lines))

    recorded = arrivals_of(tmp_path / "times.csv")

    assert recorded.gaps == pytest.approx([0.5] * 119)
    assert recorded.samples == (1, 2, 3) * 40


def test_arrivals_without_samples_column_have_no_samples(tmp_path):
    (tmp_path / "times.csv").write_text("sent_at,size\n" + "\n".join(f"{time},4" for time in SECONDS))

    assert arrivals_of(tmp_path / "times.csv").samples is None


@pytest.mark.parametrize(("rest", "gap"), [("{:03} GET /", 0.1), ("200", None)])
def test_milliseconds_after_a_decimal_comma_are_read_and_other_numbers_are_not(tmp_path, rest, gap):
    times = [f"2026-11-24 10:00:{tenth // 10:02},{rest.format(tenth % 10 * 100)}" for tenth in range(120)]
    (tmp_path / "times.csv").write_text("\n".join(times))

    gaps = arrivals_of(tmp_path / "times.csv").gaps

    assert gaps == pytest.approx([gap] * 119 if gap else ([0.0] * 9 + [1.0]) * 11 + [0.0] * 9, abs=1e-6)


def test_lines_may_be_in_any_order(tmp_path):
    lines = [f"{time},{1 + number % 3}" for number, time in enumerate(SECONDS)]
    for name, each in (("sorted", lines), ("shuffled", lines[60:] + lines[:60])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["sent_at,samples", *each]))

    assert arrivals_of(tmp_path / "shuffled.csv") == arrivals_of(tmp_path / "sorted.csv")
