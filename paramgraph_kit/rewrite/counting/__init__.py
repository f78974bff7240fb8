"""Numbers that every step moves: counters, and the state of optimizers."""
