"""What the fused kernels share: products, layer norms, softmax within heads.

A kernel holds a tile of points with all their channels, so a chain of point-wise layers goes from
one product to the next without leaving the chip. Names are those of the modules they replace.

Tensor cores take bfloat16 in any layout, and only that. More digits come from writing a float32 as
a sum of several such numbers: "bf16x3" is better than TF32, "bf16x6" as good as float32.
Covariances and moments, the sums over points that orthogonal attention rests on, have an `exact`
precision of their own; so has, as `wide`, what goes from them to the points. "ieee" is plain
float32.
"""

import triton
import triton.language as tl

_LOWEST = tl.constexpr(-1e30)


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
    if precision != "bf16":
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
def linear(x, weight, apart, rows: tl.constexpr, width: tl.constexpr, precision: tl.constexpr):
    """Return what a linear layer from `width` to `rows` makes of x, without its bias."""
    return product_with(x, weight, apart, width, rows, width, "turned", precision)


@triton.jit
def linear_backward(
    gradient, weight, apart, rows: tl.constexpr, width: tl.constexpr, precision: tl.constexpr
):
    """Return the gradient before a linear layer from that behind it."""
    return product_with(gradient, weight, apart, width, rows, width, "plain", precision)


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


@triton.jit(do_not_specialize=["points", "steps", "times"])
def moments_within_heads(
    a,
    b,
    weights,
    out,
    points,
    steps,
    times,
    scale,
    weighted: tl.constexpr,
    share: tl.constexpr,
    modes: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Sum w aᵀb over the points of this program, within heads, times a scale.

    a has `modes` channels, b `width`, and several times for each a.
    """
    part, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    source = sample // times
    a += source * points * modes
    b += sample * points * width
    total = tl.zeros((modes, width), tl.float32)
    for step in range(steps):
        row = (part * steps + step) * tile + tl.arange(0, tile)
        at, inside = places(0, row, points, modes)
        x = tl.load(a + at, mask=inside, other=0.0)
        at, inside = places(0, row, points, width)
        y = tl.load(b + at, mask=inside, other=0.0)
        if weighted:
            weight = tl.load(weights + source * points + row, mask=row < points, other=0.0)
            x = x * weight[:, None]
        total += product(tl.trans(x), y, precision)
    out += (sample * tl.num_programs(0) + part) * share * width
    store_within_heads(out, total * scale, share, modes, width)


@triton.jit
def places(sample, row, points, width: tl.constexpr):
    """Return where points of a sample lie in [samples points width], and which there are."""
    column = tl.arange(0, width)
    at = (sample * points + row)[:, None] * width + column[None, :]
    return at, (row < points)[:, None] & (column < width)[None, :]


@triton.jit
def own_points(points, tile: tl.constexpr, width: tl.constexpr):
    """Return the sample and the points of this program, where they lie, and which there are."""
    sample = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * tile + tl.arange(0, tile)
    at, inside = places(sample, row, points, width)
    return sample, row, at, inside


@triton.jit
def point_weights(weights, sample, row, points, weighted: tl.constexpr, tile: tl.constexpr):
    """Return how much the points of a tile count: as they are weighted, or all alike."""
    if weighted:
        return tl.load(weights + sample * points + row, mask=row < points, other=0.0)
    else:
        return tl.full((tile,), 1.0, tl.float32) / points


@triton.jit
def normalised(x, width: tl.constexpr):
    """Return x with zero mean and unit variance over channels, and the factor that did it."""
    centred = x - (tl.sum(x, 1) / width)[:, None]
    factor = tl.rsqrt(tl.sum(centred * centred, 1) / width + 1e-5)
    return centred * factor[:, None], factor


@triton.jit
def norm_backward(gradient, unit, factor, width: tl.constexpr):
    """Return the gradient before a normalisation from that after it."""
    mean = tl.sum(gradient, 1) / width
    along = tl.sum(gradient * unit, 1) / width
    return (gradient - mean[:, None] - unit * along[:, None]) * factor[:, None]


@triton.jit
def head_softmax(x, share: tl.constexpr, tile: tl.constexpr, width: tl.constexpr):
    """Return the softmax over the channels of each head."""
    heads = tl.reshape(x, (tile, width // share, share))
    raised = tl.exp(heads - tl.max(heads, 2, keep_dims=True))
    return tl.reshape(raised * (1.0 / tl.sum(raised, 2, keep_dims=True)), (tile, width))


@triton.jit
def head_sums(x, share: tl.constexpr, tile: tl.constexpr, width: tl.constexpr):
    """Return the sum over the channels of each head, at each of them."""
    heads = tl.reshape(x, (tile, width // share, share))
    sums = tl.sum(heads, 2, keep_dims=True)
    return tl.reshape(tl.broadcast_to(sums, (tile, width // share, share)), (tile, width))


@triton.jit
def quick(instruction: tl.constexpr, x):
    """Return a function that the hardware knows to three digits or more."""
    return tl.inline_asm_elementwise(
        instruction + " $0, $1;", "=f,f", [x], tl.float32, is_pure=True, pack=1
    )


@triton.jit
def gelu(x, precision: tl.constexpr):
    """Return x Φ(x) and its derivative.

    For products of bfloat16 numbers Φ is a hyperbolic tangent, right to 5e-5 before the hardware
    rounds it. Else the error function is that of Abramowitz and Stegun, 7.1.26, right to 1.5e-7.
    """
    if precision == "bf16":
        square = x * x
        some = tl.minimum(square, 36.0)
        argument = x * ((-3.51516870e-4 * some + 3.70056466e-2) * some + 0.797507884)
        share = 0.5 * quick("tanh.approx.f32", argument) + 0.5
        bell = quick("ex2.approx.ftz.f32", -0.7213475204 * square - 1.325748064)
        return x * share, share + x * bell
    else:
        z = tl.abs(x) * 0.7071067811865476
        t = tl.rsqrt(1.0 + 0.3275911 * z)
        t = t * t  # quicker than a division
        series = ((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736
        bell = tl.exp(-z * z)
        tail = 0.5 * (series * t + 0.254829592) * t * bell
        share = tl.where(x > 0, 1.0 - tail, tail)
        return x * share, share + x * bell * 0.3989422804014327


@triton.jit(do_not_specialize=["rows", "chunk", "pairs"])
def weight_gradients(
    left,
    right,
    out,
    rows,
    chunk,
    pairs,
    sharing: tl.constexpr,
    tile: tl.constexpr,
    width: tl.constexpr,
    precision: tl.constexpr,
):
    """Sum leftᵀ right over a chunk of rows for one of several pairs, and left itself.

    left is [pairs rows width]. The first `sharing` pairs have the same right, and their left is
    not summed. The results of the chunks, out [chunks pairs*(width+1) width], first the products
    of all pairs, then the sums, are added afterwards, always in the same order.
    """
    pair, part = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, width)
    left += pair.to(tl.int64) * rows * width
    right += tl.where(pair < sharing, 0, pair - max(sharing - 1, 0)).to(tl.int64) * rows * width
    total = tl.zeros((width, width), tl.float32)
    bias = tl.zeros((width,), tl.float32)
    for start in range(part * chunk, tl.minimum(part * chunk + chunk, rows), tile):
        at, inside = places(0, tl.arange(0, tile), rows - start, width)
        first = tl.cast(start, tl.int64) * width
        a = tl.load(left + first + at, mask=inside, other=0.0)
        b = tl.load(right + first + at, mask=inside, other=0.0)
        total += product(tl.trans(a), b, precision)
        if pair >= sharing:
            bias += tl.sum(a.to(tl.float32), 0)
    out += part * pairs * (width + 1) * width
    tl.store(out + (pair * width + column[:, None]) * width + column[None, :], total)
    tl.store(out + (pairs * width + pair) * width + column, bias)


@triton.jit
def _add_up_some(parts, out, count, size, block, at_once: tl.constexpr, width: tl.constexpr):
    column = block * width + tl.arange(0, width)
    total = tl.zeros((width,), tl.float32)
    for start in range(0, count, at_once):
        part = start + tl.arange(0, at_once)
        there = (part < count)[:, None] & (column < size)[None, :]
        at = part[:, None] * size + column[None, :]
        total += tl.sum(tl.load(parts + at, mask=there, other=0.0), 0)
    tl.store(out + column, total, mask=column < size)


@triton.jit(
    do_not_specialize=[
        "count_1", "size_1", "count_2", "size_2", "count_3", "size_3", "count_4", "size_4"
    ]
)  # fmt: skip
def add_up(
    parts_1,
    out_1,
    count_1,
    size_1,
    parts_2,
    out_2,
    count_2,
    size_2,
    parts_3,
    out_3,
    count_3,
    size_3,
    parts_4,
    out_4,
    count_4,
    size_4,
    rows: tl.constexpr,
    width: tl.constexpr,
    more_rows: tl.constexpr,
    less_width: tl.constexpr,
):
    """Add up the rows of four arrays [count size], always in the same order.

    A program takes so many rows of so many columns at once, of the first array fewer rows.
    """
    block = tl.program_id(0)
    blocks_1 = tl.cdiv(size_1, width)
    blocks_2 = blocks_1 + tl.cdiv(size_2, less_width)
    blocks_3 = blocks_2 + tl.cdiv(size_3, less_width)
    if block < blocks_1:
        _add_up_some(parts_1, out_1, count_1, size_1, block, rows, width)
    elif block < blocks_2:
        _add_up_some(parts_2, out_2, count_2, size_2, block - blocks_1, more_rows, less_width)
    elif block < blocks_3:
        _add_up_some(parts_3, out_3, count_3, size_3, block - blocks_2, more_rows, less_width)
    else:
        _add_up_some(parts_4, out_4, count_4, size_4, block - blocks_3, more_rows, less_width)
