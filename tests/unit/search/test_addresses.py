import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.driver import addresses_mib
from support.folders import GOLDEN

from tputfind.search.allocator import Addresses

MIB = 2**20
SIZES = st.one_of(st.sampled_from([2, 20, 30, 32, 34, 62, 64, 66]), st.integers(1, 200).map(lambda count: 2 * count))
# A positive number takes so many MiB, a negative one gives back one of what is held.
STEPS = st.lists(st.booleans().flatmap(lambda take: SIZES if take else st.integers(-9, -1)), max_size=80)


class Recording(msgspec.Struct):
    """What a process on an H200 with driver 580.159.04 asked for, in MiB, and where it was put.

    A negative step gives back the one of that number, from 1 on. Addresses are in MiB, from the upper end of the gap on
    that the first was put into; above it are two chunks of the context, which had left 24 and, earlier, 2 MiB free.
    """

    steps: list[int]
    addresses: list[int]


RECORDINGS = msgspec.json.decode((GOLDEN / "driver-addresses.json").read_bytes(), type=list[Recording])


def with_a_context() -> tuple[Addresses, int]:
    """Return addresses of a process that has a context, and, in MiB, where those that are left end."""
    addresses = Addresses()
    addresses.take(30 * MIB)
    return addresses, addresses.take(8 * MIB) // MIB


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: f"{len(recording.steps)} steps")
def test_everything_goes_where_the_driver_put_it(recording):
    addresses, top = with_a_context()
    told = [address - top for address in addresses_mib(recording.steps, addresses.take, addresses.give_back)]

    of_the_context = [here >= 0 for here in recording.addresses]
    assert [here >= 0 for here in told] == of_the_context
    assert [here for here in told if here < 0] == [here for here in recording.addresses if here < 0]


def test_the_recordings_are_as_many_as_the_model_says():
    assert sum(len(recording.addresses) for recording in RECORDINGS) == 1677
    assert any(here >= 0 for recording in RECORDINGS for here in recording.addresses)


@given(STEPS)
def test_nothing_is_put_where_something_is(steps):
    addresses, held = Addresses(), {}
    for step in steps:
        if step > 0:
            address = addresses.take(step * MIB)
            assert all(address + step * MIB <= start or start + size <= address for start, size in held.items())
            held[address] = step * MIB
        elif held:
            address = sorted(held)[step % len(held)]
            addresses.give_back(address, held.pop(address))


@given(st.lists(SIZES, max_size=40), st.randoms())
def test_when_all_is_given_back_it_is_as_if_nothing_had_been_taken(sizes, rng):
    addresses, fresh = Addresses(), Addresses()
    held = [(addresses.take(size * MIB), size * MIB) for size in sizes]
    rng.shuffle(held)
    for address, size in held:
        addresses.give_back(address, size)

    assert [addresses.take(size * MIB) for size in sizes] == [fresh.take(size * MIB) for size in sizes]


def test_gaps_that_touch_are_one_unless_something_small_lies_in_what_a_chunk_had_left():
    addresses = Addresses()
    upper, small, lower = 104 * MIB, 20 * MIB, 40 * MIB
    at_upper, at_small, at_lower = (addresses.take(size) for size in (upper, small, lower))
    addresses.give_back(at_upper, upper)
    addresses.give_back(at_lower, lower)

    apart = addresses.take(160 * MIB)
    addresses.give_back(apart, 160 * MIB)
    addresses.give_back(at_small, small)

    assert at_small == at_upper + upper
    assert apart < at_lower < addresses.take(160 * MIB)
