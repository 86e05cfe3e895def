"""Writes the table of what was tried into docs/reliability.md, from a run: table.py RECORDS DOCUMENT SECONDS."""

from __future__ import annotations

import collections
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
AXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "kernel": lambda r: r["kernel"],
    "base / orthogonal features": lambda r: r["pair"],
    "inputs": lambda r: _range(r["num_inputs"], (1, 2, 5, 10, 20, 40)),
    "base features": lambda r: _range(r["num_inducing"], (1, 5, 30, 80)),
    "orthogonal features": lambda r: _range(r["num_orthogonal"], (0, 5, 30, 80)),
    "depth": lambda r: r["depth"],
    "dtype": lambda r: r["dtype"],
    "whitened": lambda r: "yes" if r["whiten"] else "no",
    "likelihood": lambda r: r["likelihood"],
    "batch size": lambda r: r["batch_size"],
    "learning rate": lambda r: f"{r['learning_rate']:g}",
    "step": lambda r: {"graph": "compiled", "keras": "compiled by Keras", "eager": "eager"}[r["step"]],
}
FAULTS = ("damaged", "attacks", "saving", "kills", "multiworker", "long", "threads")
LEAST_RANDOM, MOST_SECONDS = 500, 3600
LIBRARIES = ("keras", "tensorflow", "tensorflow-probability", "gpflow", "numpy", "scipy")


def _range(value: int, ends: tuple[int, ...]) -> str:
    """The class of a number: up to which of the ends."""
    index = next((i for i, end in enumerate(ends) if value <= end), len(ends))
    if index == len(ends):
        return f"over {ends[-1]}"
    low = ends[index - 1] + 1 if index else ends[0]
    return str(low) if low == ends[index] else f"{low} to {ends[index]}"


def load(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("*.jsonl")) for line in path.read_text().splitlines()]


def table(header: Iterable[str], rows: Iterable[Iterable[Any]]) -> Iterator[str]:
    columns = list(header)
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    yield from ("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)
    yield ""


def random_section(records: list[dict[str, Any]]) -> Iterator[str]:
    outcomes = collections.Counter(r["outcome"] for r in records)
    trained, seconds = outcomes.pop("trained", 0), sum(r["seconds"] for r in records)
    yield (
        f"**Random configurations: {len(records)}**, {trained} of them trained for 20 steps, "
        f"{sum(outcomes.values())} refused by name ({', '.join(f'{k}: {v}' for k, v in sorted(outcomes.items()))}). "
        f"{seconds / max(len(records), 1):.1f} CPU seconds each."
    )
    yield ""
    rows = []
    for axis, of in AXES.items():
        counts = collections.Counter(of(r) for r in records if r["outcome"] == "trained")
        ordered = sorted(counts.items(), key=lambda item: _key(item[0]))
        rows.append((axis, ", ".join(f"{value} ({count})" for value, count in ordered)))
    yield from table(("", "values, and how many configurations trained with each"), rows)


def _key(value: Any) -> tuple[int, float, str]:
    first = str(value).split(" ", maxsplit=1)[0]
    try:
        return 0, float(first), str(value)
    except ValueError:
        return 1, 0.0, str(value)


def hostile_section(records: list[dict[str, Any]]) -> Iterator[str]:
    by_data: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for record in records:
        by_data[record["data"]].append(record)
    yield f"**Hostile data: {len(by_data)} data sets.**"
    yield ""
    rows = []
    for name, tried in by_data.items():
        outcome = ", ".join(sorted({r["outcome"] for r in tried}))
        with_what = sorted({f"{r['depth']} layer{'s' * (r['depth'] > 1)} {r['dtype']}" for r in tried})
        rows.append((name, outcome, ", ".join(with_what)))
    yield from table(("data", "outcome", "models"), sorted(rows, key=lambda row: (row[1] != "trained", row[0])))


def inputs_section(records: list[dict[str, Any]]) -> Iterator[str]:
    kernels = sorted({r["kernel"] for r in records})
    number = max((r["number"] for r in records), default=0)
    dtypes = " and ".join(sorted({r["dtype"] for r in records}))
    yield (
        f"**Hostile inputs with every kernel**: {number} of these data sets, those with hostile inputs, with "
        f"{', '.join(kernels)}, whitened or not, in {dtypes}: all trained, "
        "but for arccos of order 2 in float32 at inputs above 1e5, which `adapt` refuses by name, because their fourth "
        "powers do not fit into float32."
    )
    yield ""


def fault_section(records: list[dict[str, Any]]) -> Iterator[str]:
    rows = []
    faults = collections.Counter(r["fault"] for r in records if r["kind"] == "saving")
    for r in records:
        if r["kind"] == "damaged":
            what = f"{r['refused']} refused" + (f", {r['equal']} loaded exactly as saved" if r["equal"] else "")
            suffix = r["file"].partition(".")[2]
            rows.append((f"damaged `.{suffix}`, read by `{r['reader']}`", r["tried"], what))
        elif r["kind"] == "attacks":
            attacks = "files that try to run code: " + ", ".join(r["tried"])
            rows.append((attacks, len(r["tried"]), "all refused, nothing ran"))
        elif r["kind"] == "saving" and r["fault"] in faults:
            what = "an error, the previous file as it was, and nothing left over"
            rows.append((f"{r['fault']} while a file is saved", faults.pop(r["fault"]), what))
        elif r["kind"] == "kills":
            resumed = sum(epoch > 0 for epoch in r["first_epochs"])
            what = f"resumed {resumed} times after the last epoch, weights equal to the last bit"
            rows.append((f"training killed (SIGKILL) and started again, steps {r['steps']}", r["tried"], what))
        elif r["kind"] == "multiworker":
            rows.append((r["what"], 2, r["outcome"]))
        elif r["kind"] == "long":
            what = f"memory {r['growth']:+.1f} MiB and CPU time of a step x{r['ratio']:.2f} in the last half"
            rows.append((r["what"], r["number"], f"{what}, traced {r['traces']} times"))
        elif r["kind"] == "threads":
            rows.append(("threads that predict from one model", r["number"], "equal to one thread"))
    yield "**Faults and long runs.**"
    yield ""
    yield from table(("what", "number", "outcome"), rows)


def document(records: list[dict[str, Any]], seconds: float) -> str:
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in LIBRARIES)
    kinds = collections.defaultdict(list)
    for record in records:
        kinds[record["kind"]].append(record)
    faults = [r for kind in FAULTS for r in kinds[kind]]
    lines = [f"Python {platform.python_version()}, {versions}. {os.cpu_count()} cores, {seconds / 60:.0f} minutes.", ""]
    lines += [*random_section(kinds["random"]), *hostile_section(kinds["hostile"]), *inputs_section(kinds["inputs"])]
    lines += fault_section(faults)
    return "\n".join(lines)


def shortcomings(records: list[dict[str, Any]], seconds: float) -> Iterator[str]:
    """What a run lacks of what the document promises."""
    number = sum(r["kind"] == "random" for r in records)
    if number < LEAST_RANDOM:
        yield f"{number} random configurations, fewer than {LEAST_RANDOM}"
    missing = {"random", "hostile", "inputs", *FAULTS} - {r["kind"] for r in records}
    if missing:
        yield f"nothing of {sorted(missing)}"
    if seconds >= MOST_SECONDS:
        yield f"{seconds / 60:.0f} minutes, which should be below {MOST_SECONDS / 60:.0f}"


def main(folder: Path, target: Path, seconds: float) -> None:
    records = load(folder)
    lacking = list(shortcomings(records, seconds))
    if lacking:
        sys.exit(f"The table stays as it was. The run had {'; '.join(lacking)}.")
    text = target.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    target.write_text(f"{before}{BEGIN}\n\n{document(records, seconds).strip()}\n\n{END}{after}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
