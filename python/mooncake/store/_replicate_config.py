"""How one put is placed."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field


@dataclass
class ReplicateConfig:
    """Placement of the copies of a value, for the ``config`` argument of the put methods.

    Attributes:
        replica_num: copies in all.
        preferred_segment, preferred_segments: names of segments (or the own ``get_hostname()``)
            to place copies on. Required, unless ``with_soft_pin`` is set.
        preferred_storage_owner, preferred_storage_owners: nodes to place copies on when they
            have room, as ``stable_id`` or ``stable_id:epoch``.
        prefer_local: place a copy on the own node when it has room.
        with_soft_pin: evict the value only when nothing else is left.
        prefer_alloc_in_same_node: keep the copies together on one node when possible.

    A singular attribute goes in front of its plural. The put methods check them: flags are True
    or False (or 1 or 0), ``replica_num`` is 1 to 64, and the lists hold ``str``.
    """

    replica_num: int = 1
    preferred_segment: str = ""
    preferred_segments: list[str] = field(default_factory=list)
    preferred_storage_owner: str = ""
    preferred_storage_owners: list[str] = field(default_factory=list)
    prefer_local: bool = True
    with_soft_pin: bool = False
    prefer_alloc_in_same_node: bool = False

    def copy(self) -> ReplicateConfig:
        """A copy that shares no list with this one.

        Example:
            >>> twin = ReplicateConfig(replica_num=2).copy()  # doctest: +SKIP
        """
        return copy.deepcopy(self)
