"""Ranks arranged by several kinds of parallelism, and the groups in which one kind is at work. No torch here.

A mesh names its axes from the outermost to the innermost, as ``Mesh(cfg=2, ulysses=2)``; the last one's neighbours are
consecutive ranks. Ranks that differ in one axis only form a group of that axis, and a communicator serves one such group::

    mesh = Mesh(ring=2, ulysses=4)                           # eight ranks
    with MeshDescriptors.create(mesh, "ulysses") as heads:   # in the parent: descriptors of two groups of four
        subprocess.Popen([...], pass_fds=heads.fds_of(rank))

    group = mesh.seat("ulysses", rank, fds)                  # in the child: its place in its group

What goes with what: *ring* outside of *ulysses* (heads are exchanged among few ranks, sequence blocks travel among the groups);
*tp* outside of *ulysses* (a rank's share of the projections' heads is what its group exchanges); *cfg* outermost (the two
halves of a guided step meet once, by ``exchange_chunks``).
"""

from __future__ import annotations

import math
from types import TracebackType

from ithaka.comm_ext.ulysses.errors import UlyssesErrorCode, UlyssesInputError
from ithaka.comm_ext.ulysses.group import GroupDescriptors, RankGroup


class Mesh:
    """Sizes by axis; pure arithmetic."""

    def __init__(self, **sizes: int) -> None:
        if not sizes or min(sizes.values()) < 1:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"a mesh has axes of at least one rank, got {sizes}")
        self.sizes = sizes

    @property
    def num_ranks(self) -> int:
        """Of the whole mesh."""
        return math.prod(self.sizes.values())

    def groups(self, axis: str) -> tuple[tuple[int, ...], ...]:
        """The groups of an axis, each as its members in order."""
        step = self._step(axis)
        size = self.sizes[axis]
        first = [rank for rank in range(self.num_ranks) if rank // step % size == 0]
        return tuple(tuple(rank + place * step for place in range(size)) for rank in first)

    def place(self, axis: str, rank: int) -> tuple[int, int]:
        """Which group of an axis a rank belongs to, and its own number in there."""
        for number, members in enumerate(self.groups(axis)):
            if rank in members:
                return number, members.index(rank)
        raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"rank {rank} is not one of {self.num_ranks}")

    def seat(self, axis: str, rank: int, fds: tuple[int, ...]) -> RankGroup:
        """A rank's seat in its group, from the descriptors that it inherited; a group of one needs none."""
        if self.sizes[axis] == 1:
            return RankGroup.alone()
        return RankGroup.from_fds(rank=self.place(axis, rank)[1], num_ranks=self.sizes[axis], fds=fds)

    def _step(self, axis: str) -> int:
        if axis not in self.sizes:
            raise UlyssesInputError(UlyssesErrorCode.BAD_ARGUMENT, f"no axis {axis!r}: there are {', '.join(self.sizes)}")
        names = list(self.sizes)
        return math.prod(self.sizes[name] for name in names[names.index(axis) + 1 :])


class MeshDescriptors:
    """What a parent makes for all groups of one axis; closed when the ranks are spawned."""

    def __init__(self, mesh: Mesh, axis: str, groups: tuple[GroupDescriptors, ...]) -> None:
        self._mesh, self._axis, self._groups = mesh, axis, groups

    @classmethod
    def create(cls, mesh: Mesh, axis: str) -> MeshDescriptors:
        """Make them. Raises UlyssesInputError, OSError."""
        made: list[GroupDescriptors] = []
        try:
            for members in mesh.groups(axis):
                if len(members) > 1:
                    made.append(GroupDescriptors.create(len(members)))
        except OSError:
            for each in made:
                each.close()
            raise
        return cls(mesh, axis, tuple(made))

    def fds_of(self, rank: int) -> tuple[int, ...]:
        """Those that a rank inherits; none for a group of one."""
        number, _ = self._mesh.place(self._axis, rank)
        return self._groups[number].fds if self._groups else ()

    def close(self) -> None:
        """Close the parent's copies. Call once."""
        for each in self._groups:
            each.close()

    def __enter__(self) -> MeshDescriptors:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
