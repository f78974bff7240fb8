"""Plain data that every layer shares, and the files it is kept in; neither torch nor CUDA."""

from __future__ import annotations

from paramgraph_kit.trace.errors import DeviceMismatchError as DeviceMismatchError
from paramgraph_kit.trace.errors import ParamgraphError as ParamgraphError
from paramgraph_kit.trace.errors import RefusedError as RefusedError
from paramgraph_kit.trace.errors import TraceError as TraceError
from paramgraph_kit.trace.errors import UnsupportedError as UnsupportedError
from paramgraph_kit.trace.format import dumps as dumps
from paramgraph_kit.trace.format import load as load
from paramgraph_kit.trace.format import loads as loads
from paramgraph_kit.trace.format import recorded as recorded
from paramgraph_kit.trace.format import save as save
from paramgraph_kit.trace.model import Allocation as Allocation
from paramgraph_kit.trace.model import Capture as Capture
from paramgraph_kit.trace.model import Failure as Failure
from paramgraph_kit.trace.model import Frame as Frame
from paramgraph_kit.trace.model import Launch as Launch
from paramgraph_kit.trace.model import Node as Node
from paramgraph_kit.trace.model import NodeKind as NodeKind
from paramgraph_kit.trace.model import Origin as Origin
from paramgraph_kit.trace.model import Partition as Partition
from paramgraph_kit.trace.model import PoolAction as PoolAction
from paramgraph_kit.trace.model import PoolEvent as PoolEvent
from paramgraph_kit.trace.model import Proof as Proof
from paramgraph_kit.trace.model import Reason as Reason
from paramgraph_kit.trace.model import Role as Role
from paramgraph_kit.trace.model import Source as Source
from paramgraph_kit.trace.model import Trace as Trace
from paramgraph_kit.trace.model import Word as Word
from paramgraph_kit.trace.model import WordKind as WordKind
from paramgraph_kit.trace.wording import failure_text as failure_text
