"""Write the index of ``results/``: every file, by hardware and subject, and the main figures of each record.

    python benchmarks/index.py

Writes ``results/README.md``; ``--to FILE`` writes elsewhere.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from tputfind.analysis.answers import fastest
from tputfind.record.files import load_records

RESULTS = Path(__file__).parents[1] / "results"
HARDWARE = {
    "cpu": "Two cores of a shared virtual machine, without a GPU",
    "nvidia-h200": "One NVIDIA H200",
    "nvidia-h200-x2": "Two NVIDIA H200 of one host",
    "simulated": "Simulations, which need no hardware",
}
SUBJECTS = {
    ".": "Whole runs of scripts",
    "agreement": "The same rows by plain loops: `benchmarks/agreement.py`",
    "all-busy": "Each device alone, then all at once: `tputfind MODEL --device all --each --all-busy`",
    "clocks": "Ways of timing: `tputfind clocks`",
    "default": "Whole runs with default options",
    "fleet": "Many jobs on many nodes: `benchmarks/fleet_scale.py`",
    "plan": "Intervals and budgets: `benchmarks/plan.py`",
    "recipes": "Eager, `torch.compile` and CUDA graphs at one batch size",
    "search": "Searches and forecasts: `search.py`, `policies.py`, `on_fake.py`",
    "serving": "Predictions and real servers: `benchmarks/serve.py`, `benchmarks/serve_fleet.py`",
    "sizing": "Checks of the simulation: `benchmarks/servers.py`, `ranges.py`, `size_times.py`",
    "tests": "Tests on a GPU: `pytest -m gpu -s -v`",
    "timing": "The cost of measuring: `benchmarks/stages.py`",
    "training": "Training: forecasts (`training_forecasts.py`), and two devices against bare loops (`ranks.py`)",
    "tune": "Races of variants: `tputfind tune`",
    "verdicts": "Verdicts of `tputfind compare` on known pairs: `benchmarks/verdicts.py`",
}


def main() -> None:
    """Write the index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=RESULTS / "README.md")
    parser.parse_args().to.write_text(index(RESULTS))


def index(results: Path) -> str:
    """Return the index as Markdown: a heading for each hardware, a table for each subject."""
    lines = [
        "# Results",
        "",
        "Files of the tool and its benchmarks, with figures as measured. `tputfind report FILE.json` shows a record.",
        "[Evidence](../docs/evidence.md) lists the claims that rest on them.",
        "`python benchmarks/index.py` writes this page.",
    ]
    for hardware in sorted(path for path in results.iterdir() if path.is_dir()):
        lines += ["", f"## {HARDWARE[hardware.name]}"]
        files = sorted((path for path in hardware.rglob("*") if path.is_file()), key=lambda path: (path.parent, path))
        for folder, inside in groupby(files, key=lambda path: path.parent):
            lines += ["", f"### {SUBJECTS[str(folder.relative_to(hardware))]}", "", *_table(results, list(inside))]
    return "\n".join(lines) + "\n"


def _table(results: Path, files: list[Path]) -> list[str]:
    records = [path for path in files if path.suffix == ".json" and path.parent.name not in ("clocks", "tune")]
    others = [path for path in files if path not in records]
    lines = []
    if records:
        lines += ["| file | command | largest | fastest | torch | measured |", "|---" * 6 + "|"]
        lines += [_line(results, path) for path in records]
    if others:
        lines += [""] if records else []
        lines += [f"- [{path.name}]({path.relative_to(results)})" for path in others]
    return lines


def _line(results: Path, path: Path) -> str:
    """Return the line of a file: of several records, the fastest."""
    pairs = [(record, fastest(record.rows)) for record in load_records(path)]
    record, best = max(pairs, key=lambda pair: (pair[1] and pair[1].samples_per_s) or 0.0)
    name = path.relative_to(results)
    cells = [
        f"[{path.stem}]({name})",
        f"`{record.command}`" if record.command else "",
        f"{record.edge.largest_batch}" if record.edge and record.edge.largest_batch else "",
        f"{best.batch_size}, {best.samples_per_s:.0f}/s" if best and best.samples_per_s else "",
        record.environment.torch,
        f"{record.started[:10]}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
