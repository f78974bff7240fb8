"""Classes of failure of streams, events and threads."""

from __future__ import annotations

from paramgraph_kit.doctor.known.failure_class import (
    CAPTURE_FAILURES,
    CUDA_RUNTIME,
    PYTORCH_NOTES,
    FailureClass,
    code,
)

ALL = "every version"

_X = "x = torch.arange(4.0, device=device)\ng = cuda.CUDAGraph()\n"
_DOUBLED = "with cuda.graph(g):\n    y = x * 2\ng.replay()\ngot, expected = y, x * 2\n"
_FORKED = code("""
    s = cuda.Stream()
    with cuda.graph(g):
        s.wait_stream(cuda.current_stream())
        with cuda.stream(s):
            y = x * 2
        cuda.current_stream().wait_stream(s)
    g.replay()
    got, expected = y, x * 2
""")
STREAMS = (
    FailureClass(
        "default-stream",
        "The capture is begun on the default stream",
        "streams",
        "The default stream waits for all others, so it cannot be captured. torch.cuda.graph uses a stream of its own.",
        ALL,
        "default-stream",
        _X + "g.capture_begin()\ny = x * 2\ng.capture_end()\n",
        _X + _DOUBLED,
        PYTORCH_NOTES,
    ),
    FailureClass(
        "unjoined-work",
        "A side stream is not joined before the capture ends",
        "streams",
        "Work was forked to another stream and nothing waits for it. CUDA finds this only at the end, so there is no "
        "line of the fork's.",
        ALL,
        "unjoined-work",
        _X + "s = cuda.Stream()\nwith cuda.graph(g):\n    s.wait_stream(cuda.current_stream())\n"
        "    with cuda.stream(s):\n        y = x * 2\n",
        _X + _FORKED,
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "not-forked",
        "Work is put on a side stream that was never forked",
        "streams",
        "Only streams that waited for the capturing one are captured. Any other needs memory of CUDA sooner or later, "
        "which the capture forbids there.",
        ALL,
        "not-forked",
        _X + "s = cuda.Stream()\nwith cuda.graph(g):\n    with cuda.stream(s):\n        y = x * 2\n"
        "    cuda.current_stream().wait_stream(s)\n",
        _X + _FORKED,
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "joined-not-forked",
        "A side stream is joined that was never forked",
        "streams",
        "Its work is not part of the graph, so the graph cannot wait for it. Fork first, then join.",
        ALL,
        "isolation",
        _X + "s = cuda.Stream()\nwith cuda.stream(s):\n    y = x * 2  # a warm-up: memory for s is at hand now\n"
        "with cuda.graph(g):\n    with cuda.stream(s):\n        y = x * 2\n"
        "    cuda.current_stream().wait_stream(s)\n",
        _X + _FORKED,
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "waits-for-default-stream",
        "The capture waits for the default stream",
        "streams",
        "The default stream's work was not captured, and a graph depends on its own nodes only. Wait before the "
        "capture begins.",
        ALL,
        "isolation",
        _X + "with cuda.graph(g):\n    cuda.current_stream().wait_stream(cuda.default_stream())\n    y = x * 2\n",
        _X + "cuda.synchronize()\n" + _DOUBLED,
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "captured-event",
        "An event recorded in a capture is asked outside it",
        "streams",
        "Recording in a capture only writes a node down, so the event has no state of its own. Record another one "
        "after the replay.",
        "2.11: CUDA says invalid argument; elsewhere CUDA error 907",
        "captured-event",
        _X + "e = cuda.Event()\nwith cuda.graph(g):\n    y = x * 2\n    e.record()\ng.replay()\ne.query()\n",
        _X + "e = cuda.Event()\nwith cuda.graph(g):\n    y = x * 2\ng.replay()\ne.record()\ne.synchronize()\n"
        "got, expected = y, x * 2\n",
        CUDA_RUNTIME,
    ),
    FailureClass(
        "timing-in-graph",
        "Time is measured between events in a capture",
        "streams",
        "Events recorded in a capture become nodes and never get a time. Record them around the replay.",
        "2.11: CUDA says invalid argument; elsewhere CUDA error 907",
        "captured-event",
        _X + "a, b = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)\nwith cuda.graph(g):\n"
        "    a.record()\n    y = x * 2\n    b.record()\ng.replay()\na.elapsed_time(b)\n",
        _X + "a, b = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)\nwith cuda.graph(g):\n"
        "    y = x * 2\na.record()\ng.replay()\nb.record()\ncuda.synchronize()\na.elapsed_time(b)\n"
        "got, expected = y, x * 2\n",
        CUDA_RUNTIME,
    ),
    FailureClass(
        "wrong-end-stream",
        "The capture is ended on another stream than it began on",
        "API misuse",
        "begin and end must see the same current stream. The context manager takes care of that.",
        ALL,
        "wrong-end-stream",
        _X + "s, other = cuda.Stream(), cuda.Stream()\nwith cuda.stream(s):\n    g.capture_begin()\n    y = x * 2\n"
        "with cuda.stream(other):\n    g.capture_end()\n",
        _X + _DOUBLED,
        CUDA_RUNTIME,
    ),
    FailureClass(
        "nested-capture",
        "A capture is started inside another capture",
        "API misuse",
        "One stream is captured into one graph at a time. The inner begin fails and spoils the outer capture.",
        ALL,
        "nested-capture",
        _X + "with cuda.graph(g):\n    y = x + 1\n    with cuda.graph(cuda.CUDAGraph()):\n        z = y * 2\n",
        _X + "h = cuda.CUDAGraph()\nwith cuda.graph(g):\n    y = x + 1\nwith cuda.graph(h):\n    z = y * 2\n"
        "g.replay()\nh.replay()\ngot, expected = z, (x + 1) * 2\n",
        PYTORCH_NOTES,
    ),
)

THREADS = (
    FailureClass(
        "wrong-end-thread",
        "The capture is ended in another thread",
        "threads",
        "A capture that is not relaxed belongs to the thread that began it. Begin and end it in one thread.",
        ALL,
        "wrong-end-thread",
        _X
        + code("""
            from concurrent.futures import ThreadPoolExecutor
            s = cuda.Stream()
            def end():
                with cuda.stream(s):
                    g.capture_end()
            with cuda.stream(s):
                g.capture_begin()
                y = x * 2
            with ThreadPoolExecutor(1) as threads:
                threads.submit(end).result()
        """),
        _X + _DOUBLED,
        CUDA_RUNTIME,
    ),
    FailureClass(
        "background-query",
        "Another thread asks for an event while a global capture is underway",
        "threads",
        "A global capture forbids unsafe calls in every thread. The thread's error is often swallowed there, and the "
        "capture finds itself invalidated.",
        ALL,
        "invalidated",
        _X
        + code("""
            from concurrent.futures import ThreadPoolExecutor
            e = cuda.Event()
            e.record()
            with ThreadPoolExecutor(1) as threads, cuda.graph(g):
                threads.submit(e.query).exception()
                y = x * 2
        """),
        _X
        + code("""
            from concurrent.futures import ThreadPoolExecutor
            e = cuda.Event()
            e.record()
            with ThreadPoolExecutor(1) as threads, cuda.graph(g, capture_error_mode="thread_local"):
                threads.submit(e.query).exception()
                y = x * 2
            g.replay()
            got, expected = y, x * 2
        """),
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "background-memory",
        "Another thread needs memory while a global capture is underway",
        "threads",
        "cudaMalloc is one of the calls that a global capture forbids in every thread. A thread_local one leaves other "
        "threads alone.",
        ALL,
        "invalidated",
        _X
        + code("""
            from concurrent.futures import ThreadPoolExecutor
            def load():
                return torch.empty(1 << 26, device=device)
            with ThreadPoolExecutor(1) as threads, cuda.graph(g):
                threads.submit(load).exception()
                y = x * 2
        """),
        _X
        + code("""
            from concurrent.futures import ThreadPoolExecutor
            def load():
                return torch.empty(1 << 26, device=device)
            with ThreadPoolExecutor(1) as threads, cuda.graph(g, capture_error_mode="thread_local"):
                threads.submit(load).result()
                y = x * 2
            g.replay()
            got, expected = y, x * 2
        """),
        CAPTURE_FAILURES,
    ),
    FailureClass(
        "swallowed-error",
        "An error inside the capture is caught and dropped",
        "API misuse",
        "The first forbidden call spoils the capture for good; catching its exception does not undo that. Every later "
        "call then fails with the echo 901.",
        ALL,
        "invalidated",
        _X + "with cuda.graph(g):\n    try:\n        cuda.synchronize()\n    except RuntimeError:\n        pass\n"
        "    y = x * 2\n",
        _X + "cuda.synchronize()\n" + _DOUBLED,
        CUDA_RUNTIME,
    ),
)

CLASSES = (*STREAMS, *THREADS)
