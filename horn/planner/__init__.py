"""Plans of jobs on their tasks: cost, and the cheapest placement."""
