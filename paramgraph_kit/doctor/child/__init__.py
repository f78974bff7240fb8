"""A capture for real, in a child process that may die of it."""
