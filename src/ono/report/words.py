"""Numbers as people say them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Write a time as people say it.

    >>> duration(4.21), duration(60.3), duration(75.0), duration(7384.0)
    ('4.2 s', '1 min', '1 min 15 s', '2 h 3 min')
    """
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
