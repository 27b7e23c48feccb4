"""What plans of ``tputfind size`` promise of each other, on every record of ``results/``: how often it is kept.

    PYTHONPATH=tests python benchmarks/promises.py > results/simulated/sizing/promises.txt

A higher rate, a tighter target, burstier requests, a spare device, a lower utilization and a smaller batch limit take
no fewer devices, within the stated ranges; the devices hold under other streams, and one fewer does not. Each
broken promise is shown with the command that asks for it.
"""

from __future__ import annotations

import argparse
from collections import Counter

from support.promises import LOOSE, MIDDLING, TIGHT, Case, records, told


def main() -> None:
    """Print what was broken, then how often each promise was kept."""
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
