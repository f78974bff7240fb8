"""A whole training step as one parameterized graph: its own Python runs under capture, its state stays where it is."""
