"""Where the fused kernel's rows go, as numbers: every unit of every result is written once, by the row that it belongs to."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ithaka.comm_ext.ulysses.cuda_calibration import MAX_REMOTE_BLOCKS, Launch
from ithaka.comm_ext.ulysses.fused_plan import UNIT_BYTES, FusedPlanStruct, FusedTensorStruct, fill, launch_of, refusal
from ithaka.comm_ext.ulysses.plan import Direction, ExchangePlan, plan_exchange, slot_offsets

ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
Address = tuple[int, int]


@st.composite
def groups(draw: st.DrawFn) -> list[tuple[ExchangePlan, ...]]:
    """Plans of queries, keys and values for every rank of a group."""
    ranks, batch, ratio = draw(st.integers(1, 8)), draw(st.integers(1, 2)), draw(st.integers(1, 3))
    counts = st.lists(st.integers(1, 3), min_size=ranks, max_size=ranks)
    seq_splits, kv_splits = tuple(draw(counts)), tuple(draw(counts))
    dim, dtype = draw(st.sampled_from((64, 128))), draw(st.sampled_from(sorted(ITEM_BYTES)))
    shares = (tuple(ratio * count for count in kv_splits), kv_splits, kv_splits)

    def plan(rank: int, heads: tuple[int, ...]) -> ExchangePlan:
        return plan_exchange(
            Direction.SCATTER,
            (batch, seq_splits[rank], sum(heads), dim),
            rank=rank,
            num_ranks=ranks,
            dtype=dtype,
            item_bytes=ITEM_BYTES[dtype],
            seq_splits=seq_splits,
            head_splits=heads,
        )

    return [tuple(plan(rank, heads) for heads in shares) for rank in range(ranks)]


def struct_of(plans: tuple[ExchangePlan, ...]) -> FusedPlanStruct:
    struct = FusedPlanStruct()
    strides = [(plan.seq * plan.heads * plan.head_dim, plan.heads * plan.head_dim, plan.head_dim, 1) for plan in plans]
    fill(struct, plans, strides, phase_strides=(0, 512), norm="row", turn="halves", eps=1e-6)
    return struct


def targets(struct: FusedPlanStruct, tensor: FusedTensorStruct, ranks: int) -> dict[Address, tuple[int, int, int]]:
    """As the kernel stores: (receiving rank, byte in its slot) → (batch, own token, unit of the row)."""
    stores = {}
    for row in range(struct.batch * struct.tokens):
        batch, token = divmod(row, struct.tokens)
        for unit in range(tensor.units):
            rank = max(rank for rank in range(ranks) if unit >= tensor.first_unit[rank])
            at = tensor.target[rank] + (batch * struct.target_tokens + token) * tensor.target_row[rank]
            address = (rank, at + (unit - tensor.first_unit[rank]) * UNIT_BYTES)
            assert address not in stores
            stores[address] = (batch, token, unit)
    return stores


@settings(deadline=None, max_examples=30)
@given(groups())
def test_every_unit_of_a_result_is_written_by_its_row(group: list[tuple[ExchangePlan, ...]]) -> None:
    ranks, offsets = len(group), slot_offsets(group[0])
    structs = [struct_of(plans) for plans in group]
    for which in range(2):
        stores = [targets(struct, struct.tensor[which], ranks) for struct in structs]
        plan, head_bytes = group[0][which], group[0][which].head_dim * group[0][which].item_bytes
        wanted = {}
        for receiver, heads in enumerate(plan.head_splits):
            for batch in range(plan.batch):
                for sender, tokens in enumerate(plan.seq_splits):
                    for token in range(tokens):
                        row = batch * plan.seq + sum(plan.seq_splits[:sender]) + token
                        for unit in range(heads * head_bytes // UNIT_BYTES):
                            address = (receiver, offsets[which] + row * heads * head_bytes + unit * UNIT_BYTES)
                            of_row = sum(plan.head_splits[:receiver]) * head_bytes // UNIT_BYTES + unit
                            wanted[address] = (sender, (batch, token, of_row))
        written = {address: (sender, place) for sender, by in enumerate(stores) for address, place in by.items()}
        assert sum(map(len, stores)) == len(written)
        assert written == wanted


@settings(deadline=None)
@given(groups(), st.integers(0, 400), st.integers(0, 400))
def test_ranks_agree_on_blocks_that_have_rows(group: list[tuple[ExchangePlan, ...]], remote: int, local: int) -> None:
    launches = {launch_of(Launch(remote, local, 0.0), plans) for plans in group}
    assert len(launches) == 1
    launch = launches.pop()
    assert 1 <= launch.remote_blocks <= MAX_REMOTE_BLOCKS
    assert (launch.local_blocks, launch.copied) == (0, 0.0)
    assert refusal(group[0]) is None
