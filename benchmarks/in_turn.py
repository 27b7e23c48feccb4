"""Count correct verdicts of ``tputfind compare --run``: equal models, and pairs in which NEW has a few layers more.

Run it on a CPU, however noisy; it prints a line for each comparison, and then the counts of verdicts::

    python benchmarks/in_turn.py --repeats 10 > results/cpu/in_turn.txt
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import msgspec

from tputfind.analysis.compare import Comparison

MODELS = """
import torch


def model(layers):
    net = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(layers)))
    return net, lambda batch: torch.randn(batch, 256)


"""
LAYERS = {"equal": 100, "3 % slower": 103, "5 % slower": 105}


def compared(folder: Path, layers: int, seed: int) -> Comparison:
    """Return the comparison of 100 layers with ``layers``."""
    saved = folder / "compared.json"
    model = f"{folder}/models.py:layers_"
    arguments = f"--device cpu --seed {seed} --quiet --overwrite --save {saved}".split()
    command = [sys.executable, "-m", "tputfind", "compare", "--run", f"{model}100", f"{model}{layers}", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (found,) = msgspec.json.decode(saved.read_bytes(), type=list[Comparison])
    return found


def main() -> None:
    """Compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0, help="continues an earlier run")
    given = parser.parse_args()
    seeds = range(given.first_seed, given.first_seed + given.repeats)
    counts: dict[str, Counter[str]] = {name: Counter() for name in LAYERS}
    with tempfile.TemporaryDirectory() as home:
        factories = (f"def layers_{count}():\n    return model({count})\n\n\n" for count in LAYERS.values())
        Path(home, "models.py").write_text(MODELS + "".join(factories))
        for seed in seeds:
            for name, layers in LAYERS.items():
                one = compared(Path(home), layers, seed)
                row = one.rows[0]
                counts[name][row.verdict] += 1
                interval = "" if row.low is None else f" ({row.low:.4f} to {row.high:.4f})"
                rounds = len(one.turns[0].rounds)
                print(
                    f"{name}: {row.verdict}, {row.ratio:.4f}{interval}, {rounds} rounds, {one.seconds:.0f} s",
                    flush=True,
                )
    for name, found in counts.items():
        print(f"{name}, {len(seeds)} times: {', '.join(f'{number} {verdict}' for verdict, number in found.items())}")


if __name__ == "__main__":
    main()
