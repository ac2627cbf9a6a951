"""The compiled core: pure state machines with time as an argument.

Nothing here reads a clock, does I/O or starts a thread. Times are integer nanoseconds of any monotonic clock; ids are
integers the caller chooses; token ids go in as NumPy arrays of any integer type, buffers or lists. Wrong values raise
``ValueError`` (or ``TypeError``) with the value in the text and change nothing; ids that are unknown or late are
ignored, counted and answered with ``False``, ``None`` or empty outputs.
"""

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "BlockPool",
    "CancelTransfer",
    "Cluster",
    "ClusterConfig",
    "Connect",
    "Disconnect",
    "Emit",
    "Entered",
    "Finish",
    "Finished",
    "Kill",
    "LoadBalancer",
    "Opened",
    "Outputs",
    "PeerDead",
    "Replay",
    "Request",
    "Scheduler",
    "SchedulerConfig",
    "Send",
    "StartTransfer",
    "Step",
    "StepBuffers",
    "Timing",
    "TransferDone",
    "Worker",
    "WorkerDown",
    "WorkerRefused",
    "WorkerUp",
    "__version__",
    "replay_cluster",
    "replay_worker",
]

__version__: str

_Tokens: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
_Int32: TypeAlias = npt.NDArray[np.int32]
_Int64: TypeAlias = npt.NDArray[np.int64]
_Peer: TypeAlias = tuple[int, int]
_Role: TypeAlias = Literal["prefill", "decode", "both"]

@final
class SchedulerConfig:
    """What a scheduler is told once.

    Args:
        num_blocks: blocks in the KV pool, reserved ones included.
        block_size: tokens per block.
        max_num_seqs: requests that may run at once.
        max_num_batched_tokens: token budget of one step; at least ``max_num_seqs``.
        chunk_size: largest chunk of one prompt in one step; ``None``: what the budget leaves.
        max_model_len: longest sequence (prompt and outputs) in tokens; ``None``: what the pool holds.
        eos_token_id: the model's end-of-sequence token.
        max_steps_in_flight: steps that may be planned before the oldest of them is complete.
        prefix_caching: keep finished blocks findable by their content.
        reserved_blocks: blocks ``0..n`` that are never handed out, such as a null block.
        watermark_blocks: blocks left free when a request is admitted while others run.
        hash_seed: seed of the block hash; a collision costs time, never correctness.
        hash_bits: bits of the block hash in use; fewer only to provoke collisions in tests.
        seeded_bug: plants a bug; for testing tests only.

    Raises:
        ValueError: names the field, its value and the rule it breaks.
    """

    def __new__(
        cls,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        *,
        chunk_size: int | None = None,
        max_model_len: int | None = None,
        eos_token_id: int | None = None,
        max_steps_in_flight: int = 1,
        prefix_caching: bool = True,
        reserved_blocks: int = 0,
        watermark_blocks: int = 0,
        hash_seed: int = 0,
        hash_bits: int = 64,
        seeded_bug: str | None = None,
    ) -> SchedulerConfig: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def max_num_seqs(self) -> int: ...
    @property
    def max_num_batched_tokens(self) -> int: ...
    @property
    def chunk_size(self) -> int | None: ...
    @property
    def max_model_len(self) -> int | None: ...
    @property
    def eos_token_id(self) -> int | None: ...
    @property
    def max_steps_in_flight(self) -> int: ...
    @property
    def num_rows(self) -> int:
        """Rows of the runner's tables: ``max_num_seqs * max_steps_in_flight``."""
    @property
    def max_blocks_per_row(self) -> int:
        """Columns of the runner's block table."""
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Request:
    """A request for generation.

    Args:
        id: the caller's number for it, ``0..2^64``, unique among unfinished requests.
        prompt_token_ids: the prompt, at least one token.
        max_tokens: outputs at most, those in ``output_token_ids`` included.
        output_token_ids: outputs already known, when it continues a request that ran elsewhere.
        min_tokens: outputs below which no stop token ends it.
        stop_token_ids: tokens that end it, besides the end-of-sequence token. The one found is part of the output.
        ignore_eos: the end-of-sequence token does not end it.
        namespace: prefix-cache namespace; blocks are shared only within one.
        extra: opaque payload for the runner, handed out in :attr:`Step.opened`.
    """

    def __new__(
        cls,
        id: int,
        prompt_token_ids: _Tokens,
        max_tokens: int,
        *,
        output_token_ids: _Tokens | None = None,
        min_tokens: int = 0,
        stop_token_ids: _Tokens | None = None,
        ignore_eos: bool = False,
        namespace: int = 0,
        extra: bytes | None = None,
    ) -> Request: ...
    @property
    def id(self) -> int: ...
    @property
    def prompt_len(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def extra(self) -> bytes: ...

@final
class Timing:
    """Moments in a request's life in the scheduler's clock (ns); ``None`` where it did not come to that."""

    @property
    def arrived(self) -> int: ...
    @property
    def scheduled(self) -> int | None: ...
    @property
    def first_token(self) -> int | None: ...
    @property
    def finished(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def num_cached_tokens(self) -> int:
        """Prompt tokens found in the prefix cache when it first ran."""

@final
class Finished:
    """A request that ended."""

    @property
    def id(self) -> int: ...
    @property
    def reason(self) -> str | None:
        """``stop``, ``length``, ``abort``, ``capacity``; ``None``: a hand-off released."""
    @property
    def num_outputs(self) -> int: ...
    @property
    def timing(self) -> Timing: ...

@final
class Opened:
    """A row that begins with this step: all a runner needs to rebuild seeds, penalties and grammars."""

    @property
    def row(self) -> int: ...
    @property
    def id(self) -> int: ...
    @property
    def extra(self) -> bytes: ...
    @property
    def token_ids(self) -> npt.NDArray[np.uint32]:
        """uint32 ``[n]``, prompt and known outputs."""
    @property
    def prompt_len(self) -> int: ...

@final
class StepBuffers:
    """Owner of the memory of one step's arrays; the base of every view of them."""

@final
class Step:
    """A planned step: T tokens of S sequences, L of which are sampled. Decodes (one token each) come first.

    The arrays are built on first access, which must come before the machine's next call (else ``RuntimeError``). They
    are views of memory that is not rewritten while one of them lives; the runner may write into them.
    """

    @property
    def id(self) -> int: ...
    @property
    def num_tokens(self) -> int:
        """T."""
    @property
    def num_seqs(self) -> int:
        """S."""
    @property
    def num_samples(self) -> int:
        """L."""
    @property
    def num_decodes(self) -> int:
        """Leading sequences with exactly one token."""
    @property
    def token_ids(self) -> _Int64:
        """``[T]``; -1 where the token is still being sampled by an earlier step, see :attr:`gather`."""
    @property
    def positions(self) -> _Int64:
        """``[T]``, positions within the sequence."""
    @property
    def slot_mapping(self) -> _Int64:
        """``[T]``, block * block_size + offset: where each token's KV is written."""
    @property
    def query_start_loc(self) -> _Int32:
        """``[S + 1]``, first token of each sequence."""
    @property
    def seq_lens(self) -> _Int32:
        """``[S]``, positions each sequence attends to, this step's included."""
    @property
    def logits_indices(self) -> _Int32:
        """``[L]``, token after which each sample is taken."""
    @property
    def rows(self) -> _Int32:
        """``[S]``, persistent row of each sequence, stable until the newest step that names it is done."""
    @property
    def sampled_rows(self) -> _Int32:
        """``[L]``, row of each sample."""
    @property
    def gather(self) -> tuple[_Int32, _Int32]:
        """(positions ``[G]``, rows ``[G]``): ``token_ids[positions] = last_sampled[rows]`` before the step runs."""
    @property
    def table_diff(self) -> tuple[_Int32, _Int32, _Int32]:
        """(row, column, block), each ``[N]``: changes of the runner's block table, before the step runs, also if it is
        skipped."""
    @property
    def block_tables(self) -> npt.NDArray[np.int32]:
        """``[S, columns]``, a copy of the block table in step order, padded with -1; made anew at each access, so each
        must come before the machine's next call."""
    @property
    def opened(self) -> list[Opened]:
        """Rows that begin with this step."""
    @property
    def closed(self) -> _Int32:
        """Rows left since the last step."""
    @property
    def preempted(self) -> list[int]:
        """Requests preempted since the last step."""

@final
class Outputs:
    """What a completion brought."""

    @property
    def request_ids(self) -> npt.NDArray[np.uint64]:
        """``[n]``, one entry per output."""
    @property
    def token_ids(self) -> _Int64:
        """``[n]``, the outputs."""
    @property
    def finished(self) -> list[Finished]:
        """Requests that ended since the last time this was told."""
    @property
    def progress(self) -> list[tuple[int, int]]:
        """Hand-offs that moved: (id, positions computed and sendable)."""
    @property
    def held(self) -> list[int]:
        """Hand-offs that got their output; their blocks stay until :meth:`Scheduler.release`."""

@final
class Scheduler:
    """Decides, step by step, which tokens of which requests one worker computes, and in which blocks.

    >>> from pdsched import Request, Scheduler, SchedulerConfig
    >>> scheduler = Scheduler(SchedulerConfig(num_blocks=64, block_size=16, max_num_seqs=8, max_num_batched_tokens=256))
    >>> scheduler.add(Request(7, [1, 2, 3], max_tokens=2), now=0)
    >>> step = scheduler.schedule(0)
    >>> step.token_ids.tolist(), step.slot_mapping.tolist(), step.logits_indices.tolist()
    ([1, 2, 3], [0, 1, 2], [2])
    >>> out = scheduler.complete(step.id, [42], now=1)
    >>> out.request_ids.tolist(), out.token_ids.tolist()
    ([7], [42])
    """

    def __new__(cls, config: SchedulerConfig) -> Scheduler: ...
    def add(self, request: Request, now: int, *, hand_off: bool = False) -> None:
        """Hands a request in.

        Args:
            request: what is wanted.
            now: time.
            hand_off: compute the prompt, sample one output, keep the blocks until :meth:`release`.

        Raises:
            ValueError: it can never be served, or its id is unfinished already.
        """
    def abort(self, id: int, now: int) -> bool:
        """Ends a request, whatever it is doing. ``False`` (and counted) when it is not here."""
    def schedule(self, now: int) -> Step | None:
        """Plans a step; ``None``: nothing can be planned now, see :meth:`poll_timeout`."""
    def complete(self, step_id: int, tokens: _Tokens, counts: _Tokens | None = None, *, now: int) -> Outputs:
        """A step ran.

        Steps count in order: one that comes early is kept, its outputs come with the one that releases it.

        Args:
            step_id: which.
            tokens: ``[L]``, one per entry of ``step.logits_indices``.
            counts: ``[L]``, tokens per sampled row; without drafts all 1.
            now: time.

        Raises:
            ValueError: another number of tokens than sampled, or no token ids.
            RuntimeError: completed already, and kept.
        """
    def fail(self, step_id: int, now: int) -> Outputs:
        """A step did not run, and nothing of it runs any more: what it would have computed is planned again."""
    def take_finished(self) -> list[Finished]:
        """Ends not told by a completion yet."""
    def reserve(self, request: Request, now: int) -> tuple[tuple[int, int], _Int32] | None:
        """Makes room for a request whose prompt is computed elsewhere, all or nothing.

        Returns:
            ((start, end) of the positions that must travel, int32 block table from position 0); ``None``: no room now.

        Raises:
            ValueError: it can never be served.
        """
    def arrived(self, id: int, start: int, end: int, now: int) -> bool | None:
        """KV of positions ``[start, end)`` is written. ``True``: all is here; ``None``: not a reservation."""
    def hand_over(self, id: int, token: int, now: int) -> bool | None:
        """The first output of a reservation, sampled elsewhere. Returns as :meth:`arrived`."""
    def release(self, id: int, now: int) -> bool:
        """The KV of a held hand-off is where it belongs: its blocks go back."""
    def pin(self, id: int, pin: int) -> bool:
        """A copy begins that touches this request's blocks: they are not handed out before :meth:`unpin`."""
    def unpin(self, id: int, pin: int) -> bool:
        """The copy is over, proven."""
    def has_unfinished(self) -> bool:
        """Something is still to be done or released."""
    def poll_timeout(self) -> int | None:
        """When something is due by the clock alone (absolute ns); ``None``: only an event can help."""
    def reset_prefix_cache(self) -> bool:
        """Forgets all cached prefixes; ``False``, and nothing changed, while any block is owned."""
    def is_idle(self) -> bool:
        """Nothing unfinished, nothing in flight, no block owned."""
    def tokens(self, id: int) -> npt.NDArray[np.uint32] | None:
        """uint32 ``[n]``, prompt and confirmed outputs of a request."""
    def blocks(self, id: int) -> _Int32 | None:
        """int32 ``[n]``, blocks of a request in the order of its positions."""
    @property
    def num_unfinished(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_in_flight(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_used_blocks(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    @property
    def max_blocks_per_row(self) -> int: ...
    def stats(self) -> dict[str, int]:
        """Counters since the start."""
    def check(self) -> None:
        """Verifies the scheduler and its pool.

        Raises:
            AssertionError: says what is wrong.
        """

@final
class BlockPool:
    """Blocks, reference counts, and a prefix cache checked against the tokens.

    Args:
        num_blocks: blocks, reserved ones included.
        block_size: tokens per block.
        reserved_blocks: ids ``0..n`` that are never handed out.
        prefix_caching: keep written blocks findable.
        hash_seed: seed of the block hash.
        hash_bits: bits of it in use.
    """

    def __new__(
        cls,
        num_blocks: int,
        block_size: int,
        *,
        reserved_blocks: int = 0,
        prefix_caching: bool = True,
        hash_seed: int = 0,
        hash_bits: int = 64,
    ) -> BlockPool: ...
    def lookup(self, token_ids: _Tokens, *, namespace: int = 0, max_blocks: int | None = None) -> _Int32:
        """int32 ``[n]``, blocks of the longest cached prefix; changes nothing."""
    def allocate(self, token_ids: _Tokens, num_blocks: int, *, namespace: int = 0) -> tuple[_Int32, int] | None:
        """Takes ``num_blocks`` blocks, cached ones of the tokens first: all or nothing.

        Returns:
            (int32 ``[num_blocks]``, how many of them were cached), or ``None`` when they are not there.
        """
    def register(self, blocks: _Tokens, token_ids: _Tokens, *, namespace: int = 0) -> int:
        """These owned blocks are written with these tokens, from position 0: full ones become findable.

        Returns:
            Number of blocks that are findable now.
        """
    def release(self, blocks: _Tokens) -> None:
        """One owner less for each; a suffix is evicted before its prefix.

        Raises:
            ValueError: a block has fewer owners than shares named; nothing is released.
        """
    def ref_count(self, block: int) -> int:
        """Owners of a block."""
    def reset_prefix_cache(self) -> bool:
        """Forgets all prefixes; ``False`` while any block is owned."""
    @property
    def num_free(self) -> int: ...
    @property
    def num_used(self) -> int: ...
    @property
    def num_cached(self) -> int: ...
    def check(self) -> None:
        """Verifies conservation, one owner, list = counter.

        Raises:
            AssertionError: says what is wrong.
        """

@final
class LoadBalancer:
    """Places requests on workers by occupied KV (decode) and queued prefill tokens (prefill), and keeps the books.

    >>> from pdsched import LoadBalancer
    >>> balancer = LoadBalancer()
    >>> balancer.add_worker(0, "decode", 10_000), balancer.add_worker(1, "decode", 10_000)
    (True, True)
    >>> balancer.place_decode(1, 8_000), balancer.place_decode(2, 100), balancer.place_decode(3, 100)
    (0, 1, 1)
    """

    def __new__(cls) -> LoadBalancer: ...
    def add_worker(self, worker: int, role: _Role, capacity_tokens: int) -> bool:
        """A worker joins; ``False`` when it is there already."""
    def remove_worker(self, worker: int) -> list[int]:
        """A worker is gone. Returns the requests that were placed on it."""
    def set_health(self, worker: int, up: bool) -> bool:
        """Whether a worker may be given new requests."""
    def place_decode(self, request: int, tokens: int, expected_output_tokens: int = 0) -> int | None:
        """Chooses a decode worker and books the request there; ``None``: it fits none now."""
    def place_prefill(self, request: int, prompt_tokens: int) -> int | None:
        """Chooses a prefill worker and books the prompt there."""
    def place_both(self, request: int, tokens: int, expected_output_tokens: int = 0) -> int | None:
        """Chooses a worker that does both phases and books the request there."""
    def choose_decode(self, tokens: int, expected_output_tokens: int = 0) -> int | None:
        """As :meth:`place_decode`, without booking."""
    def choose_prefill(self, prompt_tokens: int) -> int | None:
        """As :meth:`place_prefill`, without booking."""
    def sent(self, request: int, worker: int, seq: int) -> None:
        """The placement travels in message number ``seq``; the worker's reports cover it from there on."""
    def grow(self, request: int, tokens: int) -> None:
        """The request has this many tokens now."""
    def prefill_progress(self, request: int, computed: int) -> None:
        """This many prompt tokens are computed."""
    def release_prefill(self, request: int) -> None:
        """The prompt is computed."""
    def release(self, request: int) -> bool:
        """The request left, however; everything booked for it is undone."""
    def report(self, worker: int, *, seq: int, acked_seq: int, used_tokens: int, prefill_tokens: int = 0) -> bool:
        """A worker's own figures, which reconcile the bookings they cover; ``False``: older than the last."""
    def loads(self) -> list[dict[str, Any]]:
        """All workers by id: capacity, held, booked, expected_growth, occupancy, queued_prefill, ..."""
    @property
    def num_placed(self) -> int: ...
    def check(self) -> None:
        """Verifies the books.

        Raises:
            AssertionError: says what is wrong.
        """

@final
class TransferDone:
    """Host to worker: a chunk of a transfer is over; no more bytes of it will be written."""

    def __new__(cls, transfer: int, peer: _Peer, chunk: int, ok: bool) -> TransferDone: ...
    @property
    def transfer(self) -> int: ...
    @property
    def peer(self) -> _Peer: ...
    @property
    def chunk(self) -> int: ...
    @property
    def ok(self) -> bool: ...

@final
class PeerDead:
    """Host to worker: a peer is dead, proven."""

    def __new__(cls, worker: int, incarnation: int) -> PeerDead: ...
    @property
    def worker(self) -> int: ...
    @property
    def incarnation(self) -> int: ...

@final
class Send:
    """Carry these bytes; keep the order of each connection, never wait."""

    @property
    def to(self) -> _Peer | None:
        """(worker, incarnation), or ``None`` for the cluster."""
    @property
    def data(self) -> bytes: ...

@final
class StartTransfer:
    """Copy runs of tokens into the peer's blocks, then report :class:`TransferDone`."""

    @property
    def transfer(self) -> int: ...
    @property
    def peer(self) -> _Peer: ...
    @property
    def chunk(self) -> int: ...
    @property
    def src_block(self) -> _Int32:
        """``[runs]``."""
    @property
    def src_offset(self) -> _Int32:
        """``[runs]``, first token within the block."""
    @property
    def dst_block(self) -> _Int32:
        """``[runs]``."""
    @property
    def dst_offset(self) -> _Int32:
        """``[runs]``, first token within the block."""
    @property
    def num_tokens(self) -> _Int32:
        """``[runs]``."""

@final
class CancelTransfer:
    """Give up what is not copied yet; each chunk started is still reported."""

    @property
    def transfer(self) -> int: ...
    @property
    def peer(self) -> _Peer: ...

@final
class Connect:
    """Open the KV channel to a peer, by the address it gave."""

    @property
    def peer(self) -> _Peer: ...
    @property
    def address(self) -> bytes: ...

@final
class Disconnect:
    """Close the KV channel to a peer."""

    @property
    def peer(self) -> _Peer: ...

@final
class Kill:
    """End that process; report :class:`PeerDead` when that is proven."""

    @property
    def worker(self) -> int: ...
    @property
    def incarnation(self) -> int: ...

@final
class Worker:
    """One worker's state machine: a scheduler, its KV transfers and its leases.

    The host's loop: :meth:`handle` what comes, :meth:`poll_action` until ``None``, :meth:`schedule`, run,
    :meth:`complete`; with nothing to run, sleep until an event comes or :meth:`poll_timeout`, then
    :meth:`handle_timeout`. Call :meth:`handle_timeout` once at the start.

    Args:
        config: its scheduler's.
        worker_id: its number in the deployment.
        incarnation: this life of it; greater than any before.
        role: what it is for.
        fingerprint: what must agree with its peers before KV may flow.
        address: how its peers reach it, opaque.
        kill_after_ns: how long a fence may stay unanswered before the writer must die.
        record: keep a log, see :meth:`take_log`.
    """

    def __new__(
        cls,
        config: SchedulerConfig,
        *,
        worker_id: int,
        incarnation: int,
        role: _Role | str,
        fingerprint: str = "",
        address: bytes | None = None,
        kill_after_ns: int | None = None,
        record: bool = False,
    ) -> Worker: ...
    def handle(self, event: bytes | TransferDone | PeerDead, now: int) -> None:
        """Something happened. Late, repeated, foreign and unknown things are counted and dropped.

        Raises:
            ValueError: bytes that are not a message.
        """
    def handle_timeout(self, now: int) -> None:
        """Does what is due; early, late or twice is harmless."""
    def poll_action(self) -> Send | StartTransfer | CancelTransfer | Connect | Disconnect | Kill | None:
        """The next thing to do, in order."""
    def poll_timeout(self) -> int | None:
        """When :meth:`handle_timeout` is due (absolute ns)."""
    def schedule(self, now: int) -> Step | None:
        """As :meth:`Scheduler.schedule`."""
    def complete(self, step_id: int, tokens: _Tokens, counts: _Tokens | None = None, *, now: int) -> None:
        """As :meth:`Scheduler.complete`; what it brought leaves as actions."""
    def fail(self, step_id: int, now: int) -> None:
        """As :meth:`Scheduler.fail`; after three in a row the requests go back to the cluster."""
    def take_log(self) -> bytes:
        """What was recorded since the last call, see :func:`replay_worker`."""
    def is_idle(self) -> bool:
        """Nothing unfinished, nothing in transfer or quarantine, no block owned."""
    def check(self) -> None:
        """Verifies everything.

        Raises:
            AssertionError: says what is wrong.
        """
    @property
    def num_rows(self) -> int: ...
    @property
    def max_blocks_per_row(self) -> int: ...
    @property
    def num_running(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    @property
    def num_used_blocks(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    def stats(self) -> dict[str, int]:
        """Counters since the start."""

@final
class ClusterConfig:
    """Limits and times of a cluster; those not given keep their defaults.

    Args:
        epoch: this life of the cluster, at least 1 and never one its workers have seen before.
        lease_ns: a reservation lapses when its other side is silent for this long (2 s).
        heartbeat_ns: how often workers report (0.2 s).
        worker_silence_ns: a silent worker gets no new requests (3 s) ...
        lost_after_ns: ... and this much later its requests are placed again (5 s).
        cluster_silence_ns: a worker that hears nothing for this long ends everything (10 s).
        queue_timeout_ns: longest wait for a place (60 s).
        max_attempts: a request that fails this often ends (5).
        max_queue: requests that may wait (100,000).
        expected_output_tokens: outputs expected of a request whose limit is higher (256).
        retry_after_refusal_ns: when a worker that had no room is asked again (20 ms).

    Raises:
        ValueError: names the field, its value and what it needs.
    """

    def __new__(
        cls,
        epoch: int,
        *,
        lease_ns: int | None = None,
        heartbeat_ns: int | None = None,
        worker_silence_ns: int | None = None,
        lost_after_ns: int | None = None,
        cluster_silence_ns: int | None = None,
        queue_timeout_ns: int | None = None,
        max_attempts: int | None = None,
        max_queue: int | None = None,
        expected_output_tokens: int | None = None,
        retry_after_refusal_ns: int | None = None,
    ) -> ClusterConfig: ...
    @property
    def epoch(self) -> int: ...
    @property
    def lease_ns(self) -> int: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Emit:
    """New outputs for the client: each exactly once, in order, without a gap."""

    @property
    def request(self) -> int: ...
    @property
    def index(self) -> int:
        """Index of the first one among the request's outputs."""
    @property
    def token_ids(self) -> _Int64: ...
    @property
    def extras(self) -> list[bytes]: ...

@final
class Finish:
    """The request ended; nothing about it follows."""

    @property
    def request(self) -> int: ...
    @property
    def reason(self) -> str:
        """``stop``, ``length``, ``abort``, ``capacity``, ``timeout``, ``refused`` or ``error``."""
    @property
    def detail(self) -> str | None: ...
    @property
    def timing(self) -> list[tuple[str, int]]:
        """(phase, when it was entered in ns), in order."""

@final
class Entered:
    """A request entered a phase."""

    @property
    def request(self) -> int: ...
    @property
    def attempt(self) -> int: ...
    @property
    def phase(self) -> str:
        """``queued``, ``resuming``, ``reserving``, ``prefilling``, ``handed_off``, ``decoding``, ``running`` or
        ``finished``."""
    @property
    def prefill(self) -> int | None: ...
    @property
    def decode(self) -> int | None: ...

@final
class WorkerUp:
    """A worker joined, or came back."""

    @property
    def peer(self) -> _Peer: ...
    @property
    def role(self) -> str: ...

@final
class WorkerDown:
    """A worker is gone, or taken for gone."""

    @property
    def peer(self) -> _Peer: ...
    @property
    def reason(self) -> str:
        """``dead``, ``replaced`` or ``silent``."""

@final
class WorkerRefused:
    """A worker introduced itself and was not accepted."""

    @property
    def peer(self) -> _Peer: ...
    @property
    def reason(self) -> str: ...

@final
class Cluster:
    """Who runs where: the registry of workers, the life of every request, placement, admission.

    Drive it as a :class:`Worker`: after each call, :meth:`poll_action` until ``None``.

    Args:
        config: its limits and times.
        record: keep a log, see :meth:`take_log`.
    """

    def __new__(cls, config: ClusterConfig, *, record: bool = False) -> Cluster: ...
    def submit(self, request: Request, now: int) -> None:
        """A client wants this.

        Raises:
            ValueError: it cannot be taken; the text names the value, nothing has changed.
        """
    def abort(self, id: int, now: int) -> None:
        """A client wants it no more; unknown ids are ignored, counted."""
    def handle(self, message: bytes, now: int) -> None:
        """A worker said something.

        Raises:
            ValueError: bytes that are not a message.
        """
    def worker_dead(self, worker: int, incarnation: int, now: int) -> None:
        """A worker is dead, proven: its process has ended."""
    def handle_timeout(self, now: int) -> None:
        """Does what is due."""
    def poll_timeout(self) -> int | None:
        """When :meth:`handle_timeout` is due (absolute ns)."""
    def poll_action(self) -> Send | Emit | Finish | Entered | WorkerUp | WorkerDown | WorkerRefused | None:
        """The next thing to do, in order."""
    def loads(self) -> list[dict[str, Any]]:
        """As :meth:`LoadBalancer.loads`."""
    @property
    def num_requests(self) -> int: ...
    @property
    def num_waiting(self) -> int: ...
    def stats(self) -> dict[str, int]:
        """Counters: what was done, and what was dropped, by cause."""
    def take_log(self) -> bytes:
        """What was recorded since the last call, see :func:`replay_cluster`."""
    def check(self) -> None:
        """Verifies everything.

        Raises:
            AssertionError: says what is wrong.
        """

@final
class Replay:
    """What a replay found."""

    @property
    def calls(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def difference(self) -> str | None:
        """The first output that came out otherwise; ``None``: all are identical."""
    @property
    def truncated(self) -> bool:
        """The log ends in the middle of a record, as that of a killed process may."""

def replay_worker(log: bytes) -> Replay:
    """Feeds a worker's log to a fresh worker and compares every output.

    Raises:
        ValueError: not a log this version reads.
    """

def replay_cluster(log: bytes) -> Replay:
    """Feeds a cluster's log to a fresh cluster and compares every output.

    Raises:
        ValueError: not a log this version reads.
    """
