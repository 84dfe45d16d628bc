"""Solve the equations whose solution operators are learned."""
