"""Records the traces that the package ships: what a GPU did, to be looked at where there is none.

``recordings`` names them, ``training``, ``inference``, ``streams`` and ``failures`` make them, ``command`` runs each
in a process of its own. On the simulator the same code makes small ones, which say so and are for tests.
"""

from __future__ import annotations
