"""Write the index of ``results/``: every file, by hardware and subject, and what each record says.

    python benchmarks/index.py

Writes ``results/README.md``; ``--to FILE`` writes elsewhere.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from tputfind import load_record
from tputfind.analysis.answers import fastest

RESULTS = Path(__file__).parents[1] / "results"
HARDWARE = {
    "cpu": "Two cores of a shared virtual machine, without a GPU",
    "nvidia-h100": "One NVIDIA H100 80GB HBM3",
    "nvidia-h100-x2": "Two NVIDIA H100 80GB HBM3 of one host",
    "nvidia-h200": "One NVIDIA H200",
    "nvidia-h200-x2": "Two NVIDIA H200 of one host",
    "simulated": "Simulations, which need no hardware",
}
SUBJECTS = {
    ".": "Whole runs of scripts and tests",
    "accelerator": "The backend of any accelerator beside that of CUDA",
    "agreement": "The same rows by plain loops: `benchmarks/agreement.py`",
    "all-busy": "Each device alone, then all at once: `tputfind MODEL --device all --each --all-busy`",
    "clocks": "Ways of timing side by side: `tputfind clocks`",
    "default": "Whole runs with default options",
    "fleet": "Many jobs on many nodes: `benchmarks/fleet_scale.py`",
    "kinds": "Segmentation, detection, video, language and training",
    "minute": "Whole runs by method 10 with default options",
    "plan": "When a row is known well enough, where the time goes, and what runs said after how many seconds: "
    "`benchmarks/plan.py`, `benchmarks/time_spent.py`",
    "ray": "Jobs of a Ray cluster of one node: `--ray`; `HEAD` stands for its address",
    "recipes": "Eager, `torch.compile` and CUDA graphs at one batch size",
    "search": "Searches against bisection, and forecasts without a device: `search.py`, `policies.py`, `on_fake.py`, "
    "`other_device.py`",
    "serving": "Predictions against real servers: `benchmarks/serve.py`, `benchmarks/serve_fleet.py`",
    "sizing": "Plans against a second simulator, servers' own code and known devices: `benchmarks/second.py`, "
    "`servers.py`, `ranges.py`, `promises.py`, `size_times.py`",
    "sweep-one-device": "Eight models in two dtypes on one device",
    "sweep-two-devices": "The same on two devices: `--device all`",
    "tests": "Tests on a GPU: `pytest -m gpu -s -v`",
    "thorough": "`--thorough` beside the default, one after the other",
    "timing": "What measuring costs, and power limits: `benchmarks/sampling.py`, `stages.py`, `power_limit.py`",
    "training": "Forecasts of training without a device: `benchmarks/training_forecasts.py`",
    "training/edges": "Largest batches of training that they are held against: `training_forecasts.py --measure`",
    "verdicts": "Verdicts of `tputfind compare` on known pairs: `benchmarks/verdicts.py`",
}


def main() -> None:
    """Write the index."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--to", type=Path, default=RESULTS / "README.md")
    parser.parse_args().to.write_text(index(RESULTS))


def index(results: Path) -> str:
    """Return the index as Markdown: a heading a hardware, a table a subject."""
    lines = [
        "# Results",
        "",
        "What the tool and its benchmarks wrote, untouched. `tputfind report FILE.json` shows a record.",
        "[Evidence](../docs/evidence.md) says which claim rests on which file.",
        "This page is written by `python benchmarks/index.py`.",
    ]
    for hardware in sorted(path for path in results.iterdir() if path.is_dir()):
        lines += ["", f"## {HARDWARE[hardware.name]}"]
        files = sorted((path for path in hardware.rglob("*") if path.is_file()), key=lambda path: (path.parent, path))
        for folder, inside in groupby(files, key=lambda path: path.parent):
            lines += ["", f"### {SUBJECTS[str(folder.relative_to(hardware))]}", "", *_table(results, list(inside))]
    return "\n".join(lines) + "\n"


def _table(results: Path, files: list[Path]) -> list[str]:
    records = [path for path in files if path.suffix == ".json" and path.parent.name != "clocks"]
    tables = [path for path in files if path.with_suffix(".json") in records and path not in records]
    others = [path for path in files if path not in records and path not in tables]
    lines = []
    if records:
        lines += ["| record | command | largest | fastest | method | torch | measured |", "|---" * 7 + "|"]
        lines += [_line(results, path, path.with_suffix(".csv") in tables) for path in records]
    if others:
        lines += [""] if records else []
        lines += [f"- [{path.name}]({path.relative_to(results)})" for path in others]
    return lines


def _line(results: Path, path: Path, has_csv: bool) -> str:
    record = load_record(path)
    name = path.relative_to(results)
    links = f"[{path.stem}]({name})" + (f" ([csv]({name.with_suffix('.csv')}))" if has_csv else "")
    best = fastest(record.rows)
    cells = [
        links,
        f"`{record.command}`" if record.command else "",
        f"{record.edge.largest_batch}" if record.edge and record.edge.largest_batch else "",
        f"{best.batch_size}, {best.samples_per_s:.0f}/s" if best and best.samples_per_s else "",
        f"{record.method}",
        record.environment.torch,
        f"{record.started[:10]}",
    ]
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
