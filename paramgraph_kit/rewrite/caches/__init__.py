"""Buffers that are read up to a place which each step moves on: caches of keys and values, histories, prefixes."""
