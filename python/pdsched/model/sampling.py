"""Sampling parameters, and sampling that gives the same stream whatever the batch, the worker or the failure.

Randomness is a function, not a state: the uniform number behind the token at `position` of a request is the Philox
counter-based generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11) at key (seed, sibling)
and counter (position + 1, draw, 0, 0); the one is NumPy's, which steps the counter before it draws. A request that
moves to another worker, or is computed again, draws the same numbers.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_SEED_LIMIT = 2**64
_TOKEN_LIMIT = 2**31
_NUCLEUS_GUESS = 1024
"""How many of the likeliest tokens are looked at first for `top_p`; sorting a whole vocabulary takes milliseconds."""


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How the next token is chosen. Travels as msgpack in `Request.extra`; the default is greedy and travels as `b""`.

    Raises `ValueError` naming the value that is out of range.
    """

    temperature: float = 0.0
    """0 is greedy; [0, 100]."""
    seed: int = 0
    """Key of the random stream; [0, 2**64)."""
    sibling: int = 0
    """Which of several answers to one prompt: siblings with one seed draw different streams; [0, 2**64)."""
    top_k: int = 0
    """Only the k likeliest tokens; 0 is all of them."""
    top_p: float = 1.0
    """Only the smallest set of likeliest tokens that reaches this probability; (0, 1]."""
    min_tokens: int = 0
    """Output tokens before any of `stop_token_ids` may come."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end the request: never drawn while `min_tokens` is not reached."""

    def __post_init__(self) -> None:
        _check("temperature", self.temperature, 0 <= self.temperature <= 100, "in [0, 100]")
        _check("seed", self.seed, 0 <= self.seed < _SEED_LIMIT, "in [0, 2**64)")
        _check("sibling", self.sibling, 0 <= self.sibling < _SEED_LIMIT, "in [0, 2**64)")
        _check("top_k", self.top_k, 0 <= self.top_k < _TOKEN_LIMIT, "in [0, 2**31)")
        _check("top_p", self.top_p, 0 < self.top_p <= 1, "in (0, 1]")
        _check("min_tokens", self.min_tokens, 0 <= self.min_tokens < _TOKEN_LIMIT, "in [0, 2**31)")
        for token in self.stop_token_ids:
            _check("stop_token_ids", token, 0 <= token < _TOKEN_LIMIT, "in [0, 2**31) each")

    def encode(self) -> bytes:
        """msgpack, empty when all is default."""
        return b"" if self == GREEDY else msgspec.msgpack.encode(self)

    @staticmethod
    def decode(extra: bytes) -> SamplingParams:
        """From `encode`. Raises `ValueError` for anything else."""
        if not extra:
            return GREEDY
        try:
            return msgspec.msgpack.decode(extra, type=SamplingParams)
        except msgspec.MsgspecError as error:
            raise ValueError(f"malformed sampling parameters: {error}") from error


def _check(name: str, value: object, holds: bool, wanted: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {wanted}, got {value}")


GREEDY = SamplingParams()


def uniform(seed: int, sibling: int, position: int, draw: int = 0) -> float:
    """The uniform number in [0, 1) of one draw: 53 bits of Philox-4x64-10 at key (seed, sibling).

    `position` is the index of the token in its sequence, prompt included; `draw` counts the numbers used at that
    position.
    """
    key = np.array([seed, sibling], dtype=np.uint64)
    counter = np.array([position, draw, 0, 0], dtype=np.uint64)
    return (int(np.random.Philox(counter=counter, key=key).random_raw()) >> 11) * 2.0**-53


def allowed_logits(logits: Floats, params: SamplingParams, num_output: int) -> Floats:
    """`logits` [vocab], with the stop tokens at -inf (in a copy) while there are fewer outputs than `min_tokens`."""
    if num_output >= params.min_tokens or not params.stop_token_ids:
        return logits
    logits = logits.copy()
    logits[[token for token in params.stop_token_ids if token < len(logits)]] = -math.inf
    return logits


def sample(logits: npt.NDArray[Any], params: SamplingParams, *, position: int, num_output: int) -> int:
    """The token for one row of `logits` [vocab].

    `position` is the index that the new token gets in its sequence, `num_output` the number of output tokens before it.
    Computed in float64. The inverse distribution function runs in order of token id, not of probability: two tokens
    whose probabilities swap by a rounding error then do not swap their shares of the unit interval.
    """
    logits = allowed_logits(logits.astype(np.float64), params, num_output)
    if params.temperature == 0:
        return int(np.argmax(logits))
    with np.errstate(over="ignore"):  # a tiny temperature sends everything but the maximum to -inf, as it should
        weights = np.exp((logits - logits.max()) / params.temperature)
    kept = _kept(weights, params)
    cumulative = np.cumsum(weights if kept is None else weights[kept])
    # Strictly below the end, whatever the product rounds to: the first entry above it then has a weight.
    target = min(uniform(params.seed, params.sibling, position) * cumulative[-1], np.nextafter(cumulative[-1], 0.0))
    index = int(np.searchsorted(cumulative, target, side="right"))
    return index if kept is None else int(kept[index])


def _kept(weights: Floats, params: SamplingParams) -> npt.NDArray[np.intp] | None:
    """Ids, ascending, of the tokens that `top_k` and `top_p` leave; None for all. Ties go to the lower id."""
    top_k = params.top_k if 0 < params.top_k < len(weights) else 0
    if not top_k and params.top_p >= 1:
        return None
    total = float(weights.sum())
    ranked = _ranked(weights, top_k or min(_NUCLEUS_GUESS, len(weights)))
    if top_k:
        total = float(weights[ranked].sum())  # top_p is a share of what top_k left
    if params.top_p < 1:
        cumulative = np.cumsum(weights[ranked])
        if cumulative[-1] < params.top_p * total and not top_k:
            ranked = _ranked(weights, len(weights))
            cumulative = np.cumsum(weights[ranked])
        ranked = ranked[: int(np.searchsorted(cumulative, params.top_p * total, side="left")) + 1]
    return np.sort(ranked)


def _ranked(weights: Floats, count: int) -> npt.NDArray[np.intp]:
    """Ids of the `count` largest weights, largest first, ties by id."""
    if count < len(weights):
        threshold = np.partition(weights, -count)[-count]
        candidates = np.flatnonzero(weights >= threshold)
    else:
        candidates = np.arange(len(weights))
    return candidates[np.argsort(-weights[candidates], kind="stable")][:count]
