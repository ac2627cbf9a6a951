"""KV channels: they carry blocks of one worker's KV pool into another worker's.

A channel copies what it is told and says when it is done. Order, retry, leases and fences live in the core's `Worker`,
never here. Importing this package needs NumPy and msgspec, not torch.
"""

from pdsched.transfer.arena import Arena, create_arena
from pdsched.transfer.base import ChannelError, ChannelStats, Completion, KVChannel, PeerId, Runs
from pdsched.transfer.local import LocalChannel, LocalHub
from pdsched.transfer.shared_memory import SharedMemoryChannel

__all__ = [
    "Arena",
    "ChannelError",
    "ChannelStats",
    "Completion",
    "KVChannel",
    "LocalChannel",
    "LocalHub",
    "PeerId",
    "Runs",
    "SharedMemoryChannel",
    "create_arena",
]
