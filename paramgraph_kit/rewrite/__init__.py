"""Fixes in the user's own words: lines rewritten, tried on the function while it is borrowed, and shown as a diff."""
