"""One model on several devices: two gloo processes on the cores of this host, started like torchrun does."""

import csv
import json
import os
import sys
import time
from contextlib import closing

import psutil
import pytest
from support import bare
from support.command import EDGE, QUICK, Kept, children_at_work, run
from support.folders import MODELS

from tputfind.processes.failures import ChildFailed
from tputfind.processes.messages import TryBatch
from tputfind.record.record import Trial
from tputfind.record.spec import own_step, read_spec

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux enforces RLIMIT_AS")
MIB = 2**20
TWO = ("--device", "cpu", "--gpus", 2)
TRAINED = ("--phase", "train", *TWO, "--batch-sizes", 2, *QUICK)
SMALL = (f"{MODELS}/compiled.py:normalised", "--phase", "train", *TWO, "--batch-sizes", "2,4", *QUICK)


@linux_only
def test_edge_runs_on_both_ranks_and_one_more_fails_in_bare_loop(tmp_path):
    path, limit = f"{MODELS}/train_ddp.py", 150
    ran = run(tmp_path, f"{path}:step", "--memory-limit", f"{limit}MiB", *TWO, *EDGE, environment=bare.ENVIRONMENT)

    assert ran.status == 0, ran.err
    edge = ran.record("*-x2-*").edge
    assert (edge.closed, edge.limited_by, edge.fails_at) == (True, "memory", edge.largest_batch + 1)
    assert bare.ranks_take(path, edge.largest_batch, limit * MIB)
    assert not bare.ranks_take(path, edge.fails_at, limit * MIB)


def test_model_whose_blocks_share_weights_is_sharded(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/ranks.py:shares", *TRAINED, "--parallel", "fsdp")

    assert ran.status == 0, ran.err
    (row,) = ran.record("*-x2-*").rows
    assert (row.status, row.output.result) == ("ok", "loss")


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_model_trains_on_two_devices_and_is_compared_with_one(tmp_path, ask, parallel):
    ran = ask(tmp_path, *SMALL, "--parallel", parallel, "--save", "rows.csv")

    assert ran.status == 0, ran.err
    record = ran.record(f"*-train-{parallel}-x2-*")
    assert [row.samples for row in record.rows] == [4, 8]
    assert all(row.status == "ok" and row.output.result == "loss" for row in record.rows)
    assert record.rows[0].parameter_bytes == record.single_rows[0].parameter_bytes
    assert record.rows[0].gradient_bytes == sum(record.rows[0].parameter_bytes.values())
    assert len(record.environment.others) == 1
    assert record.environment.cpu_count == len(os.sched_getaffinity(0))
    assert record.single_rows
    for single in record.single_rows:
        row = record.row(single.batch_size)
        share = row.samples_per_s / (2 * single.samples_per_s)
        assert record.scaling_efficiency(row) == pytest.approx(share)
        assert f"at batch {single.batch_size} ({share:.0%})" in " ".join(ran.out.split())
    with (tmp_path / "rows.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert {(line["parallel"], line["ranks"]) for line in lines} == {(parallel, "2")}


@pytest.mark.parametrize("model", ["left_out", "only_returned"])
def test_parameters_without_gradients_in_ddp_are_found_and_named(tmp_path, ask, model):
    ran = ask(tmp_path, f"{MODELS}/ranks.py:{model}", *TRAINED, "--parallel", "ddp")

    assert ran.status == 0, ran.err
    record = ran.record()
    assert record.spec.find_unused_parameters
    (notice,) = [notice for notice in record.notices if notice.kind == "unused_parameters"]
    assert notice.cause == "a backward pass leaves parameters spare.weight, spare.bias without gradients"
    assert [row.status for row in record.rows] == ["ok"]


@pytest.mark.parametrize("name", ["summing", "gathers"])
def test_module_in_ddp_sums_gradients_and_gathers_outputs_of_all_ranks(tmp_path, ask, name):
    pytest.importorskip("lightning")

    ran = ask(tmp_path, f"{MODELS}/lit.py:{name}", *TRAINED, "--parallel", "ddp")

    assert ran.status == 0, ran.err
    assert [row.status for row in ran.record().rows] == ["ok"]


def test_module_with_two_optimizers_in_ddp_is_trained_by_both(tmp_path, ask):
    pytest.importorskip("lightning")

    ran = ask(tmp_path, f"{MODELS}/lit.py:gan", *TRAINED, "--parallel", "ddp")

    assert ran.status == 0, ran.err
    assert "generator.0.weight" in ran.out


def test_first_steps_of_ddp_that_wait_are_skipped(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/ranks.py:times_itself", *TWO, "--batch-sizes", 2, *QUICK)

    assert ran.status == 0, ran.err


REFUSED = [
    (("resnet18", *TWO), "nothing says how it runs on several devices"),
    (("resnet18", "--parallel", "ddp", *TWO), "--parallel ddp trains: add --phase train"),
    (("resnet18", "--phase", "train", "--parallel", "fsdp", "--gpus", 1), "takes two devices or more"),
    (("resnet18", "--phase", "train", "--parallel", "ddp", "--gpus", 2, "--device", "cuda:1"), "is one device"),
    (("resnet18", "--phase", "train", "--parallel", "ddp", *TWO, "--mode", "compile"), "--mode compile is for one"),
    (("resnet18", "--phase", "train", "--parallel", "ddp", *TWO, "--each"), "leave --gpus and --parallel out"),
    ((f"{MODELS}/steps.py:pair", "--parallel", "ddp", "--phase", "train", *TWO), "leave --parallel, --phase out"),
    ((f"{MODELS}/lit.py:gan", *TRAINED, "--parallel", "fsdp"), "its backward passes run inside a forward pass"),
    ((f"{MODELS}/ranks.py:unlike", *TWO), "the ranks make batches of unlike samples or sizes"),
]


@pytest.mark.parametrize(("asked", "told"), REFUSED, ids=[" ".join(map(str, one[0][-4:])) for one in REFUSED])
def test_impossible_multi_device_run_is_refused_in_one_line(tmp_path, ask, *, asked, told):
    ran = ask(tmp_path, *asked, *QUICK)

    assert ran.status in (2, 5), ran.err
    assert told in " ".join(ran.err.split())
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_more_devices_than_there_are_is_refused_in_one_line(tmp_path, ask, device):
    asked = ("resnet18", "--phase", "train", "--parallel", "ddp", "--gpus", 64, "--device", device)
    ran = ask(tmp_path, *asked, *QUICK)

    assert ran.status == 3
    assert "64 ranks need 64 " in ran.err


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """Provide the servers of two ranks, and the file that specifies how they fail."""
    folder = tmp_path_factory.mktemp("ranks")
    path = folder / "fails.json"
    os.environ["FAILS_AS"] = str(path)
    with closing(Kept(folder / "place.json")) as asked:
        yield asked, path
    del os.environ["FAILS_AS"]


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_that_hangs_ends_all_when_time_is_up(ranks, rank):
    asked, path = ranks
    path.write_text(json.dumps({"rank": rank, "moment": "step 2", "how": "hangs"}))
    spec = own_step(read_spec(f"{MODELS}/ranks.py:fails", {"device": "cpu", "gpus": 2}))

    named = f"no answer within [0-9.]+ s: rank {rank} hangs or is slow, and the others wait in a collective for it"
    with pytest.raises(ChildFailed, match=named) as raised:
        asked.ask_one(TryBatch(spec, 4), Trial, 12.0)  # on busy cores the group takes seconds to form
    assert raised.value.failure.kind == "timeout"
    assert not children_at_work()


@pytest.mark.parametrize(("waits", "step"), [(0, 0), (1, 1), (0, 2)])
def test_rank_waiting_in_unmatched_collective_is_ended_at_once(ranks, waits, step):
    asked, path = ranks
    path.write_text(json.dumps({"moment": "", "waits": waits, "step": step}))
    spec = own_step(read_spec(f"{MODELS}/ranks.py:leaves_one_out", {"device": "cpu", "gpus": 2}))

    told = ""
    try:
        trial = asked.ask_one(TryBatch(spec, 4, 3), Trial, 300.0)
        told = "" if trial.failure is None else trial.failure.message
    except ChildFailed as death:
        told = death.failure.message

    unlike = "Is there a distributed collective mismatch in your code?"  # gloo saw a later collective first
    assert f"rank {waits}: waits in a collective that rank {1 - waits} skipped" in told or unlike in told
    assert not children_at_work()


def test_collective_omitted_in_first_step_is_reported_in_one_line(tmp_path, ranks):
    asked, path = ranks
    path.write_text(json.dumps({"moment": "", "waits": 0, "step": 0}))
    ran = asked.run(tmp_path, f"{MODELS}/ranks.py:leaves_one_out", *TWO, "--batch-sizes", 2, *QUICK)

    assert ran.status == 5, ran.err
    told = "rank 0: waits in a collective that rank 1 skipped: that rank has ended the step"
    assert ran.err.splitlines()[-1].endswith(told)


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_waiting_for_a_failed_one_is_ended_with_it(ranks, rank):
    asked, path = ranks
    path.write_text(json.dumps({"rank": rank, "moment": "step 2", "how": "out of memory", "others": "hangs"}))
    spec = own_step(read_spec(f"{MODELS}/ranks.py:fails", {"device": "cpu", "gpus": 2}))
    begin_s = time.monotonic()

    trial = asked.ask_one(TryBatch(spec, 4), Trial, 60.0)

    assert f"rank {rank}" in trial.failure.message
    assert trial.failure.kind == "out_of_memory"
    assert time.monotonic() - begin_s < 30


def test_step_failing_in_one_rank_is_reported_in_one_line(tmp_path, ranks):
    asked, path = ranks
    path.write_text(json.dumps({"rank": 1, "moment": "step 0", "how": "raises"}))
    ran = asked.run(tmp_path, f"{MODELS}/ranks.py:fails", *TWO, "--batch-sizes", 2, *QUICK)

    assert ran.status == 5, ran.err
    assert "fails at batch 2: rank 1: ValueError: had enough" in " ".join(ran.err.split())


def test_model_failing_in_one_rank_is_reported_in_one_line(tmp_path, ask):
    ran = ask(tmp_path, f"{MODELS}/ranks.py:fails_in_rank_1", *TRAINED, "--parallel", "ddp")

    assert ran.status == 5, ran.err
    assert "fails at batch 2: rank 1: ValueError: rank 1 had enough" in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("ends_its_group", "ends_its_group fails at batch 2: rank "),
        ("begins_its_own_group", "(with --gpus the process group is up: call init_process_group unless"),
    ],
)
def test_step_breaking_the_process_group_is_reported_in_one_line(tmp_path, ask, step, told):
    ran = ask(tmp_path, f"{MODELS}/ranks.py:{step}", *TWO, "--batch-sizes", 2, *QUICK)

    assert ran.status == 5, ran.err
    assert told in ran.err.splitlines()[-1]


@pytest.mark.parametrize(
    ("moment", "how", "rank"),
    [
        ("factory", "raises", 0),
        ("factory", "killed", 1),
        ("batch", "exits", 1),
        ("batch", "out of memory", 0),
        ("step 0", "killed", 0),
        ("step 2", "exits", 0),
    ],
)
def test_rank_that_fails_at_any_moment_is_named_and_ends_all(ranks, rank, moment, how):
    asked, path = ranks
    path.write_text(json.dumps({"rank": rank, "moment": moment, "how": how}))
    spec = own_step(read_spec(f"{MODELS}/ranks.py:fails", {"device": "cpu", "gpus": 2}))

    trial = None
    try:
        trial = asked.ask_one(TryBatch(spec, 4), Trial, 60.0)
        told = trial.failure.message
    except Exception as error:  # it died
        told = str(error)
    ended_s = time.monotonic()

    assert f"rank {rank}" in told
    if how == "out of memory":
        assert trial.failure.kind == "out_of_memory"
    assert not children_at_work()
    assert time.monotonic() - ended_s < 5


def test_dead_copy_of_server_is_forked_again(ranks):
    asked, path = ranks
    path.write_text(json.dumps({"moment": ""}))
    question = TryBatch(own_step(read_spec(f"{MODELS}/ranks.py:fails", {"device": "cpu", "gpus": 2})), 4)
    for _ in range(2):  # before the second, the server imports what the first has found, and is copied again
        assert asked.ask_one(question, Trial, 60.0).failure is None
    (copy,) = [each for each in psutil.Process(asked.server_pid).children() if each.status() != psutil.STATUS_ZOMBIE]

    copy.kill()

    with pytest.raises(ChildFailed, match="rank 1: "):
        asked.ask_one(question, Trial, 60.0)
    assert asked.ask_one(question, Trial, 60.0).failure is None
    assert not children_at_work()


def test_package_imported_after_the_copy_reaches_every_rank(ranks):
    asked, path = ranks
    path.write_text(json.dumps({"moment": ""}))
    spec = own_step(read_spec(f"{MODELS}/ranks.py:needs_json_tool", {"device": "cpu", "gpus": 2}))
    assert "has not imported it" in asked.ask_one(TryBatch(spec, 4), Trial, 60.0).failure.message

    asked.preload("json.tool")

    assert asked.ask_one(TryBatch(spec, 4), Trial, 60.0).failure is None
