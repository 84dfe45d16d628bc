"""Products of the fused kernels, and the matrices they take.

Tensor cores take bfloat16 in any layout, and only that. More digits come from writing a float32 as
a sum of several such numbers: "bf16x3" is better than TF32, "bf16x6" as good as float32.
Covariances and moments, the sums over points that orthogonal attention rests on, have an `exact`
precision of their own; so has, as `wide`, what goes from them to the points. "ieee" is plain
float32.
"""

import triton
import triton.language as tl


@triton.jit
def cut(x):
    """Return the leading eight bits of float32 numbers as bfloat16, and what is left of them."""
    kept = (x.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
    return kept.to(tl.bfloat16), x - kept


@triton.jit
def product(a, b, precision: tl.constexpr):
    """Return a b with sums in float32; of split factors the small terms are added first."""
    if precision == "ieee":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    elif precision == "bf16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    else:
        a_1, a = cut(a.to(tl.float32))
        b_1, b = cut(b.to(tl.float32))
        if precision == "bf16x3":
            a_2, b_2 = a.to(tl.bfloat16), b.to(tl.bfloat16)
            return tl.dot(a_1, b_1, tl.dot(a_1, b_2, tl.dot(a_2, b_1)))
        else:
            a_2, a = cut(a)
            b_2, b = cut(b)
            small = tl.dot(a_2, b_2, tl.dot(a.to(tl.bfloat16), b_1))
            small = tl.dot(a_1, b.to(tl.bfloat16), small)
            return tl.dot(a_1, b_1, tl.dot(a_1, b_2, tl.dot(a_2, b_1, small)))


@triton.jit
def of_one_head(row, column, share: tl.constexpr, rows: tl.constexpr, width: tl.constexpr):
    """Say which of the rows and columns of a matrix [rows width] meet; heads have `share` rows."""
    return row // share == column // (width * share // rows)


@triton.jit
def whole(compact, share: tl.constexpr, rows: tl.constexpr, width: tl.constexpr):
    """Load a matrix that couples what is of one head, stored as [share width], with its zeros."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, width)[None, :]
    own = of_one_head(row, column, share, rows, width)
    return tl.load(compact + row % share * width + column, mask=own, other=0.0)


@triton.jit
def load_at(place, inside):
    """Load what lies at places, all of which there are if `inside` is None."""
    if inside is None:
        return tl.load(place)
    else:
        return tl.load(place, mask=inside, other=0.0)


@triton.jit
def product_at(a, parts, apart, at, inside, precision: tl.constexpr):
    """Return the product with a matrix at some places of a sum of bfloat16 ones, so far apart."""
    b_1 = load_at(parts + at, inside)
    if precision == "bf16":
        return tl.dot(a.to(tl.bfloat16), b_1)
    else:
        b_2 = load_at(parts + apart + at, inside)
        a_1, a = cut(a)
        if precision == "bf16x3":
            return tl.dot(a_1, b_1, tl.dot(a_1, b_2, tl.dot(a.to(tl.bfloat16), b_1)))
        else:
            b_3 = load_at(parts + 2 * apart + at, inside)
            if precision == "ieee":
                b = b_1.to(tl.float32) + (b_2.to(tl.float32) + b_3.to(tl.float32))
                return product(a_1.to(tl.float32) + a, b, precision)
            else:
                a_2, a = cut(a)
                small = tl.dot(a_2, b_2, tl.dot(a.to(tl.bfloat16), b_1))
                small = tl.dot(a_1, b_3, small)
                return tl.dot(a_1, b_1, tl.dot(a_1, b_2, tl.dot(a_2, b_1, small)))


@triton.jit
def product_with(
    a,
    parts,
    apart,
    share: tl.constexpr,
    rows: tl.constexpr,
    width: tl.constexpr,
    form: tl.constexpr,
    precision: tl.constexpr,
):
    """Return the product with a matrix [rows width] stored as a sum of bfloat16 ones.

    Its form is "plain" or "turned": then the matrix is [out in], as that of a linear layer, and a
    is what comes before it, [in]; or "whole", if it couples what is of one head and is stored as
    [share width], or "whole_turned".
    """
    if form == "plain" or form == "whole":
        row, column = tl.arange(0, rows)[:, None], tl.arange(0, width)[None, :]
    else:
        row, column = tl.arange(0, rows)[None, :], tl.arange(0, width)[:, None]
    if form == "plain" or form == "turned":
        return product_at(a, parts, apart, row * width + column, None, precision)
    else:
        own = of_one_head(row, column, share, rows, width)
        return product_at(a, parts, apart, row % share * width + column, own, precision)


@triton.jit
def held(
    parts, share: tl.constexpr, width: tl.constexpr, form: tl.constexpr, precision: tl.constexpr
):
    """Load a square matrix that is needed twice, if it is short enough to be held in between."""
    if isinstance(parts, tl.tensor_descriptor):
        tl.static_assert(precision == "bf16")
        return parts.load([0, 0])
    elif precision != "bf16":
        return parts
    elif form == "whole":
        return whole(parts, share, width, width)
    else:
        row, column = tl.arange(0, width)[:, None], tl.arange(0, width)[None, :]
        return tl.load(parts + row * width + column)


@triton.jit
def product_held(
    a,
    matrix,
    apart,
    share: tl.constexpr,
    width: tl.constexpr,
    form: tl.constexpr,
    precision: tl.constexpr,
):
    """Return the product with a matrix that is held, or with its transpose."""
    if precision != "bf16":
        return product_with(a, matrix, apart, share, width, width, form, precision)
    elif form == "plain" or form == "whole":
        return tl.dot(a.to(tl.bfloat16), matrix)
    else:
        return tl.dot(a.to(tl.bfloat16), tl.trans(matrix))


@triton.jit
def _product_with_weight(
    a,
    weight,
    apart,
    rows: tl.constexpr,
    width: tl.constexpr,
    first: tl.constexpr,
    form: tl.constexpr,
    precision: tl.constexpr,
):
    if isinstance(weight, tl.tensor_descriptor):
        tl.static_assert(precision == "bf16")
        # Rounded before the weight is waited for, a takes half the registers meanwhile.
        a = a.to(tl.bfloat16)
        matrix = weight.load([first, 0])
        return product_held(a, matrix, apart, width, width, form, precision)
    else:
        weight += first * width
        return product_with(a, weight, apart, width, rows, width, form, precision)


@triton.jit
def linear(
    x,
    weight,
    apart,
    rows: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    first: tl.constexpr = 0,
):
    """Return what a linear layer from `width` to `rows` makes of x, without its bias.

    The weight may begin at a row further down, and be given by a descriptor.
    """
    return _product_with_weight(x, weight, apart, rows, width, first, "turned", precision)


@triton.jit
def linear_backward(
    gradient,
    weight,
    apart,
    rows: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
    first: tl.constexpr = 0,
):
    """Return the gradient before a linear layer from that behind it."""
    return _product_with_weight(gradient, weight, apart, rows, width, first, "plain", precision)


@triton.jit
def store_parts(parts, plane, at, x):
    """Store float32 numbers as the sum of three bfloat16 ones, without loss."""
    x_1 = x.to(tl.bfloat16)
    x = x - x_1.to(tl.float32)
    x_2 = x.to(tl.bfloat16)
    tl.store(parts + at, x_1)
    tl.store(parts + plane + at, x_2)
    tl.store(parts + 2 * plane + at, (x - x_2.to(tl.float32)).to(tl.bfloat16))


@triton.jit
def load_parts(parts, plane, at):
    """Load float32 numbers that were stored so."""
    small = tl.load(parts + plane + at).to(tl.float32) + tl.load(parts + 2 * plane + at)
    return tl.load(parts + at) + small


@triton.jit
def store_within_heads(
    compact, matrix, share: tl.constexpr, rows: tl.constexpr, width: tl.constexpr
):
    """Store what couples rows and columns of the same head as [share width]."""
    row, column = tl.arange(0, rows)[:, None], tl.arange(0, width)[None, :]
    own = of_one_head(row, column, share, rows, width)
    tl.store(compact + row % share * width + column, matrix, mask=own)
