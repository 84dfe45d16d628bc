"""The update of AdamW as one GPU kernel."""

import triton
import triton.language as tl


@triton.jit
def adamw(
    weights,
    gradients,
    means,
    squares,
    step,
    rate,
    losses,
    norm,
    applied,
    count,
    samples: tl.constexpr,
    longest: tl.constexpr,
    decay: tl.constexpr,
    beta_1: tl.constexpr,
    beta_2: tl.constexpr,
    epsilon: tl.constexpr,
    many: tl.constexpr,
    block: tl.constexpr,
):
    """Update some weights and their moments if losses and gradient are finite, and say whether.

    `step` counts the updates before this one. A gradient with a norm above `longest` is clipped.
    """
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    sample = tl.arange(0, many)
    size = tl.sum(tl.load(losses + sample, mask=sample < samples, other=0.0), 0) + tl.load(norm)
    finite = size - size == 0  # not true of NaN and infinity
    if tl.program_id(0) == 0:
        tl.store(applied, finite)
    if finite:
        number = tl.load(step).to(tl.float64) + 1
        first = 1 - tl.exp(number * tl.log(tl.full((), beta_1, tl.float64)))
        second = 1 - tl.exp(number * tl.log(tl.full((), beta_2, tl.float64)))
        gradient = tl.load(gradients + at, mask=inside, other=0.0)
        if longest is not None:
            gradient = gradient / (tl.maximum(tl.load(norm), longest) / longest)
        mean = tl.load(means + at, mask=inside, other=0.0)
        mean += (1 - beta_1) * (gradient - mean)
        square = tl.load(squares + at, mask=inside, other=0.0)
        square = beta_2 * square + (1 - beta_2) * gradient * gradient
        speed = tl.load(rate)
        weight = tl.load(weights + at, mask=inside, other=0.0)
        weight -= speed * decay * weight
        long = tl.sqrt(square) / tl.sqrt(second).to(tl.float32) + epsilon
        weight -= speed / first.to(tl.float32) * mean / long
        tl.store(weights + at, weight, mask=inside)
        tl.store(means + at, mean, mask=inside)
        tl.store(squares + at, square, mask=inside)
