"""Where we lose: every comparison of the page that another model or a published number wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import paper
from benchmarks.cells import Record
from benchmarks.report_uci import KEYS, METRICS
from benchmarks.tables import LABELS, MODELS, RECIPES, group, score

TEXT = """## Where we lose

Every comparison of this page that goes against us, gathered from the same files."""


def section(records: dict[str, list[Record]]) -> str:
    """A list of all that was lost, by experiment."""
    makers = {"uci": _uci, "deep": _deep, "snelson": _snelson, "airline": _airline, "calibration": _calibration}
    makers["speed"] = _speed
    lines = [line for name, make in makers.items() for line in make(records[name])]
    return TEXT + "\n\n" + ("\n".join(f"- {line}" for line in lines) or "Nothing, of what was run.")


def _uci(records: Sequence[Record]) -> Iterator[str]:
    collapsed = [record for record in records if record["settings"]["scheme"] == "collapsed"]
    behind: dict[tuple[str, str, str], list[str]] = {}
    for key, found in group(collapsed, *KEYS).items():
        published = paper.UCI.get(key)
        for metric in METRICS if published is not None else ():
            ours, theirs = score(found, metric).mean, getattr(published, metric)
            if ours > theirs.mean + paper.ROUNDING:
                deviations = (ours - theirs.mean) / max(theirs.deviation, paper.ROUNDING)
                size = f"({key[3]}, {key[4]}) {metric.upper()} by {deviations:.1f} sd"
                behind.setdefault(key[:3], []).append(size)
    for (data_set, features, kernel), sizes in behind.items():
        yield f"UCI, {data_set}, {LABELS[features]}, {LABELS[kernel]}: behind the paper at {', '.join(sizes)}."


def _deep(records: Sequence[Record]) -> Iterator[str]:
    for (data_set, layers), found in sorted(group(records, "data", "layers").items()):
        published = paper.GPFLUX[data_set][layers - 1][1]
        models = group(found, "model", "recipe")
        for (model, recipe), ours in models.items():
            if model == "gpflux":
                continue
            name = f"Deep, {data_set}, layers: {layers}, {MODELS[model]}, {RECIPES[recipe]}: NLPD"
            nlpd = score(ours, "nlpd_standardised").mean
            if nlpd > published:
                yield f"{name} {nlpd:.3f}, GPflux published {published:.3f}."
            peer_recipe = "gpflux" if recipe == "gpflux" else "ours"
            pair = _on_common_splits(ours, models.get(("gpflux", peer_recipe), []))
            if not all(pair):
                continue
            nlpd, theirs = (score(some, "nlpd_standardised").mean for some in pair)
            if nlpd > theirs:
                yield f"{name} {nlpd:.3f}, GPflux here with {RECIPES[peer_recipe]}, same splits, {theirs:.3f}."


def _on_common_splits(left: Sequence[Record], right: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """The records of either whose split the other has too."""
    common = {record["settings"]["split"] for record in left} & {record["settings"]["split"] for record in right}
    kept = [[record for record in some if record["settings"]["split"] in common] for some in (left, right)]
    return kept[0], kept[1]


def _snelson(records: Sequence[Record]) -> Iterator[str]:
    for (kernel, features), found in group(records, "kernel", "features").items():
        by_size = group(found, "L", "K")
        if not {(16, 0), (8, 8)} <= set(by_size):
            continue
        for metric, digits, name in (("elbo", 1, "ELBO"), ("iterations_per_second", 0, "iterations per second")):
            orthogonal, larger = (score(by_size[size], metric).mean for size in ((8, 8), (16, 0)))
            if orthogonal < larger:
                yield (
                    f"Snelson, {LABELS[features]}, {LABELS[kernel]}: {name} {orthogonal:.{digits}f} of L = 8 with "
                    f"K = 8, {larger:.{digits}f} of L = 16."
                )


def _airline(records: Sequence[Record]) -> Iterator[str]:
    for (size, seconds), found in sorted(group(records, "base_size", "seconds").items()):
        nlpd = {key: score(some, "nlpd").mean for key, some in group(found, "features", "M", "K").items()}
        orthogonal = nlpd.get(("softplus", size, size))
        for (features, num_base, num_orthogonal), other in nlpd.items():
            if orthogonal is not None and other < orthogonal:
                yield (
                    f"Airline, M = {size}, {seconds:g} s: softplus (M, M) has NLPD {orthogonal:.4f}, "
                    f"{LABELS[features]} ({num_base}, {num_orthogonal}) {other:.4f}."
                )


def _calibration(records: Sequence[Record]) -> Iterator[str]:
    for (data_set,), found in group(records, "data").items():
        errors = {key: score(some, "calibration_error").mean for (key,), some in group(found, "model").items()}
        for model in ("orthogonal", "deep"):
            if errors.get(model, 0.0) > errors.get("svgp", float("inf")):
                yield (
                    f"Calibration, {data_set}: error {errors[model]:.3f} of the {model} model, {errors['svgp']:.3f} of "
                    "SVGP."
                )


def _speed(records: Sequence[Record]) -> Iterator[str]:
    for record in records:
        settings, results = record["settings"], record["results"]
        place = f"M = K = {settings['size']}, threads: {settings['threads']}"
        if settings["what"] == "step":
            seconds = results["seconds"]
            for peer in ("GPflow", "GPyTorch"):
                if peer in seconds and seconds["ours"] > seconds[peer]:
                    yield f"Speed, step, {place}: {seconds['ours'] / seconds[peer]:.2f} times the time of {peer}."
        if settings["what"] == "growth N" and results["exponent"] > 1.05:
            yield f"Speed: the step grows like N to the power of {results['exponent']:.2f}."
