import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.driver import addresses_mib
from support.folders import GOLDEN

from tputfind.search.allocator import Addresses

MIB = 2**20
SIZES = st.one_of(st.sampled_from([2, 20, 30, 32, 34, 62, 64, 66]), st.integers(1, 200).map(lambda count: 2 * count))
# A positive number allocates so many MiB, a negative one frees one of the held blocks.
STEPS = st.lists(st.booleans().flatmap(lambda take: SIZES if take else st.integers(-9, -1)), max_size=80)


class Recording(msgspec.Struct):
    """Requests of a process on an H200 with driver 580.159.04, in MiB, and their addresses.

    A negative step frees the allocation of that number, from 1 on. Addresses are in MiB, relative to the upper end of
    the gap of the first one; above it are two chunks of the context, which had left 24 and, earlier, 2 MiB free.
    """

    steps: list[int]
    addresses: list[int]


RECORDINGS = msgspec.json.decode((GOLDEN / "driver-addresses.json").read_bytes(), type=list[Recording])


def with_a_context() -> tuple[Addresses, int]:
    """Return the addresses of a process with a context, and the lower end of its allocations in MiB."""
    addresses = Addresses()
    addresses.take(30 * MIB)
    return addresses, addresses.take(8 * MIB) // MIB


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda recording: f"{len(recording.steps)} steps")
def test_addresses_match_recorded_driver_addresses(recording):
    addresses, top = with_a_context()
    told = [address - top for address in addresses_mib(recording.steps, addresses.take, addresses.give_back)]

    of_the_context = [here >= 0 for here in recording.addresses]
    assert [here >= 0 for here in told] == of_the_context
    assert [here for here in told if here < 0] == [here for here in recording.addresses if here < 0]


def test_number_of_recorded_addresses_matches_the_model():
    assert sum(len(recording.addresses) for recording in RECORDINGS) == 1677
    assert any(here >= 0 for recording in RECORDINGS for here in recording.addresses)


@given(STEPS)
def test_allocations_never_overlap(steps):
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
def test_addresses_after_all_releases_equal_a_fresh_start(sizes, rng):
    addresses, fresh = Addresses(), Addresses()
    held = [(addresses.take(size * MIB), size * MIB) for size in sizes]
    rng.shuffle(held)
    for address, size in held:
        addresses.give_back(address, size)

    assert [addresses.take(size * MIB) for size in sizes] == [fresh.take(size * MIB) for size in sizes]


def test_touching_gaps_join_unless_a_small_block_lies_between():
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
