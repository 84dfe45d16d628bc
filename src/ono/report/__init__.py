"""Pictures and pages that say what a dataset holds and what a run learned."""
