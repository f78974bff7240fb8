"""Views of a trace: text, pictures, figures and a page; neither torch nor CUDA."""

from __future__ import annotations

from paramgraph_kit.explore.explorer import Explorer as Explorer
from paramgraph_kit.explore.explorer import explore as explore
from paramgraph_kit.explore.figures import memory_growth as memory_growth
from paramgraph_kit.explore.figures import pool_comparison as pool_comparison
from paramgraph_kit.explore.figures import pool_timeline as pool_timeline
from paramgraph_kit.explore.page import page as page
from paramgraph_kit.explore.page import to_html as to_html
from paramgraph_kit.explore.picture import Picture as Picture
from paramgraph_kit.explore.picture import draw as draw
from paramgraph_kit.explore.view import View as View
