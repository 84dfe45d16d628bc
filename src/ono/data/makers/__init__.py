"""From a PDE to a dataset: one benchmark per file."""
