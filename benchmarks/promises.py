"""Check relations between plans of ``tputfind size``, on every record of ``results/``, and count how often they hold.

    PYTHONPATH=tests python benchmarks/promises.py > results/simulated/sizing/promises.txt

A higher rate, a tighter target, burstier requests, a spare device, a lower utilization and a smaller batch limit need
no fewer devices, within the stated ranges; the devices also suffice under other streams, and one fewer does not. Each
broken relation is shown with the command that reproduces it.
"""

from __future__ import annotations

import argparse
from collections import Counter

from support.promises import LOOSE, MIDDLING, TIGHT, Case, records, told


def main() -> None:
    """Print the broken relations, then how often each was kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=1, help="take one case in so many")
    parser.add_argument("--options", default="", help="of the demand, as batcher=ray")
    asked = parser.parse_args()
    targets = TIGHT, MIDDLING, LOOSE
    cases = [
        Case(name, target, 2.6 + 1.7 * (number % 5), asked.options)
        for number, name in enumerate(records())
        for target in targets
    ]
    kept: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    for case in cases[:: asked.every]:
        for each in told(case):
            tried[each.promise] += 1
            kept[each.promise] += each.kept
            if not each.kept:
                print(f"broken, {each.promise}: {each.seen}", flush=True)
    for promise, times in tried.items():
        print(f"{promise}: kept {kept[promise]} of {times} times")


if __name__ == "__main__":
    main()
