"""Calls of a compiled model without Dynamo's frame evaluation: guards, addresses, launch, and nothing else.

An ordinary call is watched. Where all that it did was to read arguments and members of modules and to run one compiled
graph, a function is generated that does this alone; otherwise, and whenever a guard fails, calls stay ordinary ones.
"""
