"""Checks of a launch in C++, where there is a compiler; each has its like in Python, asked until it is built."""
