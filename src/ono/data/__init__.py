"""Datasets: what they look like on disk, how they are made, and whether they are sound."""
