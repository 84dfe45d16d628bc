"""The tables and figures of the paper as experiments (no torch here).

What a model refuses has no recipe, and is left out of the grid.
"""

from __future__ import annotations

from functools import cache

from ono.errors import InputError, nearest
from ono.experiments.grid import Cell, Experiment, Place, Table
from ono.train.recipe_files import packaged_recipes

BENCHMARKS = ("ns2d", "airfoil", "pipe", "darcy", "elasticity", "plasticity")
MODELS = (
    "fno",
    "galerkin",
    "geo-fno",
    "u-fno",
    "f-fno",
    "lsm",
    "gnot",
    "ono",
    "transolver",
    "deeponet",
)
ABLATED = ("airfoil", "elasticity", "pipe")
SAMPLES = (100, 200, 400, 600, 800, 1000, 1200)
FINER = (61, 85, 141, 211, 421)
LAYERS, WIDTHS = (2, 4, 6, 8, 10), (32, 64, 128, 256)
NO_ORTHO = "ono without orthogonalisation"
WIDE_30 = "ono-30, wide FFNs"
WITH_SURROUNDINGS = "ono with surroundings"
_TOLD_SURROUNDINGS = ("model.surroundings=32",)
_OUR_FORM = (
    "ONO is our form of it, the preset `default`: norms before the blocks, eight sets of 16 "
    "eigenfunctions, inner products with quadrature weights, eight layers on every benchmark"
)


def _one(cell: Cell, value: str = "test") -> Place:
    return Place((cell,), value)


def _main() -> Experiment:
    known = packaged_recipes()
    places = {
        (model, name): _one(Cell(f"{name}/{model}"))
        for name in BENCHMARKS
        for model in MODELS
        if f"{name}/{model}" in known
    }
    # Ours beside the paper's, where there is a mesh whose nodes have neighbours.
    places |= {
        (WITH_SURROUNDINGS, name): _one(Cell(f"{name}/ono", _TOLD_SURROUNDINGS))
        for name in BENCHMARKS
        if name != "elasticity"
    }
    note = (
        f"{_OUR_FORM}, and `efficient` attention where the paper has Nyström on all but ns2d and "
        "plasticity. On Darcy flow all operators also learn a tenth of the error of differences, "
        "as ONO does in its released code; FNO and LSM do not in theirs."
    )
    table = Table("main", "Main results", places, note)
    return Experiment("main", "every operator on every benchmark", (table,))


def _limited_data() -> Experiment:
    models = {
        "ono": ("ono", ()),
        NO_ORTHO: ("ono", ("model.eigen.norm=none",)),
        "geo-fno": ("geo-fno", ()),
        "deeponet": ("deeponet", ()),
    }
    # 1680 samples in the proportions of the full size: 1200 to train on, 240 and 240.
    places = {
        (row, str(count)): _one(
            Cell(f"elasticity/{model}", (f"data.train={count}", *changes), samples=1680)
        )
        for row, (model, changes) in models.items()
        for count in SAMPLES
    }
    table = Table("limited-data", "Elasticity with fewer samples", places, axis="training samples")
    return Experiment("limited-data", "error against the number of training samples", (table,))


def _runtime() -> Experiment:
    alike, precision = ("train.batch=8", "train.precision=tf32"), ("train.precision=tf32",)
    timed = {
        "fno": Cell("darcy/fno", (*alike, "model.layers=4"), "speed"),
        "galerkin": Cell("darcy/galerkin", alike, "speed"),
        "lsm": Cell("darcy/lsm", (*alike, "model.width=32", "model.basis=8"), "speed"),
    }
    for block in ("linear", "efficient", "nystrom"):
        changes = (*alike, "model.layers=4", "model.eigen.heads=1", *_attention(block))
        timed[f"ono, {block}"] = Cell("darcy/ono", changes, "speed")
    cost: dict[tuple[str, str], Place] = {}
    for row, cell in timed.items():
        cost[row, "epoch"] = Place((cell,), "epoch", "seconds")
        cost[row, "parameters"] = Place((cell,), "parameters", "millions")
        cost[row, "memory"] = Place((cell,), "memory", "GiB")
    known, size = packaged_recipes(), {}
    for row in ("fno", "u-fno", "lsm", "galerkin", "ono, linear", "ono, nystrom"):
        model, _, block = row.partition(", ")
        block_change = _attention(block) if block else ()
        # Geo-FNO is the FNO where there is no even grid.
        names = [f"{b}/{model}" for b in BENCHMARKS]
        names = [n if n in known else n.replace("/fno", "/geo-fno") for n in names]
        every = tuple(Cell(name, (*precision, *block_change), "speed") for name in names)
        size[row, "parameters"] = Place(every, "parameters", "millions")
        size[row, "memory"] = Place(every, "memory", "GiB")
    note = (
        "Steps on data with the shapes of Darcy flow at 85 × 85, batch 8, in TF32, an epoch of "
        "1000 samples. ONO has one set of 16 eigenfunctions, LSM a width of 32, 8 bases and four "
        "halvings of the grid, as the paper says. It does not say which benchmark its seconds are "
        "of, nor for how much work."
    )
    spread = (
        "From the smallest to the largest over the six benchmarks, each with its own recipe, in "
        "TF32. A complex weight counts as two numbers."
    )
    return Experiment(
        "runtime",
        "seconds, memory and parameters",
        (
            Table("runtime", "Runtime", cost, note),
            Table("size", "Parameters and memory", size, spread),
        ),
    )


def _super_resolution() -> Experiment:
    places = {}
    plain = ("data.resolution=43", "train.gradient_loss=0")
    rows = {"fno": ("fno", ()), "ono": ("ono", ()), WITH_SURROUNDINGS: ("ono", _TOLD_SURROUNDINGS)}
    for row, (model, changes) in rows.items():
        cell = Cell(
            f"darcy/{model}",
            (*plain, *changes),
            resolutions=FINER,
            pictured=row == "ono",
        )
        places[row, "43"] = _one(cell)
        for nodes in FINER:
            places[row, str(nodes)] = _one(cell, str(nodes))
    table = Table(
        "super-resolution",
        "Trained on Darcy flow at 43 × 43, tested on finer grids",
        places,
        "Trained on the error of the fields alone; the other tables of Darcy flow add a tenth of "
        "that of their differences.",
        axis="nodes along an axis",
    )
    return Experiment("super-resolution", "zero-shot super-resolution on Darcy flow", (table,))


def _temporal() -> Experiment:
    fewer = ("rollout.train_steps=8",)
    places = {
        (model, value): _one(Cell(f"ns2d/{model}", fewer, pictured=model == "ono"), value)
        for model in ("fno", "ono")
        for value in ("seen", "unseen")
    }
    note = (
        "Trained and chosen on times 11 to 18 (seen), tested on these and on 19 and 20 (unseen) in "
        "a free roll-out; the error of a sample is one norm over its points and these times."
    )
    table = Table("temporal", "Times that were not trained on", places, note)
    return Experiment("temporal", "seen and unseen times of Navier-Stokes", (table,))


def _attention(block: str) -> tuple[str, ...]:
    """Return the changes for an attention of the NN blocks, with its landmarks as published."""
    landmarks = ("model.lower.landmarks=256",) if block == "nystrom" else ()
    return f"model.lower.attention={block}", *landmarks


def _blocks() -> Experiment:
    places = {
        (block, name): _one(Cell(f"{name}/ono", _attention(block)))
        for block in ("linear", "nystrom", "galerkin", "softmax", "efficient")
        for name in ABLATED
    }
    table = Table("blocks", "Attention of the NN blocks", places, f"{_OUR_FORM}.")
    return Experiment("blocks", "which attention learns the eigenfunctions", (table,))


def _orthogonalisation() -> Experiment:
    norms = ("bn", "ln", "none", "ortho")
    places = {
        (norm, name): _one(Cell(f"{name}/ono", (f"model.eigen.norm={norm}",)))
        for norm in norms
        for name in ABLATED
    }
    as_published = {
        (norm, "elasticity"): _one(
            Cell("elasticity/ono", ("model.preset=paper", f"model.eigen.norm={norm}"))
        )
        for norm in norms
    }
    ours = f"{_OUR_FORM}, and `efficient` attention. The paper has Nyström."
    note = (
        "The released form: FFN(LN(h̃ + h)) after every layer, and inner products that are plain "
        "sums over the points."
    )
    return Experiment(
        "orthogonalisation",
        "what takes the place of orthogonalisation",
        (
            Table("orthogonalisation", "Orthogonalisation against normalisation", places, ours),
            Table("as-published", "The same in the form of the released code", as_published, note),
        ),
    )


def _scaling() -> Experiment:
    def sized(name: str, **changed: int) -> Place:
        # Written only where it differs from the recipe, so that no cell is run twice.
        usual = {"layers": 8, "width": 128}
        return _one(
            Cell(
                f"{name}/ono",
                tuple(f"model.{k}={v}" for k, v in changed.items() if v != usual[k]),
            )
        )

    pair = ("pipe", "elasticity")
    depth = {(name, str(n)): sized(name, layers=n) for name in pair for n in LAYERS}
    width = {(name, str(n)): sized(name, width=n) for name in pair for n in WIDTHS}
    deeper, wider = ("model.layers=30",), ("model.ffn_ratio=4",)
    deep = {
        (row, name): _one(Cell(f"{name}/ono", changes))
        for row, changes in (("ono-8", ()), ("ono-30", deeper), (WIDE_30, (*deeper, *wider)))
        for name in ("elasticity", "plasticity")
    }
    note = (
        "Thirty layers have 5 million parameters. With FFNs four times as wide as their inputs "
        "they have 11 million, as those of the paper have 10."
    )
    return Experiment(
        "scaling",
        "depth and width",
        (
            Table("depth", "Number of layers", depth, axis="layers"),
            Table("width", "Width", width, axis="width"),
            Table("deep", "Eight and thirty layers", deep, note),
        ),
    )


def _eigenfunctions() -> Experiment:
    places: dict[tuple[str, str], Place] = {}
    for case in ("white", "coloured", "indefinite", "repeated"):
        cell = Cell(f"eigenfunctions/{case}", kind="eigenfunctions")
        places[case, "angle of the spans"] = Place((cell,), "span", "degrees")
        places[case, "angle of the functions"] = Place((cell,), "functions", "degrees")
        places[case, "error of the eigenvalues"] = Place((cell,), "eigenvalues", "error")
    note = (
        "One layer of orthogonal attention learns (1 - l² d²/dx²)⁻¹ on an interval, l = 0.2, from "
        "random inputs. White: as the appendix assumes. Coloured: the inputs have most energy in "
        "the fifth to eighth mode. Indefinite: the second eigenvalue is negated, which a positive "
        "μ cannot follow. Repeated: on a circle, where eigenvalues come in pairs and only the span "
        "is determined."
    )
    table = Table("eigenfunctions", "Recovery of known eigenfunctions", places, note)
    return Experiment("eigenfunctions", "the claim of the appendix, and where it ends", (table,))


_MAKERS = {
    "main": _main,
    "limited-data": _limited_data,
    "runtime": _runtime,
    "super-resolution": _super_resolution,
    "temporal": _temporal,
    "blocks": _blocks,
    "orthogonalisation": _orthogonalisation,
    "scaling": _scaling,
    "eigenfunctions": _eigenfunctions,
}
NAMES = tuple(_MAKERS)


@cache
def experiment(name: str) -> Experiment:
    """Return the experiment of that name."""
    if name not in _MAKERS:
        raise InputError(f"no experiment is called {name!r}; {nearest(name, _MAKERS)}")
    return _MAKERS[name]()
