"""What a compiler is told of the exchanges: which memory they read, for how long."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.fused_cases import Case, draw

from ithaka.comm_ext.ulysses.communicator import UlyssesCommunicator


def traced(function: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.fx.Graph:
    """The one graph that a compiler gets."""
    graphs: list[torch.fx.Graph] = []

    def keep(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        graphs.append(module.graph)
        return module.forward

    torch.compile(function, fullgraph=True, backend=keep)(x)
    (graph,) = graphs
    return graph


def test_what_is_sent_stays_in_place_until_the_wait() -> None:
    """A copy engine reads it until then, so the compiler must see it in use."""
    with UlyssesCommunicator(None, max_bytes=1) as communicator:

        def block(x: torch.Tensor) -> torch.Tensor:
            communicator.scatter_heads_async(x.sin(), "v")
            between = x.cos()
            (v,) = communicator.wait("v")
            return v + between

        graph = traced(block, torch.ones(1, 2, 2, 4))
        sent = [node.args[0] for node in graph.nodes if "ulysses_send" in str(node.target)]
        awaited = [node.args[0] for node in graph.nodes if "ulysses_wait" in str(node.target)]
        assert len(sent) == 1
        assert awaited == [sent]


def test_head_chunks_are_one_graph_of_a_group_of_one_too() -> None:
    with UlyssesCommunicator(None, max_bytes=1) as communicator:

        def block(x: torch.Tensor) -> torch.Tensor:
            q, k, _ = communicator.scatter_qkv_head_chunk(x, x[:, :, :2], x[:, :, 2:], head_offset=2, head_count=2)
            return communicator.gather_head_chunk(q * k, head_offset=0, head_count=2, out=x.clone())

        x = torch.randn(1, 3, 4, 8)
        compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(x), block(x))
        assert torch.equal(block(x)[:, :, :2], x[:, :, 2:] * x[:, :, 1:2])


# It does not compute with the positions' complex numbers; it only looks at them as pairs.
@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex operators")
def test_the_default_compiler_takes_every_call() -> None:
    case = Case((6,), (4,), (4,), 64, torch.float32, "row", "interleaved")
    drawn = draw(case, 0, torch.device("cpu"), 0)
    norm, rope = drawn.transform.norm, drawn.transform.rope
    with UlyssesCommunicator(None, max_bytes=1) as communicator:

        def block(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            communicator.scatter_heads_async(v * 2, "ahead")
            q, k, v = communicator.fused_qk_norm_rope_scatter(q, k, v * 5, norm=norm, rope=rope)
            q, k, v = communicator.scatter_qkv_head_chunk(q.sin(), k, v, head_offset=1, head_count=2)
            (ahead,) = communicator.wait("ahead")
            mixed = communicator.gather_head_chunk(q * k + v, head_offset=1, head_count=2, out=ahead.cos())
            return communicator.gather_heads(communicator.scatter_heads(mixed + ahead)) * 3

        compiled = torch.compile(block, fullgraph=True, options={"force_disable_caches": True})
        torch.testing.assert_close(compiled(*drawn.qkv), block(*drawn.qkv))
