"""The search for the smallest fleet that meets a demand: the number of devices, and the largest batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from math import ceil, floor, inf, log10, sqrt
from typing import Final

import msgspec
import numpy as np

from tputfind.errors import BadRequest, NoPlan
from tputfind.record.record import Record
from tputfind.sizing.engine.replications import (
    Effort,
    Fleet,
    Outcome,
    Simulated,
    can_tell,
    is_quick,
    simulate,
    work_of_request,
)
from tputfind.sizing.engine.service_times import ServiceTimes, service_times_of, timed_rows
from tputfind.sizing.engine.serving import Kind
from tputfind.sizing.planner.question import MOST_DEVICES, Demand
from tputfind.stats import samples_for_percentile

MORE_TRAFFIC: Final = 1.2
LATE_REQUESTS: Final = 200
"""Minimum expected late requests in a judgement, at the fraction that the target allows."""
_MOST_QUICK, _MOST = 6e6, 1e6
"""Maximum requests of a judgement, batch by batch and request by request; keeps it within some seconds."""
_PILOT: Final = 0.15
"""Minimum requests of a pilot, as a fraction of those of a judgement."""
_LONGER: Final = 3
"""Factor on the maximum requests for fewer devices that stay undecided, with a percentile not close to the target."""
_MOST_LONGER: Final = 2
"""Maximum longer judgements of a search; keeps it within some seconds."""
_MOST_PILOT_QUICK, _MOST_PILOT = 150_000, 50_000
_PILOT_CELL, _PILOT_PHASES = 128, 12
"""Devices that a pilot simulates together request by request, and the length of its replications in usual batch times.
With a smaller cell pilots would overestimate the late requests of large fleets near saturation."""
_JUDGED_TO_QUICK, _JUDGED_TO = 0.004, 0.02
"""Standard error of the late fraction, relative to the allowed one, below which more replications add little."""
HALF_WIDTH: Final = 0.03
"""Wanted relative half-width of a percentile's interval in replications of a fleet that meets the target."""
_MOST_MORE_TRAFFIC: Final = 100_000
"""Maximum requests for the outcome with more traffic."""
_PILOT_ERRORS, _PILOT_ERROR = 3.0, 0.05
"""A batch limit is judged if its pilot exceeds the allowed late fraction by at most this many standard errors; an error
counts as at least the second, relative to the allowed fraction."""
_AS_WELL: Final = 0.05
"""A measured batch size is preferred to another batch limit if its percentile is longer by at most this fraction."""
_JUDGED, _UNDECIDED = 3, 2
"""Maximum batch limits that are judged for one number of devices, and that may stay undecided."""
_NEARLY: Final = 1.25
"""Factor on the allowed late requests up to which neighbouring batch limits are judged too."""
_FEW: Final = 12
"""Batch limits up to this are all candidates; larger ones differ by a constant factor."""
_APART: Final = 1.12
_COARSE: Final = 4
"""Step between the candidates that are tried first."""
_SCANNED: Final = 1.1
"""Factor on the number of devices within which only the neighbourhood of the last minima is tried."""
_MINIMA: Final = 2
"""Batch limits around which others are tried: small batches may be as good as those that fill in about the delay."""
_PARTS: Final = 32
"""Maximum batches into which the smallest batch limit splits an average request."""
_MOST_PARTS: Final = 100
"""Requests that even the largest batch splits into more are not simulated."""
_MOST_SAMPLES_QUICK, _MOST_SAMPLES = 10_000_000, 2_000_000
"""Maximum samples of a judgement, if each is batched by itself."""
_NEARLY_ALL: Final = 0.999
"""Fraction of samples in too slow batches above which the target cannot be met by more than chance."""
_EXACTLY: Final = 250
"""The number of devices is exact to one in this many."""
_SECOND_STEP: Final = 32
"""The third number of devices that is tried differs from the second by at least one in this many."""
_ALIKE: Final = 2
"""Factor on the number of devices within which the best batch limit is near the last one."""
_BUSIEST: Final = 3
"""Smallest numbers of devices that are judged even if pilots need more than twice as many."""
_HOPE: Final = 16
"""Step from which on the maximum number of devices is tried too."""
_BUSY: Final = 0.5
"""Above this utilization more devices would help."""
_ERRORS: Final = 2.0
"""Standard errors by which lone requests must be in time more often than the target asks."""
_PILOTS, _JUDGEMENTS, _MORE = 0, 1, 2
"""Separate the random streams of the three kinds of simulation."""

Tell = Callable[[str], None]
"""Called with a text before each simulation."""


class Search:
    """The search for the least number of devices. It keeps every simulated outcome."""

    def __init__(
        self, record: Record, demand: Demand, tell: Tell | None = None, service: ServiceTimes | None = None
    ) -> None:
        """Take a record, a demand, a progress callback, and service times, if not those of the record's own samples."""
        self.record, self.demand, self._tell = record, demand, tell
        self.service = service or service_times_of(record, demand.overheads, demand.traffic, is_whole=demand.is_whole)
        self.most = demand.largest_batch(self.service.largest)
        self.least_cap = least_cap(demand, self.service, self.most)
        self._is_quick = is_quick(demand.server, demand.traffic)
        self._floor = LATE_REQUESTS / demand.goal.late
        self._check_samples()
        self._pilots: dict[tuple[int, int, float], Simulated] = {}
        self._judged: dict[tuple[int, int], Simulated] = {}
        self._best: dict[int, Simulated] = {}
        self._last: dict[float, tuple[int, int]] = {}
        self._scanned: tuple[int, list[int]] = 0, []
        self._nearest = 0, 0
        self._longer = 0

    def at(self, **changed: object) -> Search:
        return Search(self.record, msgspec.structs.replace(self.demand, **changed), self._tell, self.service)

    @cached_property
    def caps(self) -> list[int]:
        """The candidates for the largest batch, rising: measured sizes, those of rules of thumb, and some between.

        Raise NoPlan if not even a lone request is answered in time.
        """
        demand, service = self.demand, self.service
        fastest_ms = alone_ms(service, demand)
        if fastest_ms > demand.target_ms:
            is_small = service.sizes[0] > (service.least_cap if demand.is_whole else 1)
            what = f"of batches of {service.sizes[0]}" if is_small else "of lone requests"
            raise NoPlan(
                f"no device is fast enough: {demand.percentile:g} % {what} take up to {fastest_ms:.4g} ms, and the "
                f"target is {demand.target_ms:g} ms",
                f"no --slo below {rounded_up(demand.network_ms + fastest_ms):g}ms can be met{self._doubt}",
            )
        largest = max(self.least_cap, min(service.largest_within(demand.target_ms) or 1, self.most))
        half = service.largest_within(demand.target_ms / 2) or 1
        grid = [1]
        while grid[-1] < largest:
            grid.append(grid[-1] + 1 if grid[-1] < _FEW else ceil(grid[-1] * _APART))
        tried = {*grid, *service.sizes, half, ceil(1.5 * half), largest, self.least_cap}
        return sorted(size for size in tried if self.least_cap <= size <= largest)

    @property
    def _doubt(self) -> str:
        """Words for a percentile of lone requests that rests on a few latencies; else an empty string."""
        row = next(row for row in timed_rows(self.record) if row.batch_size == self.service.sizes[0])
        if (count := len(row.latency_ms)) >= samples_for_percentile(self.demand.percentile):
            return ""
        return f", by {count} latencies, of which the slowest may be a disturbance: measure with --thorough"

    @property
    def most_share(self) -> float:
        """The highest utilization that can meet the demand; with a queue limit, late requests may be refused ones."""
        demand = self.demand
        return demand.max_utilization if demand.highest_utilization < inf else 100 / demand.percentile

    def least(self) -> Outcome:
        """Return the least number of devices that meets the demand, with the batch limit that leaves the most room.

        Pilots find its neighbourhood, and judgements decide. Raise NoPlan if no number of devices meets the demand.
        """
        self.check_lone_requests()
        lowest = self.keeping_up(1.0)
        if lowest > MOST_DEVICES:
            raise NoPlan(
                f"{self.demand.rate_per_s:g} requests/s take {lowest} devices or more by their throughput alone, "
                f"and a plan has at most {MOST_DEVICES}",
                "a lower --rate",
            )
        start = least_number(self.may_meet, lowest, lowest) or MOST_DEVICES
        # Latency need not fall with more devices: batches that are not full wait for the delay.
        busiest = range(lowest, lowest + _BUSIEST) if start > 2 * lowest + _BUSIEST else range(0)
        devices = next(filter(self._meets, busiest), None) or least_number(
            self._meets, start, lowest, between=self._guess
        )
        if devices is None:
            best = self.best(MOST_DEVICES).outcome
            raise NoPlan(
                f"not even {best.devices} devices, the maximum of a plan, answer {self.demand.percentile:g} % "
                f"of the requests within {self.demand.target_ms:g} ms: it takes {best.tail_high_ms:.4g} ms",
                "a lower --rate, or a longer --slo" if best.utilization > _BUSY else "a longer --slo",
            )
        fewer = sorted((number for number in self._best if number < devices), reverse=True)
        fails = next((number for number in fewer if not self._meets_at_length(number)), lowest - 1)
        devices = min(number for number in (*fewer, devices) if number > fails)
        devices = narrow(self._meets_at_length, fails, devices, between=self._guess)
        found, spare = self.outcome_with_room(devices), self.demand.spare
        if self.judge(devices + spare, found.batch_cap).outcome.verdict == "misses":
            raise NoPlan(
                f"{count_devices(devices)} would meet the target, but not together with {spare} spare: more devices "
                "fill their batches more slowly",
                "a shorter --delay, or a smaller --max-batch-size",
            )
        return found

    def fewer(self, devices: int) -> Outcome | None:
        least = devices - step_at(devices)
        number = max((number for number in self._best if least < number < devices), default=least)
        return self.best(number).outcome if number else None

    def check_lone_requests(self) -> None:
        """Raise NoPlan if lone requests meet the target so rarely that no simulation can show that it is met."""
        demand, share = self.demand, self.demand.percentile / 100
        curve = self.service.curve_ms(1) + demand.overhead_per_answer_ms
        spare = float(np.mean(curve <= demand.target_ms)) - share
        # If requests stay whole, the minimum time of each depends on its samples.
        if self.caps and not demand.is_whole and spare <= _ERRORS * sqrt(share * (1 - share) / (100 * self._floor)):
            raise NoPlan(
                f"no number of devices is sure to meet the target: at most {demand.percentile:g} % of lone requests "
                f"are answered within {demand.target_ms:g} ms",
                f"a longer --slo{self._doubt}",
            )

    def holds(self, outcome: Outcome) -> bool:
        return outcome.utilization <= self.demand.highest_utilization and outcome.meets_target

    def holds_with_spare(self, outcome: Outcome) -> bool:
        """Whether a fleet meets the target both without the spare devices, with this outcome, and with them."""
        all_devices = outcome.devices + self.demand.spare
        return self.holds(outcome) and self.holds(self.judge(all_devices, outcome.batch_cap).outcome)

    def keeping_up(self, slower: float) -> int:
        """Return the least number that keeps up at the allowed utilization if batches take longer by a factor."""
        per_ms = max(map(self.service.per_ms, self.caps))
        each = self.demand.rate_per_s / 1000 * self.demand.mean_samples / per_ms
        return max(1, ceil(each * slower / self.most_share * (1 - 1e-12)))

    def may_meet(self, devices: int, margin: float = 1.0, rate_per_s: float | None = None) -> bool:
        """Whether a pilot, at this rate or the demand's, meets ``margin`` times the target with some batch limit."""
        target_ms = margin * self.demand.target_ms

        def is_within(pilot: Simulated) -> bool:
            return pilot.outcome.tail_ms <= target_ms and not self._is_too_slow(pilot, target_ms)

        return self._may(devices, rate_per_s or self.demand.rate_per_s, is_within)

    def may_have_late(self, devices: int, times: float) -> bool:
        """Whether a pilot of this many devices has at most ``times`` the allowed late requests."""
        late = times * self.demand.goal.late
        return self._may(devices, self.demand.rate_per_s, lambda pilot: pilot.outcome.late <= late)

    def _may(self, devices: int, rate_per_s: float, is_enough: Callable[[Simulated], bool]) -> bool:
        return any(is_enough(pilot) for pilot in self._rank_candidates(devices, rate_per_s, is_enough))

    def _is_too_slow(self, one: Simulated, target_ms: float) -> bool:
        """Whether nearly all samples were in batches whose times alone exceed the target as often as allowed."""
        samples = too_slow = 0
        for size, often in one.sizes[0].items():
            samples += size * often
            curve_ms = self.service.curve_ms(size, 0)
            within = int(np.searchsorted(curve_ms, target_ms - self.demand.overhead_per_answer_ms, "right"))
            too_slow += size * often * (len(curve_ms) - within >= self.demand.goal.late * len(curve_ms) * (1 - 1e-9))
        return too_slow > _NEARLY_ALL * samples

    def best(self, devices: int) -> Simulated:
        """Return the outcome with the first batch limit that meets the target, or the best of those judged."""
        if devices not in self._best:
            rate_per_s = self.demand.rate_per_s
            pilots = {one.outcome.batch_cap: one for one in self._rank_candidates(devices, rate_per_s)}
            if not pilots:  # no batch limit keeps up: take the highest throughput
                return self.judge(devices, max(self.caps, key=self.service.per_ms))
            before, last = self._nearest
            last = last if before / _ALIKE <= devices <= before * _ALIKE else 0
            if last and self.keeps_up(devices, last, rate_per_s):
                pilots[last] = self.pilot(devices, last)
            judged = list[Simulated]()
            while len(judged) < _JUDGED:
                cap = self._next_to_judge(pilots, judged, last)
                if cap is None:
                    break
                judged.append(self.judge(devices, cap))
                undecided = sum(one.outcome.verdict == "undecided" for one in judged)
                if judged[-1].outcome.meets_target or undecided == _UNDECIDED:
                    break
                best = min(judged, key=_merit)
                if best is judged[-1] and best.outcome.late <= _NEARLY * self.demand.goal.late:
                    pilots |= {one: self.pilot(devices, one) for one in self._beside(devices, cap)}
            self._best[devices] = min(judged, key=_merit)
            self._nearest = devices, self._best[devices].outcome.batch_cap
        return self._best[devices]

    def _next_to_judge(self, pilots: Mapping[int, Simulated], judged: Sequence[Simulated], first: int) -> int | None:
        """Return the batch limit to judge next; None if the pilots of all others miss the target."""

        def order(cap: int) -> tuple[bool, bool, float, float, float, int]:
            # Near saturation no simulation is long enough; batch limits with a lower utilization may allow one.
            return not self._can_tell(pilots[cap], self._most), cap != first, *_merit_of_pilot(pilots[cap])

        # Batch limits with equal pilots are alike, and so are all above the largest batch that occurred.
        alike = {cap: (one.outcome.late, one.outcome.tail_ms, one.outcome.mean_ms) for cap, one in pilots.items()}
        done = [alike[one.outcome.batch_cap] for one in judged]
        most = min((one.largest_batch for one in judged if one.largest_batch < one.outcome.batch_cap), default=inf)
        near = [
            cap for cap, one in pilots.items() if cap < most and alike[cap] not in done and self._may_meet(one.outcome)
        ]
        return min(
            near, key=order, default=None if judged else min(pilots, key=lambda cap: _merit_of_pilot(pilots[cap]))
        )

    def _beside(self, devices: int, cap: int) -> list[int]:
        smaller = max((one for one in self.caps if one < cap), default=cap)
        larger = min((one for one in self.caps if one > cap), default=cap)
        beside = {smaller, (smaller + cap) // 2, (cap + larger) // 2, larger} - {cap}
        return [one for one in sorted(beside) if self.keeps_up(devices, one, self.demand.rate_per_s)]

    def _may_meet(self, pilot: Outcome) -> bool:
        late = self.demand.goal.late
        return pilot.late - _PILOT_ERRORS * max(pilot.late_error, _PILOT_ERROR * late) <= late

    def tightest(self, devices: int) -> list[int]:
        return [pilot.outcome.batch_cap for pilot in self._rank_candidates(devices, self.demand.rate_per_s)[:_JUDGED]]

    def outcome_with_room(self, devices: int) -> Outcome:
        """Return the outcome of the batch limit that bears 20 % more traffic best, if it is judged to meet the target.

        That traffic meets the spare devices too; with the usual traffic, they may fill batches too slowly. Batch limits
        that then still meet the target are equal, and those that no longer keep up are compared by utilization. A
        measured batch size is preferred to one between. If none of the first few meets the target, return the best
        outcome.
        """
        rate_per_s, target_ms, measured = self.demand.rate_per_s, self.demand.target_ms, self.service.sizes
        more_per_s, all_devices = MORE_TRAFFIC * rate_per_s, devices + self.demand.spare
        best = self.best(devices)
        self._scanned = 0, []  # any batch limit may leave the most room
        ranked = self._rank_candidates(devices, rate_per_s)
        sizes = [size for size in measured if self.least_cap <= size <= self.caps[-1]]
        able = [size for size in sizes if self.keeps_up(devices, size, rate_per_s)]
        near = [self.pilot(devices, size) for size in able if self.keeps_up(all_devices, size, more_per_s)]

        def room(pilot: Simulated) -> tuple[float, float, float]:
            cap = pilot.outcome.batch_cap
            more_ms = self.pilot(all_devices, cap, more_per_s).outcome.tail_ms
            preferred = 1 + _AS_WELL if cap in measured else 1.0
            return max(more_ms, target_ms) / preferred, more_ms, pilot.outcome.utilization

        within = {
            one.outcome.batch_cap: one
            for one in (*ranked, *near)
            if one.outcome.tail_ms <= target_ms
            and self.pilot(all_devices, one.outcome.batch_cap).outcome.tail_ms <= target_ms
        }
        for pilot in sorted(within.values(), key=room)[:_JUDGED]:
            judged = self.judge(devices, pilot.outcome.batch_cap).outcome
            if self.holds_with_spare(judged):
                return judged
        return best.outcome

    def judge(self, devices: int, cap: int, longer: float = 1.0) -> Simulated:
        """Return a fleet's outcome after as many replications as a verdict needs, or its pilot if none would do."""
        key = devices, cap
        if longer > 1 or key not in self._judged:
            pilot, most = self.pilot(devices, cap), longer * self._most
            if self._can_tell(pilot, most):
                # The late fraction is known less well if few requests may be late.
                near = (_JUDGED_TO_QUICK if self._is_quick else _JUDGED_TO) * min(
                    2.0, sqrt(0.01 / self.demand.goal.late)
                )
                effort = Effort(self._floor, most, near, min(2.0, longer) * HALF_WIDTH)
                self._judged[key] = self._simulate(devices, cap, self.demand.rate_per_s, effort, _JUDGEMENTS)
            elif self.demand.gaps is None:
                self._judged[key] = pilot
            else:  # a pilot may be one replication, which proves nothing
                effort = Effort(_PILOT * self._floor, most)
                self._judged[key] = self._simulate(devices, cap, self.demand.rate_per_s, effort, _JUDGEMENTS)
        return self._judged[key]

    def _can_tell(self, pilot: Simulated, most: float) -> bool:
        devices, cap, tail_ms = pilot.outcome.devices, pilot.outcome.batch_cap, pilot.outcome.tail_ms
        if self._is_too_slow(pilot, self.demand.target_ms):
            return False
        return can_tell(self.fleet(devices, cap, self.demand.rate_per_s), self.demand.goal, most, tail_ms)

    def outcome_under_more_traffic(self, outcome: Outcome) -> Outcome:
        rate_per_s = self.demand.rate_per_s * MORE_TRAFFIC
        effort = Effort(min(self._floor, _MOST_MORE_TRAFFIC), _MOST_MORE_TRAFFIC)
        return self._simulate(outcome.devices, outcome.batch_cap, rate_per_s, effort, _MORE).outcome

    @property
    def _most(self) -> float:
        most = (_MOST_QUICK if self._is_quick else _MOST) / work_of_request(self.demand.server, self.demand.traffic)
        return max(most, 1.3 * self._floor)

    def _meets(self, devices: int) -> bool:
        return self.holds(self.best(devices).outcome)

    def _guess(self, fails: int, passes: int) -> int:
        """Return where the upper end of the percentile's interval should be the target, if it changes evenly."""
        judged = [self._best[one].outcome.tail_high_ms for one in (fails, passes) if one in self._best]
        above, *below = [tail_high_ms / self.demand.target_ms - 1 for tail_high_ms in judged]
        if not below or not 0 < above < inf or below[0] >= 0:
            return _midpoint(fails, passes)
        # The percentile jumps at the number of devices at which a batch limit no longer keeps up.
        share = min(max(0.25, above / (above - below[0])), 0.75)
        return min(max(fails + 1, round(fails + (passes - fails) * share)), passes - 1)

    def _meets_at_length(self, devices: int) -> bool:
        """Whether this many devices meet the demand, after a longer judgement if undecided but not near the target."""
        outcome = self.best(devices).outcome
        is_near = outcome.tail_ms >= self.demand.target_ms or self.demand.goal.is_close(outcome.tail_ms)
        if outcome.verdict == "undecided" and not is_near and self._longer < _MOST_LONGER:
            self._longer += 1
            self._best[devices] = self.judge(devices, outcome.batch_cap, _LONGER)
        return self._meets(devices)

    def undecided_below(self, devices: int) -> int:
        """Return the least judged number of devices above all that miss the target; ``devices`` if there is none."""
        misses = max((fewer for fewer in self._best if self._best[fewer].outcome.verdict == "misses"), default=0)
        return min((fewer for fewer in self._best if misses < fewer), default=devices)

    def pilot(self, devices: int, cap: int, rate_per_s: float | None = None) -> Simulated:
        """Return the outcome of a short simulation of a fleet, at the demand's rate or at another."""
        key = devices, cap, rate_per_s or self.demand.rate_per_s
        if key not in self._pilots:
            most = _MOST_PILOT_QUICK if self._is_quick else _MOST_PILOT
            least = _PILOT * self._floor
            effort = Effort(least, max(most, 1.3 * least), is_pilot=True)
            if not self._is_quick:
                effort = effort._replace(cell=_PILOT_CELL, phases=_PILOT_PHASES)
            self._pilots[key] = self._simulate(*key, effort, _PILOTS)
        return self._pilots[key]

    def _simulate(self, devices: int, cap: int, rate_per_s: float, effort: Effort, stream: int) -> Simulated:
        demand = self.demand
        if self._tell is not None:
            self._tell(f"{self.record.spec.model}: simulating {count_devices(devices)} with batches of up to {cap}")
        return simulate(self.fleet(devices, cap, rate_per_s), demand.goal, effort, (demand.seed, stream))

    def fleet(self, devices: int, cap: int, rate_per_s: float) -> Fleet:
        demand = self.demand
        return Fleet([Kind(devices, cap, self.service)], rate_per_s, demand.server, demand.traffic)

    def keeps_up(self, devices: int, cap: int, rate_per_s: float) -> bool:
        return self.demand.keeps_up_at(self.fleet(devices, cap, rate_per_s).utilization)

    def _rank_candidates(
        self, devices: int, rate_per_s: float, is_enough: Callable[[Simulated], bool] | None = None
    ) -> list[Simulated]:
        """Return pilots of this many devices, the best first, up to the first that is good enough.

        Every few candidates are tried, then the neighbours of the two best local minima; for about as many devices as
        before, only the neighbours of the last minima. With ``is_enough``, the last best candidate is tried first.
        """
        caps = [cap for cap in self.caps if self.keeps_up(devices, cap, rate_per_s)]
        found = dict[int, Simulated]()
        before, last = self._last.get(rate_per_s, (0, 0))
        scanned, minima = self._scanned
        places, step = [*range(len(caps) - 1, 0, -_COARSE), 0] if caps else [], _COARSE
        if caps and is_enough is None and scanned / _SCANNED <= devices <= scanned * _SCANNED:
            places, step = [_nearest(caps, cap) for cap in minima], _COARSE // 2
        elif caps and before / _ALIKE <= devices <= before * _ALIKE:
            places, step = [_nearest(caps, last), *(places if is_enough is None else ())], _COARSE // 2
        while places:
            for place in dict.fromkeys(places):
                # All batch limits above the largest batch that occurred are alike: the last of them serves all.
                reached = (one.largest_batch for one in found.values() if one.largest_batch < one.outcome.batch_cap)
                cap = caps[-1] if min(reached, default=inf) < caps[place] else caps[place]
                found[place] = self.pilot(devices, cap, rate_per_s)
                if is_enough is not None and is_enough(found[place]):
                    step = 0
                    break
            least = _minima({place: _merit_of_pilot(pilot) for place, pilot in found.items()})[:_MINIMA]
            self._last[rate_per_s] = devices, found[least[0]].outcome.batch_cap
            places = []
            while step and not places:
                beside = [place + way for place in (least if is_enough is None else least[:1]) for way in (step, -step)]
                places = [place for place in beside if 0 <= place < len(caps) and place not in found]
                step = step if places else step // 2
        if found and is_enough is None:
            before = scanned if scanned / _SCANNED <= devices <= scanned * _SCANNED else devices
            self._scanned = before, [caps[place] for place in least]
        return sorted({id(one): one for one in found.values()}.values(), key=_merit_of_pilot)

    def _check_samples(self) -> None:
        demand = self.demand
        samples = demand.mean_samples * self._floor
        if not demand.is_whole and samples > (_MOST_SAMPLES_QUICK if self._is_quick else _MOST_SAMPLES):
            raise BadRequest(
                f"--samples-per-request: {demand.mean_samples:.4g} on average are too many to simulate "
                f"p{demand.percentile:g} if each is batched by itself",
                "lower --percentile",
            )


def _merit(one: Simulated) -> tuple[bool, bool, float, float]:
    outcome = one.outcome
    return not outcome.meets_target, outcome.verdict == "misses", outcome.late, outcome.tail_ms


def _merit_of_pilot(one: Simulated) -> tuple[float, float, float, int]:
    """Return a sort key of pilots, the best first; if a queue's limit refuses requests of all, by utilization."""
    outcome = one.outcome
    return outcome.late, outcome.tail_ms, outcome.utilization, outcome.batch_cap


def _nearest(caps: Sequence[int], cap: int) -> int:
    return min(range(len(caps)), key=lambda place: abs(caps[place] - cap))


def _minima(merits: Mapping[int, tuple[float, ...]]) -> list[int]:
    """Return the places of local minima of the merit, the best first; of equal ones the first."""
    order, least = sorted(merits), dict[tuple[float, ...], int]()
    for number, place in enumerate(order):
        if merits[place] == min(merits[near] for near in order[max(0, number - 1) : number + 2]):
            least.setdefault(merits[place], place)
    return [least[merit] for merit in sorted(least)]


def step_at(devices: int) -> int:
    """Return the resolution of a number of devices: 0.4 % from five hundred on."""
    return max(1, devices // _EXACTLY)


def _midpoint(fails: int, passes: int) -> int:
    return (fails + passes) // 2


def least_number(
    meets: Callable[[int], bool],
    start: int,
    lowest: int,
    most: int = MOST_DEVICES,
    parts: float = inf,
    *,
    between: Callable[[int, int], int] = _midpoint,
) -> int | None:
    """Return the least number from ``lowest`` on that meets, if all above do, by growing steps from ``start``.

    It is exact to ``step_at``, or to one of as many ``parts`` of its distance from ``start``. None if neither ``most``
    nor a number tried on the way meets. ``between`` as for ``narrow``.
    """
    step = step_at(start)
    if meets(start):
        passes, fails = start, lowest - 1
        while passes > lowest:
            tried = max(lowest, passes - step)
            if not meets(tried):
                fails = tried
                break
            passes, step = tried, max(2 * step, start // _SECOND_STEP)
    else:
        passes, fails = min(start + step, most), start
        while fails >= passes or not meets(passes):
            step = max(2 * step, start // _SECOND_STEP)
            if passes >= most or (step >= _HOPE and not meets(most)):
                return None
            fails, passes = passes, min(passes + step, most)
    return narrow(meets, fails, passes, lambda one: max(step_at(one), abs(one - start) / parts), between=between)


def narrow(
    meets: Callable[[int], bool],
    fails: int,
    passes: int,
    resolution: Callable[[int], float] = step_at,
    *,
    between: Callable[[int, int], int] = _midpoint,
) -> int:
    """Return the least number that meets, to the resolution there; every other one tried is a guess by ``between``."""
    guess = cycle((between, _midpoint))
    while passes - fails > resolution(passes):
        middle = next(guess)(fails, passes)
        passes, fails = (middle, fails) if meets(middle) else (passes, middle)
    return passes


def least_cap(demand: Demand, service: ServiceTimes, most: int) -> int:
    """Return the smallest batch limit to try; raise BadRequest if no batch up to ``most`` can take the requests."""
    largest = demand.samples_per_request[-1][0]
    if demand.is_whole and largest > most:
        raise BadRequest(
            f"a request of {largest} samples stays in one batch, and batches have up to {most}: {demand.batcher} "
            "refuses it",
            "measure larger batches, let --max-batch-size be larger, or send smaller requests",
        )
    if demand.is_whole:
        return max(largest, service.least_cap)
    if demand.mean_samples > _MOST_PARTS * most:
        raise BadRequest(
            f"requests have {demand.mean_samples:.4g} samples on average, and batches up to {most}: each is split into "
            f"more than {_MOST_PARTS}, which is not simulated",
            "measure larger batches, or let --max-batch-size be larger",
        )
    return min(most, ceil(demand.mean_samples / _PARTS))


def alone_ms(service: ServiceTimes, demand: Demand) -> float:
    """Return the latency percentile of lone requests, in ms; for split requests, that of one sample."""
    share = demand.percentile / 100
    if not demand.is_whole:
        return float(np.quantile(service.curve_ms(1), share)) + demand.overhead_per_answer_ms
    curves, weights = [], []
    for samples, its_share in demand.samples_per_request:
        curve = service.curve_ms(samples)
        curves.append(curve + demand.overhead_per_request_ms * (1 - samples * service.items_per_sample))
        weights.append(np.full(len(curve), its_share / len(curve)))
    times = np.concatenate(curves)
    alone = float(np.quantile(times, share, method="inverted_cdf", weights=np.concatenate(weights)))
    return alone + demand.overhead_per_answer_ms


def count_devices(devices: int) -> str:
    return f"{devices} device{'s' * (devices > 1)}"


def rounded_up(value: float) -> float:
    """Return a value above 0, rounded up to four significant digits."""
    step = 10.0 ** (floor(log10(value)) - 3)
    return ceil(value / step) * step
