"""The user's source text: its syntax, edits of it, and what is asked of statements and names."""
