"""Where we lose: every comparison of the page that another model or a published number wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks import paper
from benchmarks.cells import Record
from benchmarks.report_uci import KEYS, METRICS
from benchmarks.tables import LABELS, MODELS, RECIPES, group, score

TEXT = """## Where we lose

Every comparison of this page, at as many features or inducing variables, that goes against us, gathered from the same
files."""


def section(records: dict[str, list[Record]]) -> str:
    """A list of all that was lost, by experiment."""
    makers = {
        "uci": _uci,
        "deep": _deep,
        "snelson": _snelson,
        "airline": _airline,
        "calibration": _calibration,
        "speed": _speed,
    }
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
        models = group(found, "model", "recipe")
        for (model, recipe), ours in models.items():
            if model == "gpflux":
                continue
            name = f"Deep, {data_set}, layers: {layers}, {MODELS[model]}, {RECIPES[recipe]}:"
            recipes = ("gpflux",) if recipe == "gpflux" else ("ours", "gpflux")
            peers = {RECIPES[other]: models.get(("gpflux", other), []) for other in recipes}
            for published, metric in zip(paper.GPFLUX[data_set][layers - 1], METRICS):
                mean = score(ours, f"{metric}_standardised").mean
                if mean > published:
                    yield f"{name} {metric.upper()} {mean:.3f}, GPflux published {published:.3f}."
                for loss in _deep_losses_to_peers(ours, peers, f"{metric}_standardised"):
                    yield f"{name} {metric.upper()} {loss}"


def _deep_losses_to_peers(ours: Sequence[Record], peers: dict[str, list[Record]], metric: str) -> Iterator[str]:
    for recipe, others in peers.items():
        for mean, theirs, num in _means_in_common(ours, others, metric):
            if mean > theirs:
                yield f"{mean:.3f}, GPflux here with {recipe} {theirs:.3f} (splits: {num})."


def _snelson(records: Sequence[Record]) -> Iterator[str]:
    for (kernel, features), found in group(records, "kernel", "features").items():
        by_size = group(found, "L", "K")
        orthogonal, larger = (by_size.get(size, []) for size in ((8, 8), (16, 0)))
        for metric, digits, name in (("elbo", 1, "ELBO"), ("iterations_per_second", 0, "iterations per second")):
            for ours, theirs, _ in _means_in_common(orthogonal, larger, metric, key="repetition"):
                if ours < theirs:
                    yield (
                        f"Snelson, {LABELS[features]}, {LABELS[kernel]}: {name} {ours:.{digits}f} of L = 8 with K = 8, "
                        f"{theirs:.{digits}f} of L = 16."
                    )


def _airline(records: Sequence[Record]) -> Iterator[str]:
    for (size, seconds), found in sorted(group(records, "base_size", "seconds").items()):
        models = group(found, "features", "M", "K")
        orthogonal = models.get(("softplus", size, size), [])
        for (features, num_base, num_orthogonal), other in models.items():
            for ours, theirs, num in _means_in_common(orthogonal, other, "nlpd"):
                if theirs < ours:
                    yield (
                        f"Airline, M = {size}, {seconds:g} s: softplus (M, M) has NLPD {ours:.4f}, {LABELS[features]} "
                        f"({num_base}, {num_orthogonal}) {theirs:.4f} (splits: {num})."
                    )


def _calibration(records: Sequence[Record]) -> Iterator[str]:
    for (data_set,), found in group(records, "data").items():
        models = {model: some for (model,), some in group(found, "model").items()}
        for model in ("orthogonal", "deep"):
            pair = models.get(model, []), models.get("svgp", [])
            for ours, theirs, _ in _means_in_common(*pair, "calibration_error"):
                if ours > theirs:
                    yield f"Calibration, {data_set}: error {ours:.3f} of the {model} model, {theirs:.3f} of SVGP."


def _means_in_common(
    left: Sequence[Record], right: Sequence[Record], metric: str, key: str = "split"
) -> Iterator[tuple[float, float, int]]:
    """Means of either over the splits that both have, and how many these are; nothing if there are none."""
    common = {record["settings"][key] for record in left} & {record["settings"][key] for record in right}
    if common:
        kept = [[record for record in some if record["settings"][key] in common] for some in (left, right)]
        yield score(kept[0], metric).mean, score(kept[1], metric).mean, len(common)


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
