"""Building blocks of operators, a file per idea, named by the paper's words."""
