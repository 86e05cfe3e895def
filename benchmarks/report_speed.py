"""The section on speed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.cells import Record
from benchmarks.tables import Figures, table

TEXT = """## Speed

Medians of runs that take turns in one process; float64, 8 inputs, points and Matérn-5/2 in all models. A step is the
ELBO and its gradient in every parameter, at N = 4096; peers have M + K points. `share` is the rate of flops of our step
(products, solves and factorisations of its graph) relative to that of a matrix product of the same sizes by
TensorFlow in the same run; PyTorch has a product of its own, whose rate is beside it. `floor` is what our step would
take if all its flops were done at the rate of that product, relative to the time of GPyTorch: about the best that these
operations can come to on TensorFlow. The allocator is told to keep memory, for all models (not where memory is
measured): see [large data](large_data.md#memory-that-comes-and-goes)."""


def section(records: Sequence[Record], figures: Figures) -> str:
    """Tables of whatever was measured."""
    del figures
    kinds: dict[str, list[Record]] = {}
    for record in records:
        kinds.setdefault(record["settings"]["what"].split()[0], []).append(record)
    makers = {"step": _steps, "memory": _memory, "growth": _growth, "covariances": _plain, "deep": _plain}
    makers |= {"prediction": _nested, "small": _nested}
    parts = [TEXT]
    for kind, make in makers.items():
        if kind in kinds:
            chosen = sorted(kinds[kind], key=lambda r: (r["settings"]["threads"], r["settings"]["size"]))
            parts.append(make(chosen))
    return "\n\n".join(parts)


def _steps(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        settings, results = record["settings"], record["results"]
        seconds = results["seconds"]
        ratios = [
            f"{seconds['ours'] / seconds[peer]:.2f}" if peer in seconds else "" for peer in ("GPflow", "GPyTorch")
        ]
        floor = results["flops"] / results["product_rate"]
        rows.append(
            [
                str(settings["threads"]),
                str(settings["size"]),
                str(settings["N"]),
                f"{1e3 * seconds['ours']:.0f}",
                *ratios,
                f"{floor / seconds['GPyTorch']:.2f}" if "GPyTorch" in seconds else "",
                f"{results['rate'] / 1e9:.1f}",
                f"{results['product_rate'] / 1e9:.1f}",
                f"{results['torch_product_rate'] / 1e9:.1f}" if "torch_product_rate" in results else "",
                f"{results['share']:.2f}",
                f"{record['timings']['load_at_start']:.1f}",
            ]
        )
    head = ["threads", "M = K", "N", "ours, ms", "/ GPflow", "/ GPyTorch", "floor / GPyTorch", "GF/s", "product GF/s"]
    head += ["torch product GF/s", "share", "load"]
    return "### Training step\n\n" + table(head, rows)


def _memory(records: Sequence[Record]) -> str:
    rows = []
    for size in sorted({record["settings"]["size"] for record in records}):
        used = {
            r["settings"]["what"].removeprefix("memory "): r["results"]["peak_megabytes"]
            - r["results"]["before_megabytes"]
            for r in records
            if r["settings"]["size"] == size
        }
        rows.append([str(size), *(f"{used[name]:.0f}" if name in used else "" for name in ("ours", "gpflow"))])
    return "### Peak memory of a step\n\nMegabytes above the memory of a tiny step, N = 4096.\n\n" + table(
        ["M = K", "ours", "GPflow, M + K"], rows
    )


def _growth(records: Sequence[Record]) -> str:
    rows = []
    for record in records:
        name = record["settings"]["what"].removeprefix("growth ")
        seconds = record["results"]["seconds"]
        listed = ", ".join(f"{size}: {1e3 * value:.0f}" for size, value in seconds.items())
        last = list(seconds.items())[-2:]
        local = np.log(last[1][1] / last[0][1]) / np.log(float(last[1][0]) / float(last[0][0]))
        rows.append([name, listed, f"{record['results']['exponent']:.2f}", f"{local:.2f}"])
    head = ["size", "milliseconds", "fitted exponent", "exponent of the last two"]
    text = (
        "### Growth\n\nFrom N = 2048, M = K = 256, P = 1, points; L with softplus units and the arc-cosine kernel.\n\n"
    )
    return text + table(head, rows)


def _plain(records: Sequence[Record]) -> str:
    rows = [
        [str(record["settings"]["threads"]), name, f"{1e3 * seconds:.1f}"]
        for record in records
        for name, seconds in record["results"]["seconds"].items()
    ]
    title = {"covariances": "Covariances: Kuf [256, 4096] and its gradient", "deep step": "A step of `fit`, two layers"}
    return f"### {title[records[0]['settings']['what']]}\n\n" + table(["threads", "what", "milliseconds"], rows)


def _nested(records: Sequence[Record]) -> str:
    rows = [
        [str(record["settings"]["threads"]), outer, name, f"{1e3 * seconds:.2f}"]
        for record in records
        for outer, inner in record["results"]["seconds"].items()
        for name, seconds in inner.items()
    ]
    is_step = records[0]["settings"]["what"] == "small step"
    title = "A step at N = 1024, M = K = 128, Matérn-5/2" if is_step else "Prediction, M = K = 128"
    return f"### {title}\n\n" + table(["threads", "outputs P" if is_step else "rows", "what", "milliseconds"], rows)
