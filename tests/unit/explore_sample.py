"""A trace with something in every view, small enough to read: two layers, a branch, hostile names, three pools."""

from __future__ import annotations

from paramgraph_kit.trace import (
    Allocation,
    Capture,
    Failure,
    Frame,
    Launch,
    Node,
    NodeKind,
    Origin,
    Partition,
    PoolAction,
    PoolEvent,
    Reason,
    Role,
    Source,
    Trace,
    Word,
    WordKind,
)

SOURCE = Source(Origin.SIMULATED, "simulated device", "-", "2.13.0", "3.11", "2026-11-20")
HOSTILE = '<script>alert("x")</script>'
ITEM = Frame("train.py", 31, "step", "if loss.item() > 10: scale *= 0.5")


def word(offset: int, allocation: int | None, value: int | None = None) -> Word:
    if allocation is None:
        return Word(offset, WordKind.SCALAR, value=value, evidence="the same in both captures")
    return Word(offset, WordKind.POINTER, allocation, 256 * (offset // 8), None, "in phantom memory of both captures")


def layer(start: int, allocations: int) -> list[Node]:
    names = [
        "triton_per_fused_rms_norm_0",
        "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
        "flash_fprop_sm90_bf16_kernel",
        "nvjet_tst_64x8_64x16_4x1_v_bz_TNT",
        "triton_poi_fused_add_mul_silu_1",
        "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
    ]
    return [
        Node(
            start + n,
            NodeKind.KERNEL,
            name,
            (132, 1, 1),
            (256, 1, 1),
            parameter_bytes=40,
            words=tuple(word(8 * k, (start + n + k) % allocations if k < 3 else None, 4096) for k in range(5)),
            frame=Frame("model.py", 20 + n, "forward", "h = h + self.attention(self.norm(h))"),
        )
        for n, name in enumerate(names)
    ]


def capture(layers: int = 3, hostile: bool = True) -> Capture:
    roles = [Role.INPUT, Role.INPUT, Role.STATIC, *[Role.WORKSPACE] * 5, Role.OUTPUT]
    allocations = tuple(
        Allocation(n, role, (n + 1) << 16, n if role is not Role.STATIC else None, 0, 0, None, f"{role}{n}")
        for n, role in enumerate(roles)
    )
    nodes = [Node(0, NodeKind.MEMSET, "memset", lowered_from=None)]
    for _ in range(layers):
        nodes += layer(len(nodes), len(allocations))
    end = len(nodes)
    edges = [(n, n + 1) for n in range(end - 1)]
    if hostile:
        nodes.append(Node(end, NodeKind.KERNEL, HOSTILE, lane=1))
        nodes.append(Node(end + 1, NodeKind.KERNEL, 'copy_kernel<"a\\b&amp;">\n', lane=1))
        edges += [(1, end), (end, end + 1), (end + 1, end - 1)]
    return Capture(0, 1, tuple(nodes), tuple(edges), allocations, 6 << 20, 1 << 20, "simulated")


def pool_events(calls: int = 24) -> list[PoolEvent]:
    events: list[PoolEvent] = []

    def add(pool: str, action: PoolAction, address: int, mib: float, call: int | None) -> None:
        events.append(PoolEvent(len(events), pool, action, address, int(mib * (1 << 20)), call))

    add("default", PoolAction.SEGMENT_ALLOC, 0, 64, None)
    add("graph trees", PoolAction.SEGMENT_ALLOC, 1 << 40, 20, None)
    for call in range(calls):
        add("default", PoolAction.ALLOC, 4096, 12 + call % 5, call)
        add("default", PoolAction.ALLOC, 1 << 24, 24, call)
        if call % 4 == 3 and call < 16:
            add("graph trees", PoolAction.SEGMENT_ALLOC, (1 << 40) + (call << 24), 20, call)
            add("graph trees", PoolAction.ALLOC, (1 << 40) + (call << 24), 17, call)
        add("default", PoolAction.FREE, 1 << 24, 24, call)
        add("default", PoolAction.FREE, 4096, 12 + call % 5, call)
    return events


def trace() -> Trace:
    return Trace(
        SOURCE,
        "Llama-like block, training",
        [
            Partition(0, "forward 0", True, ("aten.mm", "aten.mm", "aten.rms_norm", "aten.add"), 11),
            Partition(
                1,
                "forward 0",
                False,
                ("aten._local_scalar_dense", HOSTILE),
                1,
                (Reason("unbacked-op", "reads a value back to the CPU", ITEM, "aten._local_scalar_dense"),),
            ),
            Partition(2, "forward 0", True, ("aten.mm", "aten.silu"), 8),
            Partition(3, "backward 0", True, ("aten.mm", "aten.mm", "aten.sum"), 24),
        ],
        [capture()],
        [Launch(0, n, 3 if n < 2 else 0, 54 if n < 2 else 0, 0, 7.5 + n % 3) for n in range(24)],
        [
            Failure(
                "sync-item",
                "A value was read back to the CPU",
                "CUDA error: operation not permitted when stream is capturing",
                ITEM,
                "item() copies a number to the CPU and waits for the GPU. While capturing, nothing runs to wait for.",
                "before  if loss.item() > 10: scale *= 0.5\nafter   scale = torch.where(loss > 10, scale * 0.5, scale)",
            )
        ],
        pool_events(),
    )
