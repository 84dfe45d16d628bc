"""Train an operator from a recipe."""
