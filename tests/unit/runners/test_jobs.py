"""Outcomes of jobs on a simulated cluster, followed by the production code."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.simulated_cluster import SimulatedCluster, node, record_of

from tputfind.errors import BadRecord, DeviceInUse, ModelFailed, NoSuchDevice, OutOfTime, UnknownModel
from tputfind.processes.messages import Refusal
from tputfind.record.spec import Spec
from tputfind.runners import jobs
from tputfind.runners.jobs import ClusterJob, Jobs
from tputfind.runners.on_node import Word
from tputfind.runners.places import places_of
from tputfind.session.progress import Silent

ONE = [node(1)]
TWO = [node(1), node(2)]


class Heard(Silent):
    def __init__(self):
        self.lines: list[str] = []
        self.subject = ""

    def about(self, subject):
        self.subject = subject

    def did(self, what):
        self.lines.append(f"{self.subject}: {what}")


def some_jobs(nodes, count, choice="next", **fields):
    (*places,) = places_of(nodes, "cuda", choice)
    specs = [Spec(model=f"model{number}", device=place.device, **fields) for number in range(count) for place in places]
    return {number: ClusterJob(spec, spec, places[number % len(places)]) for number, spec in enumerate(specs)}


def follow(asked, cluster, progress=None):
    listener, times = progress or Silent(), {"clock": cluster.clock, "sleep": cluster.sleep}
    return list(Jobs(asked, cluster, listener, "tputfind ... --ray", **times).follow())


def raw(record):
    return msgspec.Raw(msgspec.json.encode(record))


def unfinished(cluster, number, at):
    """Return the word of a node with its record of a job that goes on."""
    request = msgspec.json.decode(cluster._asked[number][1], type=jobs.Request)
    record = msgspec.structs.replace(record_of(request, at), finished=None)
    return msgspec.json.encode(Word(number=number, node=at.id, record=raw(record)))


def answering(fields_of):
    """Return an answer function: a record in a word whose fields are replaced."""

    def answer(number, request, at):
        word = Word(number=number, node=at.id, record=raw(record_of(request, at)))
        return msgspec.json.encode(msgspec.structs.replace(word, **fields_of(number, request, at)))

    return answer


@settings(max_examples=30)
@given(
    count=st.integers(1, 30),
    nodes=st.integers(2, 6),
    seconds=st.lists(st.floats(1, 100), min_size=30, max_size=30),
    lost=st.dictionaries(st.integers(0, 4), st.floats(0, 200), max_size=4),
)
def test_every_job_comes_back_once_while_a_node_is_left(count, nodes, seconds, lost):
    there = [node(number) for number in range(nodes)]
    lost_at_s = {there[number].id: at_s for number, at_s in lost.items() if number < nodes - 1}
    asked = some_jobs(there, count)

    came = follow(asked, SimulatedCluster(there, lambda number, _: seconds[number], lost_at_s))

    assert sorted(each.number for each in came) == list(range(count))
    failed = [each for each in came if each.ended_by is not None]
    assert all("was lost" in str(each.ended_by) for each in failed)
    assert all(each.record.spec == asked[each.number].spec for each in came)


def test_lost_node_reruns_its_job_and_is_named_in_record():
    heard = Heard()
    came = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda *_: 100.0, {TWO[0].id: 60.0}), heard)

    again = next(each.record for each in came if each.number == 0)
    (notice,) = again.caveats
    assert notice.kind == "ran_again"
    assert TWO[0].address in notice.seen
    assert notice in again.notices
    assert again.command.endswith(f"# node {TWO[1].address}")
    assert any(f"{TWO[0].address} was lost" in line for line in heard.lines)


def test_each_job_on_lost_node_is_not_run_elsewhere():
    came = follow(some_jobs(TWO, 1, "each"), SimulatedCluster(TWO, lambda *_: 100.0, {TWO[0].id: 60.0}))

    lost, other = sorted(came, key=lambda each: each.number)
    assert isinstance(lost.ended_by, NoSuchDevice)
    assert not lost.whole
    assert lost.record.rows[0].failure is not None
    assert other.ended_by is None


def test_lost_node_leaves_the_rows_that_it_has_sent():
    class Telling(SimulatedCluster):
        def words(self):
            sent = [unfinished(self, 1, TWO[1])] if 1 in self._asked else []
            return [*super().words(), *sent]

    came = follow(some_jobs(TWO, 1, "each"), Telling(TWO, lambda *_: 100.0, {TWO[1].id: 60.0}))

    lost = next(each for each in came if each.number == 1)
    assert isinstance(lost.ended_by, NoSuchDevice)
    assert lost.whole
    assert lost.record.finished is None
    assert all(one.failure is None for one in lost.record.rows)


def test_jobs_that_no_node_is_left_for_are_given_up():
    came = follow(some_jobs(ONE, 3), SimulatedCluster(ONE, lambda *_: 100.0, {ONE[0].id: 150.0}))

    assert [type(each.ended_by) for each in came] == [type(None), NoSuchDevice, NoSuchDevice]
    assert [each.record.rows[0].status for each in came] == ["ok", "died", "died"]


def test_a_task_that_never_comes_back_ends_with_its_own_budget():
    cluster = SimulatedCluster(TWO, lambda number, _: 1e9 if number == 0 else 10.0)
    came = follow(some_jobs(TWO, 3, budget_s=100.0), cluster)

    late = next(each for each in came if each.number == 0)
    assert isinstance(late.ended_by, OutOfTime)
    assert late.record.rows[0].status == "timeout"
    assert TWO[0].address in str(late.ended_by)
    assert 100 + jobs.GRACE_S < cluster.now_s < 100 + jobs.GRACE_S + 6
    assert sorted(each.number for each in came if each.ended_by is None) == [1, 2]


def test_job_of_lost_node_waits_longer_than_its_budget():
    cluster = SimulatedCluster(TWO, lambda *_: 100.0, {TWO[0].id: 60.0})
    came = follow(some_jobs(TWO, 6, budget_s=150.0), cluster)

    assert [str(each.ended_by) for each in came if each.ended_by] == []
    assert cluster.now_s > 150 + jobs.GRACE_S + 300


def test_jobs_queued_after_a_stuck_job_end_too():
    class Stuck(SimulatedCluster):
        def cancel(self, numbers):
            """Cancel waiting jobs only: the running process does not react."""
            for number in numbers:
                if number in self._waiting:
                    self._waiting.remove(number)

    cluster = Stuck(ONE, lambda *_: 1e9)
    came = follow(some_jobs(ONE, 3, budget_s=100.0), cluster)

    assert all(isinstance(each.ended_by, OutOfTime) for each in came)
    assert ["no device came free" in str(each.ended_by) for each in came] == [False, True, True]
    assert [each.record.rows[0].status for each in came] == ["timeout", "died", "died"]
    assert cluster.now_s < 100 + 2 * jobs.GRACE_S + 12


@pytest.mark.parametrize("listens", [True, False])
def test_silent_job_is_abandoned_without_a_budget(listens):
    class Silenced(SimulatedCluster):
        def speaking(self):
            return [pair for pair in super().speaking() if pair[0] != 0]

        def cancel(self, numbers):
            if listens:
                super().cancel(numbers)

    cluster = Silenced(ONE, lambda number, _: 1e9 if number == 0 else 1000.0)
    came = follow(some_jobs(ONE, 2), cluster)

    assert isinstance(came[0].ended_by, OutOfTime)
    assert f"no word from {ONE[0].address} for {jobs.SILENT_S:g} s" in str(came[0].ended_by)
    if listens:
        assert came[1].ended_by is None, "jobs that speak may take as long as they like"
    else:
        assert "no device came free" in str(came[1].ended_by)
        assert cluster.now_s < jobs.SILENT_S + jobs.GRACE_S + 12


def test_node_with_other_version_is_reported_in_its_record():
    def fields(_number, request, at):
        version = "2.10.0" if at == TWO[1] else "2.9.0"
        return {"record": raw(record_of(request, at, torch=version))}

    came = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda n, _: 10.0 + n, answer=answering(fields)))

    first, second = came
    assert first.record.caveats == ()
    (notice,) = second.record.caveats
    assert notice.kind == "unlike_nodes"
    assert "torch 2.10.0 here, 2.9.0 there" in notice.seen


@pytest.mark.parametrize("error", [UnknownModel, OutOfTime, DeviceInUse])
def test_refusal_of_a_node_becomes_its_error_and_spares_other_jobs(error):
    def fields(number, *_):
        refusal = Refusal(
            error=error.__name__, message="there is no model\x1b[31m", hint="did you mean it?", traceback=""
        )
        return {"record": msgspec.UNSET, "refusal": refusal} if number == 0 else {}

    came = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda *_: 10.0, answer=answering(fields)))

    assert type(came[0].ended_by) is error
    assert "\x1b" not in str(came[0].ended_by)
    assert [row.failure.kind for row in came[0].record.rows] == (["error"] if error is UnknownModel else [])
    assert came[1].ended_by is None


@pytest.mark.parametrize(
    "answer",
    [
        lambda *_: b"",
        lambda *_: b"\x80\x05\x95K",
        lambda *_: b"[" * 100_000,
        lambda *_: b'{"number": 0, "node": "1", "record": {"schema": 8}}',
        lambda *_: b'{"number": 0, "node": "1"}',
        answering(lambda *_: {"record": msgspec.Raw(b'{"schema": 999}')}),
    ],
)
def test_malformed_answer_is_one_failed_job(answer):
    came = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda *_: 10.0, answer=answer))

    assert all(isinstance(each.ended_by, BadRecord) for each in came)
    assert not any(each.whole for each in came)


def test_a_record_of_another_question_is_refused():
    def fields(_number, request, at):
        asked = msgspec.structs.replace(request, spec=msgspec.structs.replace(request.spec, dtype="fp16"))
        return {"record": raw(record_of(asked, at))}

    came = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda *_: 10.0, answer=answering(fields)))

    assert all("does not match the request: dtype" in str(each.ended_by) for each in came)


def test_dead_process_is_reported_with_its_node_or_as_a_row():
    (came,) = follow(some_jobs(ONE, 1), SimulatedCluster(ONE, lambda *_: 10.0, answer=lambda *_: None))

    assert isinstance(came.ended_by, ModelFailed)
    assert f"its process died on {ONE[0].address}" in str(came.ended_by)
    assert came.record.rows == (), "the only job: its error says it all"
    both = follow(some_jobs(TWO, 2), SimulatedCluster(TWO, lambda *_: 10.0, answer=lambda *_: None))
    assert [row.failure.kind for each in both for row in each.record.rows] == ["died", "died"]


def test_an_interruption_keeps_the_records_that_had_arrived():
    class Interrupted(SimulatedCluster):
        def poll_ends(self, timeout_s):
            ends = super().poll_ends(timeout_s)
            if self.now_s > 20:
                self._words.append(unfinished(self, 1, TWO[1]))
                raise KeyboardInterrupt
            return ends

    came = follow(some_jobs(TWO, 3), Interrupted(TWO, lambda n, _: 10.0 if n == 0 else 100.0))

    assert [each.number for each in came] == [0, 1]
    assert isinstance(came[1].ended_by, KeyboardInterrupt)
    assert came[1].record.finished is None
    assert came[1].record.rows


def test_interrupted_jobs_have_a_moment_for_their_last_words():
    class Interrupted(SimulatedCluster):
        def poll_ends(self, timeout_s):
            if self.now_s > 20:
                raise KeyboardInterrupt
            return super().poll_ends(timeout_s)

        def words(self):
            words = list(super().words())
            if self.now_s < 21:  # under a second after the interruption
                return words
            return [*words, msgspec.json.encode(Word(number=0, node=ONE[0].id, record=self.record))]

    cluster = Interrupted(ONE, lambda *_: 100.0)
    asked = some_jobs(ONE, 1)
    request = jobs.Request(spec=asked[0].sent, command="tputfind", trust_model_file=False)
    cluster.record = raw(record_of(request, ONE[0]))

    (came,) = follow(asked, cluster)

    assert isinstance(came.ended_by, KeyboardInterrupt)
    assert came.record.rows
    assert 22 <= cluster.now_s < 23


def test_interruption_keeps_ended_jobs_not_yet_collected():
    there = [node(number) for number in range(3)]

    class Interrupted(SimulatedCluster):
        once = True

        def poll_ends(self, timeout_s):
            if self.once and self.now_s >= 10:
                self.once = False
                raise KeyboardInterrupt
            return super().poll_ends(timeout_s)

    came = follow(some_jobs(there, 3), Interrupted(there, lambda *_: 10.0))

    assert sorted(each.number for each in came) == [0, 1, 2]
    assert [each.ended_by for each in came] == [None] * 3


def test_an_interruption_before_anything_came_is_one():
    class Interrupted(SimulatedCluster):
        def poll_ends(self, _timeout_s):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        follow(some_jobs(ONE, 1), Interrupted(ONE, lambda *_: 1.0))
