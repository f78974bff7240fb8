"""Puts back what a call or a failed capture has changed."""
