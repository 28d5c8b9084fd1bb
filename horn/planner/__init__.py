"""What a job will do on its tasks, what that costs, and the cheapest placement."""
