"""Measure the gain of ``tputfind tune`` on a CPU: the winner of each model and the plain variant, timed again in turn.

Run it on a quiet machine; it prints a line for each model::

    python benchmarks/tuned.py --budget 2min > results/cpu/tuned.txt
"""

from __future__ import annotations

import argparse
from typing import Any, Final

import msgspec

import tputfind
from tputfind.analysis.race import recipe_of
from tputfind.processes.children import Children
from tputfind.runners import compare
from tputfind.session.progress import Silent

MODELS: Final[dict[str, dict[str, Any]]] = {
    "mobilenet_v3_small": {"image_size": 64},
    "resnet18": {"image_size": 64},
    "shufflenet_v2_x1_0": {"image_size": 64},
    "squeezenet1_1": {"image_size": 64},
    "timm:vit_tiny_patch16_224": {},
    "timm:mixer_s32_224": {},
}

_COMPARISON_S: Final = 90.0
"""Maximum seconds for the comparison of the winner with the plain variant; a round of large batches takes long."""


def main() -> None:
    """Race, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--budget", default="2min")
    given = parser.parse_args()
    for model in given.models:
        race = tputfind.tune(model, device="cpu", budget=given.budget, **MODELS[model])
        plain = race.contenders[0].spec
        beside = (
            msgspec.structs.replace(one, budget_s=_COMPARISON_S, batch_sizes=(race.batch_size,))
            for one in (plain, race.winner)
        )
        with Children() as old, Children() as new:
            asked = compare.Asked((next(beside), next(beside)))
            found = compare.measure(asked, (old, new), Silent()).comparison
        (row,) = found.rows
        known = "" if row.low is None else f" ({row.low:.3f} to {row.high:.3f})"
        untried = ", ".join(one.spec.mode for one in race.untried) or "none"
        print(
            f"{model}, batch {race.batch_size}: {recipe_of(race.winner)}, {row.ratio:.3f} times the plain one{known}, "
            f"raced for {race.seconds:.0f} s, untried: {untried}",
            flush=True,
        )


if __name__ == "__main__":
    main()
