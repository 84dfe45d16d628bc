"""Operators: one per file, its configuration beside it."""
