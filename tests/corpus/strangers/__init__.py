"""Programs in the style of strangers' code, each run in every way that this package has, and compared."""
