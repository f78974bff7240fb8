"""One partition captured twice on phantom memory, and the meaning of every word of its parameters."""
