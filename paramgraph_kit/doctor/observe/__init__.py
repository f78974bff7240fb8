"""From calls that are watched to what a capture would refuse or freeze."""
