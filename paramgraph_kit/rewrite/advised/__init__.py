"""What to write by hand where no rewrite is safe."""
