"""Which operations of a compiled FX graph may be graphed, why the others may not, and the regions that follow."""
