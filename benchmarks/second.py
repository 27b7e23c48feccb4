"""Compare plans of ``tputfind size`` with a second simulator, which shares no code with the first.

    PYTHONPATH=tests python benchmarks/second.py > results/simulated/sizing/second.txt

Each line is one of 22 plans: its percentile by both simulators, their difference, and whether the second one also finds
that the devices meet the target and that one fewer does not, with any measured batch size as the batch limit.
"""

from __future__ import annotations

import argparse

from support.second_plans import PLANS, compared, planned


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200_000, help="in each of five streams, at the least")
    asked = parser.parse_args()
    print("devices       cap  target  percentile ms  second ms  apart   holds  fewer fails  plan")
    agree = 0
    for name, options in PLANS:
        found = planned(name, options)
        both = compared(name, found, requests=asked.requests, batches=400, streams=5, every_cap=True)
        outcome = found.outcome
        devices = f"{outcome.devices} ({found.fewest} to {found.most})"
        print(
            f"{devices:13} {outcome.batch_cap:4} {found.demand.target_ms:6g}  {outcome.tail_ms:13.4g}  "
            f"{both.second.tail_ms:9.4g}  {both.apart:+6.1%}  {_yes_or_no(holds=both.holds):5}  "
            f"{_yes_or_no(holds=both.fewer_fail):11}  {name} {options}",
            flush=True,
        )
        agree += both.agrees and both.holds and both.fewer_fail
    print(f"{agree} of {len(PLANS)} plans agree")


def _yes_or_no(*, holds: bool) -> str:
    return "yes" if holds else "no"


if __name__ == "__main__":
    main()
