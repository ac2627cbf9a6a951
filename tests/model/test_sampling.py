"""Sampling: valid parameters only, the documented generator, the right distribution, and the same stream anywhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdsched.model.sampling import GREEDY, SamplingParams, sample, uniform

from .planner import Planner
from .tiny import Tiny

MASK = 2**64 - 1


def philox(counter: tuple[int, int], key: tuple[int, int]) -> int:
    """First word of Philox-4x64-10 in plain integers, after the paper; the upper half of the counter is zero."""
    (c0, c1), c2, c3 = counter, 0, 0
    k0, k1 = key
    for _ in range(10):
        high0, low0 = divmod(c0 * 0xD2E7470EE14C6C93, 2**64)
        high1, low1 = divmod(c2 * 0xCA5A826395121157, 2**64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) & MASK, (k1 + 0xBB67AE8584CAA73B) & MASK
    return c0


def test_the_reference_is_philox() -> None:
    """Known answer of the Random123 library for counter 0 and key 0."""
    assert philox((0, 0), (0, 0)) == 0x16554D9ECA36314C


@given(
    seed=st.integers(0, MASK),
    sibling=st.integers(0, MASK),
    position=st.integers(0, 2**31),
    draw=st.integers(0, 2**31),
)
def test_uniform_is_the_documented_function(seed: int, sibling: int, position: int, draw: int) -> None:
    assert uniform(seed, sibling, position, draw) == (philox((position + 1, draw), (seed, sibling)) >> 11) / 2**53


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("temperature", -1, r"temperature must be in \[0, 100\], got -1"),
        ("temperature", float("nan"), r"temperature must be in \[0, 100\], got nan"),
        ("temperature", 100.5, r"temperature must be in \[0, 100\], got 100.5"),
        ("seed", -1, r"seed must be in \[0, 2\*\*64\), got -1"),
        ("seed", 2**64, r"seed must be in \[0, 2\*\*64\), got 18446744073709551616"),
        ("sibling", -3, r"sibling must be in \[0, 2\*\*64\), got -3"),
        ("top_k", -1, r"top_k must be in \[0, 2\*\*31\), got -1"),
        ("top_p", 0, r"top_p must be in \(0, 1\], got 0"),
        ("top_p", 1.01, r"top_p must be in \(0, 1\], got 1.01"),
        ("min_tokens", -2, r"min_tokens must be in \[0, 2\*\*31\), got -2"),
        ("stop_token_ids", (5, -7), r"stop_token_ids must be in \[0, 2\*\*31\) each, got -7"),
    ],
)
def test_values_out_of_range_are_named(field: str, value: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        SamplingParams(**{field: value})


def test_parameters_travel_as_bytes() -> None:
    params = SamplingParams(temperature=0.7, seed=2**64 - 1, top_k=40, top_p=0.9, min_tokens=3, stop_token_ids=(2, 0))
    assert SamplingParams.decode(params.encode()) == params
    assert SamplingParams().encode() == b""
    assert SamplingParams.decode(b"") is GREEDY


@pytest.mark.parametrize("extra", [b"\xc1", b"\x01", b"\x81\xa1x\x01", b"\x81\xabtemperature\xff"])
def test_malformed_bytes_are_refused(extra: bytes) -> None:
    with pytest.raises(ValueError, match="malformed sampling parameters"):
        SamplingParams.decode(extra)


def draws(logits: list[float], count: int = 4000, **fields: Any) -> np.ndarray:
    """Shares with which the tokens come."""
    params = SamplingParams(seed=11, **fields)
    row = np.array(logits, dtype=np.float32)
    tokens = [sample(row, params, position=position, num_output=0) for position in range(count)]
    return np.bincount(tokens, minlength=len(logits)) / count


def test_shares_follow_the_softmax() -> None:
    logits = [0.0, 1.0, -1.0, 2.0, -np.inf]
    for temperature in (0.5, 1.0, 3.0):
        weights = np.exp(np.array(logits) / temperature)
        shares = draws(logits, temperature=temperature)
        assert np.abs(shares - weights / weights.sum()).max() < 0.025
        assert shares[4] == 0


def test_top_k_and_top_p_leave_the_likeliest() -> None:
    logits = list(np.log([0.1, 0.4, 0.05, 0.3, 0.15]))
    assert set(np.flatnonzero(draws(logits, 400, temperature=1.0, top_k=2))) == {1, 3}
    assert set(np.flatnonzero(draws(logits, 400, temperature=1.0, top_p=0.69))) == {1, 3}
    assert set(np.flatnonzero(draws(logits, 400, temperature=1.0, top_p=0.71))) == {1, 3, 4}
    assert set(np.flatnonzero(draws(logits, 400, temperature=1.0, top_p=0.1))) == {1}
    # top_p is a share of what top_k left: 0.4 of 0.7 is more than half.
    assert set(np.flatnonzero(draws(logits, 400, temperature=1.0, top_k=2, top_p=0.5))) == {1}


def test_top_k_breaks_ties_by_token_id() -> None:
    assert set(np.flatnonzero(draws([1.0] * 6, 300, temperature=1.0, top_k=2))) == {0, 1}


def test_top_p_over_a_flat_vocabulary_needs_more_than_the_first_guess() -> None:
    shares = draws([0.0] * 5000, 2000, temperature=1.0, top_p=0.5)
    assert shares[2500:].sum() == 0
    assert shares[1250:2500].sum() == pytest.approx(0.5, abs=0.05)


def test_extreme_temperatures() -> None:
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    for temperature in (1e-300, 1e-6):
        assert sample(logits, SamplingParams(temperature=temperature), position=3, num_output=0) == 1
    assert len(set(np.flatnonzero(draws([1.0, 3.0, 2.0], 200, temperature=100.0)))) == 3


def test_min_tokens_hides_the_stop_tokens() -> None:
    logits = np.array([1.0, 3.0, 2.0], dtype=np.float32)
    greedy = SamplingParams(min_tokens=2, stop_token_ids=(1, 99))
    assert [sample(logits, greedy, position=5, num_output=n) for n in range(4)] == [2, 2, 1, 1]
    warm = SamplingParams(temperature=1.0, min_tokens=2, stop_token_ids=(1,))
    assert all(sample(logits, warm, position=p, num_output=1) != 1 for p in range(200))


def test_rounding_does_not_swap_shares() -> None:
    """Two near-equal logits that change order by a rounding error keep their parts of the unit interval."""
    params = SamplingParams(temperature=1.0, top_k=3, seed=5)
    a = np.array([1.0, 1.0 + 1e-6, 0.0, -5.0], dtype=np.float32)
    b = np.array([1.0 + 1e-6, 1.0, 0.0, -5.0], dtype=np.float32)
    for position in range(300):
        assert sample(a, params, position=position, num_output=0) == sample(b, params, position=position, num_output=0)


EXTRAS = [
    SamplingParams(temperature=0.9, seed=1).encode(),
    SamplingParams(temperature=1.3, seed=2, top_k=20, top_p=0.8).encode(),
    b"",
    SamplingParams(temperature=0.9, seed=1, sibling=1).encode(),
]


def test_a_sampled_stream_does_not_depend_on_the_batch(tiny: Callable[[str], Tiny]) -> None:
    case = tiny("llama")

    def run(requests: list[int], chunk: int, block_size: int) -> dict[int, list[int]]:
        planner = Planner(160, block_size, num_rows=6, chunk=chunk, seed=chunk)
        for request in requests:
            planner.add(request, case.prompts[request], 24, EXTRAS[request])
        return planner.run(case.runner(block_size))

    together = run([0, 1, 2, 3], 64, 16)
    alone = {request: tokens for request in range(4) for _, tokens in run([request], 50, 7).items()}
    assert alone == together
    assert together[2] == case.expected[2][:24]
    assert together[0] != case.expected[0][:24]


def test_siblings_and_seeds_differ_and_preemption_does_not(tiny: Callable[[str], Tiny]) -> None:
    case = tiny("llama")
    prompt = case.prompts[1]

    def run(params: SamplingParams, preempt_after: int = -1) -> list[int]:
        runner = case.runner(16)
        planner = Planner(160, 16, num_rows=6)
        sequence = planner.add(0, prompt, 20, params.encode())
        while (step := planner.plan()) is not None:
            planner.complete(step, runner.run(step))
            if len(sequence.output) == preempt_after:
                planner.preempt(0)
                preempt_after = -1
        return sequence.output

    base = run(SamplingParams(temperature=1.0, seed=9))
    assert run(SamplingParams(temperature=1.0, seed=9), preempt_after=8) == base
    assert run(SamplingParams(temperature=1.0, seed=9, sibling=1)) != base
    assert run(SamplingParams(temperature=1.0, seed=10)) != base


def test_min_tokens_counts_from_the_prompts_end(tiny: Callable[[str], Tiny]) -> None:
    """Greedy too: the token that would come third is kept out until four have come, or comes if two were asked for."""
    case = tiny("llama")
    base = case.expected[1][:10]
    stop = base[2]
    assert stop not in base[:2]

    def run(min_tokens: int) -> list[int]:
        planner = Planner(160, 16, num_rows=6)
        extra = SamplingParams(min_tokens=min_tokens, stop_token_ids=(stop,)).encode()
        planner.add(1, case.prompts[1], 10, extra)
        return planner.run(case.runner(16))[1]

    assert run(2) == base
    late = run(4)
    assert late[:2] == base[:2]
    assert stop not in late[:4]
