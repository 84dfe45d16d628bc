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
    skipped,
    scale,
    count,
    decay: tl.constexpr,
    beta_1: tl.constexpr,
    beta_2: tl.constexpr,
    epsilon: tl.constexpr,
    scaled: tl.constexpr,
    block: tl.constexpr,
):
    """Update some weights and their moments, unless the step is skipped.

    `step` counts the updates before this one; with `scaled` gradients are divided by a scale.
    """
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < count
    if tl.load(skipped) == 0:
        number = tl.load(step).to(tl.float64) + 1
        first = 1 - tl.exp(number * tl.log(tl.full((), beta_1, tl.float64)))
        second = 1 - tl.exp(number * tl.log(tl.full((), beta_2, tl.float64)))
        gradient = tl.load(gradients + at, mask=inside, other=0.0)
        if scaled:
            gradient = gradient / tl.load(scale)
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
