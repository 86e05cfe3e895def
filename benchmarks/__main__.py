"""Runs the experiments: `python -m benchmarks uci --data-dir DIR`, then `python -m benchmarks report`.

Every finished cell is kept in a JSON file, and a second start goes on where the first one ended, however it ended. What
is behind `--quick` is a subset of everything, for `make bench`. Programs that measure one thing, and print it, are
beside it: `python -m benchmarks.step`, `deep_step`, `predict`, `covariances`, `natural`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
QUICK_RESULTS = Path("build") / "benchmarks"  # never among those that are kept
DOCS = Path(__file__).parent.parent / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """The program; returns its exit status."""
    from benchmarks import data, runner
    from benchmarks.cells import Context, Store
    from benchmarks.experiments import EXPERIMENTS

    options = _parser().parse_args(arguments)
    results = options.results or (QUICK_RESULTS if options.quick else RESULTS)
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", str(options.threads))
    os.environ.setdefault("TF_NUM_INTEROP_THREADS", str(options.threads))
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if options.experiment == "report":
        from benchmarks import report

        print(f"Written: {report.write(Store(results), options.docs)}")
        return 0
    names = list(EXPERIMENTS) if options.experiment == "all" else [options.experiment]
    status, left_out = 0, []
    for name in names:
        experiment = EXPERIMENTS[name]
        try:
            cells = select(experiment.quick if options.quick else experiment.cells, options.only)
            for data_set in {str(cell["data"]) for cell in cells if "data" in cell}:
                data.check(data_set, options.data_dir)
        except (data.DataError, ValueError) as error:
            print(f"{name}, left out: {error}", file=sys.stderr)
            left_out.append(name)
            continue
        context = Context(options.data_dir, results)
        outcome = runner.run(experiment, cells, Store(results), context, budget=options.budget)
        print(
            f"{name}: {len(outcome.finished)} cells finished, {len(outcome.skipped)} were there, "
            f"{len(outcome.failed)} failed, {len(outcome.left)} left. Results: {results / name}"
        )
        status = max(status, 1 if outcome.failed else 0)
    return 2 if left_out == names else status


def select(cells: Sequence[dict[str, object]], only: Sequence[str]) -> list[dict[str, object]]:
    """The cells that meet all conditions, each as `split=0,1`."""
    chosen = list(cells)
    for condition in only:
        key, _, values = condition.partition("=")
        known = {name for cell in cells for name in cell}
        if key not in known or not values:
            raise ValueError(
                f"Expected conditions as NAME=VALUE,VALUE with a name among {sorted(known)}. Got: {condition!r}."
            )
        found = {str(cell.get(key)) for cell in cells}
        unknown = set(values.split(",")) - found
        if unknown:
            raise ValueError(f"Expected `{key}` among {', '.join(sorted(found))}. Got: {', '.join(sorted(unknown))}.")
        chosen = [cell for cell in chosen if str(cell.get(key)) in values.split(",")]
    return chosen


def _parser() -> argparse.ArgumentParser:
    from benchmarks.experiments import EXPERIMENTS

    lines = [f"  {name:12} {experiment.description}" for name, experiment in EXPERIMENTS.items()]
    lines += [
        "  all          all of these",
        "  report       tables and figures from the results, for the documentation",
    ]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        epilog="experiments:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("experiment", choices=[*EXPERIMENTS, "all", "report"], metavar="experiment")
    parser.add_argument(
        "--data-dir", type=Path, help="directory of .npz files with X and Y (default: fetch from OpenML)"
    )
    parser.add_argument("--budget", type=float, metavar="MINUTES", help="start no cell of an experiment after these")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME=VALUES", help="as: data=yacht,energy split=0")
    parser.add_argument("--quick", action="store_true", help="a few small cells instead of all")
    parser.add_argument("--threads", type=int, default=1, help="threads of TensorFlow (default: 1)")
    parser.add_argument(
        "--results", type=Path, help="directory of results (default: benchmarks/results; with --quick build/benchmarks)"
    )
    parser.add_argument("--docs", type=Path, default=DOCS, help="directory that `report` writes to (default: docs)")
    return parser


if __name__ == "__main__":
    from benchmarks.allocator import keep_memory

    keep_memory()
    sys.exit(main())
