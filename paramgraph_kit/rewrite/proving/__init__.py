"""Whether two ways of running a function give the same, over several steps, in all that can be seen."""
