"""What lives from step to step."""
