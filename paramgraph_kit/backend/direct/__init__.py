"""Compiled graphs called directly: from Dynamo's arguments to our launcher, without the wrappers in between.

Where a graph is one partition and nothing else, all that AOTAutograd's and Inductor's wrappers do at each call is to
hand tensors on. What they hand to whom is learnt from watching ordinary calls, and only then are they left out.
"""
