"""The relative error of a training step as one GPU kernel there and one back."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def relative_error(pred, true, errors, norms, count, block: tl.constexpr):
    """Return ‖pred - true‖ / ‖true‖ of one sample, and keep both norms for the way back."""
    sample, samples = tl.program_id(0), tl.num_programs(0)
    first = sample.to(tl.int64) * count
    apart, size = tl.zeros((block,), tl.float64), tl.zeros((block,), tl.float64)
    for start in range(0, count, block):
        at = start + tl.arange(0, block)
        ours = tl.load(pred + first + at, mask=at < count, other=0.0).to(tl.float64)
        theirs = tl.load(true + first + at, mask=at < count, other=0.0).to(tl.float64)
        apart += (ours - theirs) * (ours - theirs)
        size += theirs * theirs
    difference, norm = tl.sqrt(tl.sum(apart, 0)), tl.sqrt(tl.sum(size, 0))
    tl.store(errors + sample, (difference / norm).to(tl.float32))
    tl.store(norms + sample, difference)
    tl.store(norms + samples + sample, norm)


@triton.jit(do_not_specialize=["count"])
def relative_error_backward(d_errors, pred, true, norms, d_pred, count, block: tl.constexpr):
    """Return d_error (pred - true) / (‖pred - true‖ ‖true‖) at some points of a sample.

    Where nothing is wrong the error has no derivative, and zero is given.
    """
    sample, samples = tl.program_id(0), tl.num_programs(0)
    first = sample.to(tl.int64) * count
    difference, norm = tl.load(norms + sample), tl.load(norms + samples + sample)
    slope = tl.load(d_errors + sample).to(tl.float64) / (difference * norm)
    slope = tl.where(difference == 0, 0.0, slope)
    at = tl.program_id(1) * block + tl.arange(0, block)
    ours = tl.load(pred + first + at, mask=at < count, other=0.0).to(tl.float64)
    theirs = tl.load(true + first + at, mask=at < count, other=0.0).to(tl.float64)
    tl.store(d_pred + first + at, (slope * (ours - theirs)).to(tl.float32), mask=at < count)
