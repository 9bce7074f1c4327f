/* Products, in terms of a level's `Floats` and of its `Ints`, which hold as many. Included once per kind of dot product,
 * see simd_math.h. Each element is one chain of sums, so that no size of a tile changes its bits. */
#include "products.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

/* -- sums */

template <int I> struct Index {
    enum { at = I };
};

/* do_it(Index<0>), do_it(Index<1>), …: places that are constants from the start keep an array in registers. */
template <int I, int COUNT, typename Do> __attribute__((always_inline)) inline void each(const Do &do_it) {
    if constexpr (I < COUNT) {
        do_it(Index<I>());
        each<I + 1, COUNT>(do_it);
    }
}

/* sums[row][column], of R rows and C vectors of columns. Within a group sums are exact; groups are added up in order. */
template <int R, int C> void add_up(const Rounded &inputs, const int8_t *weights, int column, float *sums) {
    Floats sum[R][C];
    each<0, R>([&](auto r) { each<0, C>([&](auto c) { sum[r.at][c.at] = set1(0.0f); }); });
    weights += column * STEP;
    const int8_t *from = inputs.whole;
    for (int64_t group = 0; group < inputs.groups; group++, from += GROUP, weights += PANEL * GROUP) {
        Ints part[R][C];
        each<0, R>([&](auto r) {
            const Ints start = first_sum(inputs.offsets + r.at * inputs.groups + group);
            each<0, C>([&](auto c) { part[r.at][c.at] = start; });
        });
        each<0, GROUP / STEP>([&](auto step) {
            Bytes weight[C];
            each<0, C>([&](auto c) { weight[c.at] = load_weights(weights + (step.at * PANEL + c.at * WIDTH) * STEP); });
            each<0, R>([&](auto r) {
                const Spread input = spread(from + r.at * inputs.stride + step.at * STEP);
                each<0, C>([&](auto c) { part[r.at][c.at] = dot(part[r.at][c.at], weight[c.at], input); });
            });
        });
        each<0, R>([&](auto r) {
            const Floats scale = set1(inputs.scales[r.at * inputs.groups + group]);
            each<0, C>([&](auto c) { sum[r.at][c.at] = fma(to_floats(part[r.at][c.at]), scale, sum[r.at][c.at]); });
        });
    }
    each<0, R>([&](auto r) {
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, sum[r.at][c.at]); });
    });
}

/* Likewise of weights of 4 bits, whose groups have scales and least values of their own. */
template <int R, int C> void add_up_fours(const Rounded &inputs, const int8_t *weights, int column, float *sums) {
    Floats sum[R][C];
    each<0, R>([&](auto r) { each<0, C>([&](auto c) { sum[r.at][c.at] = set1(0.0f); }); });
    const int8_t *from = inputs.whole;
    for (int64_t group = 0; group < inputs.groups; group++, from += GROUP, weights += GROUP_BYTES) {
        PartSums part[R][C];
        each<0, R>([&](auto r) { each<0, C>([&](auto c) { part[r.at][c.at] = no_parts(); }); });
        each<0, PAIRS>([&](auto pair) {
            Bytes low[C], high[C];
            each<0, C>([&](auto c) {
                const Bytes both = load(weights + (pair.at * PANEL + column + c.at * WIDTH) * STEP);
                low[c.at] = low_halves(both), high[c.at] = high_halves(both);
            });
            each<0, R>([&](auto r) {
                const int8_t *at = from + r.at * inputs.stride + pair.at * 2 * STEP;
                const Bytes first = four_inputs(at), second = four_inputs(at + STEP);
                each<0, C>([&](auto c) {
                    part[r.at][c.at] = dot_parts(part[r.at][c.at], low[c.at], first);
                    part[r.at][c.at] = dot_parts(part[r.at][c.at], high[c.at], second);
                });
            });
        });
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(weights + PANEL * GROUP / 2) + column;
        each<0, C>([&](auto c) {
            const Floats scale = load_half(scales + c.at * WIDTH), least = load_half(scales + PANEL + c.at * WIDTH);
            each<0, R>([&](auto r) {
                const int64_t at = r.at * inputs.groups + group;
                const Floats whole = fma(set1(inputs.sums[at]), least, mul(to_floats(part[r.at][c.at]), scale));
                sum[r.at][c.at] = fma(whole, set1(inputs.scales[at]), sum[r.at][c.at]);
            });
        });
    }
    each<0, R>([&](auto r) {
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, sum[r.at][c.at]); });
    });
}

typedef void (*AddUp)(const Rounded &, const int8_t *, int, float *);

/* Few rows have registers for more columns: more sums that do not wait for each other. */
const AddUp eights_of_two[] = {add_up<1, 2>, add_up<2, 2>, add_up<3, 2>, add_up<4, 2>, add_up<5, 2>, add_up<6, 2>};
const AddUp eights_of_four[] = {add_up<1, 4>, add_up<2, 4>};
const AddUp fours_of_two[] = {add_up_fours<1, 2>, add_up_fours<2, 2>, add_up_fours<3, 2>,
                              add_up_fours<4, 2>, add_up_fours<5, 2>, add_up_fours<6, 2>};
const AddUp fours_of_four[] = {add_up_fours<1, 4>, add_up_fours<2, 4>};

/* -- what becomes of them */

/* x / (1 + e^-x); e to a power above zero is never asked for, lest it overflow. */
inline Floats silu(Floats x) {
    const Floats zero = set1(0.0f), one = set1(1.0f);
    const Floats less = exponential(sub(zero, max(sub(zero, x), x)));
    return div(mul(x, select_below(x, zero, less, one)), add(one, less));
}

/* x * (1 + erf(x / sqrt(2))) / 2, within 1e-6 in all, or 7e-7 of |x|: half of 1 + erf is 1/2 and x times a polynomial of
 * x^2 (minimax for what leaves, up to |x| = 5.16; beyond, it is 0 or 1 within 2e-7). NaN stays NaN. */
inline Floats gelu(Floats x) {
    const Floats above = max(set1(-5.16f), x), bounded = min(set1(5.16f), above);
    const Floats t = fma(mul(bounded, bounded), set1(0.0751156781f), set1(-1.0f)); /* from -1 to 1 */
    Floats y = fma(set1(0.000771203835f), t, set1(-0.00227134791f));
    y = fma(y, t, set1(0.00266842847f));
    y = fma(y, t, set1(-0.00340129551f));
    y = fma(y, t, set1(0.00727904448f));
    y = fma(y, t, set1(-0.0126683749f));
    y = fma(y, t, set1(0.0180243459f));
    y = fma(y, t, set1(-0.0243751481f));
    y = fma(y, t, set1(0.0318421833f));
    y = fma(y, t, set1(-0.0400591642f));
    y = fma(y, t, set1(0.0503325649f));
    y = fma(y, t, set1(-0.0682432577f));
    y = fma(y, t, set1(0.137000039f));
    return mul(above, fma(y, bounded, set1(0.5f)));
}

/* A row's columns of a panel: scaled, with bias. */
inline void scale_row(float *sums, int columns, const float *scales, const float *biases) {
    for (int j = 0; j < columns; j += WIDTH)
        store(sums + j, add(mul(load(sums + j), load(scales + j)), load(biases + j)));
}

void end_row(const Block &block, float *sums, float *out, int valid) {
    switch (block.ending) {
    case PLAIN:
        break;
    case GELU:
        for (int j = 0; j < block.columns; j += WIDTH) store(sums + j, gelu(load(sums + j)));
        break;
    case GATED:
        for (int j = 0; j < HALF; j += WIDTH) store(sums + j, mul(silu(load(sums + j)), load(sums + HALF + j)));
        break;
    case ADDED:
        for (int j = 0; j < valid; j++) out[j] += sums[j];
        return;
    }
    copy(out, sums, valid);
}

void end_rows(const Block &block, int row, int rows, float *sums) {
    const Weights &weights = *block.weights;
    const int64_t column = block.panel * PANEL + block.first;
    const int64_t to = weights.gated ? block.panel * HALF : column;
    const int64_t left = (weights.gated ? weights.outputs / 2 : weights.outputs) - to;
    const int most = weights.gated ? static_cast<int>(HALF) : block.columns;
    const int valid = left < most ? static_cast<int>(left) : most;
    for (int r = 0; r < rows; r++, sums += PANEL) {
        scale_row(sums, block.columns, weights.scales + column, weights.biases + column);
        end_row(block, sums, block.out + (row + r) * block.stride + to, valid);
    }
}

void multiply(const Block &block) {
    const Weights &weights = *block.weights;
    const int8_t *panel = weights.panel_weights + block.panel * weights.panel_bytes;
    const AddUp *two = weights.four_bits ? fours_of_two : eights_of_two;
    const AddUp *four = weights.four_bits ? fours_of_four : eights_of_four;
    const int most = weights.four_bits ? FOURS_ROWS : EIGHTS_ROWS;
    float sums[6 * PANEL];
    for (int row = 0; row < block.rows; row += most) {
        const int rows = least(most, block.rows - row);
        const Rounded inputs = block.inputs.from(row);
        for (int j = 0; j < block.columns;) {
            const bool wide = rows <= 2 && j + 4 * WIDTH <= block.columns;
            (wide ? four : two)[rows - 1](inputs, panel, block.first + j, sums + j);
            j += (wide ? 4 : 2) * WIDTH;
        }
        end_rows(block, row, rows, sums);
    }
}

/* -- inputs */

/* One group of numbers, to whole multiples of its scale. */
inline void round_group(const Rounding &to, const float *y, int group) {
    const Floats zero = set1(0.0f), lowest = set1(-127.0f);
    Floats high = set1(1e-30f), nothing = zero; /* a group of zeros has a scale, too */
    for (int d = 0; d < GROUP; d += WIDTH) {
        const Floats value = load(y + d);
        high = max(max(sub(zero, value), value), high);
        nothing = fma(value, zero, nothing); /* NaN, if one of them is not finite */
    }
    const float top = largest(high);
    const Floats factor = set1(127.0f / top);
    Floats total = zero;
    for (int d = 0; d < GROUP; d += WIDTH) {
        const Floats whole = round(max(mul(load(y + d), factor), lowest));
        store_bytes(to.whole + group * GROUP + d, whole);
        total = add(total, whole);
    }
    const float added = sum(total);
    to.scales[group] = top / 127.0f + sum(nothing);
    to.sums[group] = added;
    to.offsets[group] = -128 * static_cast<int32_t>(added);
}

template <typename T> void round_as(const Rounding &to, const T *x) {
    const int size = static_cast<int>(to.size), padding = static_cast<int>(to.padded);
    float *y = to.scratch;
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH) store(y + d, load(x + d));
    for (; d < size; d++) y[d] = wide(x[d]);
    for (; d < padding; d++) y[d] = 0.0f;
    if (to.norm) {
        Floats squares = set1(0.0f);
        for (d = 0; d < padding; d += WIDTH) squares = fma(load(y + d), load(y + d), squares);
        const float inverse = 1.0f / __builtin_sqrtf(sum(squares) / size + to.eps);
        for (d = 0; d + WIDTH <= size; d += WIDTH)
            store(y + d, mul(mul(load(y + d), set1(inverse)), load(to.norm + d)));
        for (; d < size; d++) y[d] = y[d] * inverse * to.norm[d];
    }
    for (int group = 0; group < padding / GROUP; group++) round_group(to, y + group * GROUP, group);
}

void round_row(const Rounding &to) {
    to.bf16 ? round_as(to, static_cast<const uint16_t *>(to.x)) : round_as(to, static_cast<const float *>(to.x));
}

} } }  // namespace

namespace headway {

extern const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS);
const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS) = {HEADWAY_LEVEL::multiply, HEADWAY_LEVEL::round_row};

} // namespace headway
