"""The numbers of the paper, as printed: Improved Operator Learning by Orthogonal Attention.

Every entry says where it stands. A pair is a range. Rows and columns are named as in `catalogue`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ono.experiments.catalogue import ABLATED, BENCHMARKS, FINER, NO_ORTHO, WIDE_30

Number = float | tuple[float, float]


@dataclass(frozen=True, slots=True)
class Published:
    """The numbers of a table or figure, and where they were printed."""

    origin: str
    numbers: Mapping[tuple[str, str], Number]


def _lines(
    columns: tuple[str, ...], rows: Mapping[str, tuple[Number | None, ...]]
) -> dict[tuple[str, str], Number]:
    return {
        (row, column): value
        for row, values in rows.items()
        for column, value in zip(columns, values, strict=True)
        if value is not None
    }


PUBLISHED: dict[str, Published] = {
    "main": Published(
        "Table 1; u-fno, f-fno and lsm were run again by its authors, the others are quoted there",
        _lines(
            BENCHMARKS,
            {
                "fno": (0.1556, None, None, 0.0108, None, None),
                "galerkin": (0.1401, None, None, 0.0084, None, None),
                "geo-fno": (0.1556, 0.0138, 0.0067, 0.0108, 0.0229, 0.0074),
                "u-fno": (0.2182, 0.0137, 0.0050, 0.0266, 0.0226, 0.0028),
                "f-fno": (0.1213, 0.0079, 0.0063, 0.0318, 0.0316, 0.0048),
                "lsm": (0.1693, 0.0062, 0.0049, 0.0069, 0.0225, 0.0035),
                "gnot": (0.1380, 0.0076, None, 0.0105, 0.0086, None),
                "ono": (0.1195, 0.0056, 0.0034, 0.0072, 0.0118, 0.0048),
            },
        ),
    ),
    "limited-data": Published(
        "text of section 4.1 on Figure 3, which prints no other numbers",
        _lines(
            ("400", "1200"),
            {
                "ono": (0.0181, 0.0114),
                NO_ORTHO: (0.0694, 0.0352),
                "geo-fno": (0.0413, 0.0215),
            },
        ),
    ),
    "runtime": Published(
        "Table 2, on an RTX 3090; without a unit of work",
        _lines(
            ("epoch",),
            {"fno": (3.81,), "galerkin": (9.88,), "lsm": (9.05,), "ono, linear": (7.87,)},
        ),
    ),
    "super-resolution": Published(
        "Table 3",
        _lines(
            tuple(map(str, FINER)),
            {
                "fno": (0.1164, 0.1797, 0.2679, 0.3160, 0.3631),
                "ono": (0.0204, 0.0259, 0.0315, 0.0349, 0.0386),
            },
        ),
    ),
    "temporal": Published(
        "Table 4",
        _lines(("seen", "unseen"), {"fno": (0.0982, 0.2446), "ono": (0.0889, 0.2143)}),
    ),
    "blocks": Published(
        "Table 5",
        _lines(
            ABLATED,
            {
                "linear": (0.0079, 0.0137, 0.0060),
                "nystrom": (0.0056, 0.0118, 0.0034),
                "galerkin": (0.0122, 0.0133, 0.0075),
            },
        ),
    ),
    "orthogonalisation": Published(
        "Table 6",
        _lines(
            ABLATED,
            {
                "bn": (0.0808, 0.0149, 0.2151),
                "ln": (0.0288, 0.0387, 0.0056),
                "ortho": (0.0056, 0.0118, 0.0034),
            },
        ),
    ),
    "as-published": Published(
        "Table 6",
        _lines(("elasticity",), {"bn": (0.0149,), "ln": (0.0387,), "ortho": (0.0118,)}),
    ),
    "deep": Published(
        "Table 7",
        _lines(
            ("elasticity", "plasticity"), {"ono-8": (0.0118, 0.0048), WIDE_30: (0.0047, 0.0013)}
        ),
    ),
    "size": Published(
        "Table 8",
        _lines(
            ("parameters", "memory"),
            {
                "fno": ((0.9, 18.9), (1.0, 3.0)),
                "u-fno": ((1.0, 19.4), (1.0, 4.0)),
                "lsm": ((4.8, 13.9), (1.0, 6.0)),
                "galerkin": ((2.2, 2.5), (2.0, 9.0)),
                "ono, linear": ((0.8, 2.0), (2.0, 14.0)),
                "ono, nystrom": ((0.8, 2.0), (8.0, 16.0)),
            },
        ),
    ),
}
