"""What follows an update, as one GPU kernel: counters and running covariances."""

import triton
import triton.language as tl


@triton.jit
def tally(
    losses,
    applied,
    loss_sum,
    counted,
    skipped,
    total,
    weight,
    running,
    updates,
    size,
    momentum: tl.constexpr,
    samples: tl.constexpr,
    many: tl.constexpr,
    block: tl.constexpr,
):
    """Count the losses in the first program, and fold in the sums of one layer in each other.

    A program is one warp: what is read is overwritten afterwards, and warps would not wait.
    """
    number = tl.program_id(0)
    done = tl.load(applied) != 0
    if number == 0:
        sample = tl.arange(0, many)
        loss = tl.load(losses + sample, mask=sample < samples, other=0.0).to(tl.float64)
        if done:
            tl.store(loss_sum, tl.load(loss_sum) + tl.sum(loss, 0))
            tl.store(counted, tl.load(counted) + samples)
        else:
            tl.store(skipped, tl.load(skipped) + 1)
    elif total is not None:
        layer = number - 1
        observed = tl.load(weight + layer)
        seen = done & (observed > 0)
        for start in range(0, size, block):
            at = start + tl.arange(0, block)
            inside = at < size
            if seen:
                mean = tl.load(total + layer * size + at, mask=inside, other=0.0) / observed
                before = tl.load(running + layer * size + at, mask=inside, other=0.0)
                after = before + (1 - momentum) * (mean - before)
                tl.store(running + layer * size + at, after, mask=inside)
            tl.store(total + layer * size + at, tl.zeros((block,), tl.float64), mask=inside)
        if seen:
            tl.store(updates + layer, tl.load(updates + layer) + 1)
        tl.store(weight + layer, 0.0)
