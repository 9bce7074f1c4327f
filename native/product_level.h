/* Products, in terms of a level's `Floats` and of its `Ints`, which hold as many. Included once per kind of dot product,
 * see simd_math.h. Sums of whole numbers are exact, so that no size and no order changes a bit of them. */
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

/* sums[row][column], of R rows and C vectors of columns. */
template <int R, int C>
void add_up(const int8_t *inputs, int64_t stride, const int8_t *weights, int64_t steps, const int32_t *offsets,
            float *sums) {
    Ints sum[R][C];
    each<0, R>([&](auto r) {
        each<0, C>([&](auto c) { sum[r.at][c.at] = UNSIGNED ? load(offsets + c.at * WIDTH) : no_ints(); });
    });
    int64_t step = 0;
    do {
        Bytes weight[C];
        each<0, C>([&](auto c) { weight[c.at] = load(weights + c.at * WIDTH * STEP); });
        each<0, R>([&](auto r) {
            const Spread input = spread(inputs + r.at * stride + step * STEP);
            each<0, C>([&](auto c) { sum[r.at][c.at] = dot(sum[r.at][c.at], weight[c.at], input); });
        });
        weights += PANEL * STEP;
    } while (++step < steps);
    each<0, R>([&](auto r) {
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, to_floats(sum[r.at][c.at])); });
    });
}

typedef void (*AddUp)(const int8_t *, int64_t, const int8_t *, int64_t, const int32_t *, float *);

const AddUp add_up_two[] = {add_up<1, 2>, add_up<2, 2>, add_up<3, 2>, add_up<4, 2>, add_up<5, 2>, add_up<6, 2>};
/* Few rows have registers for more columns: more sums that do not wait for each other. */
const AddUp add_up_four[] = {add_up<1, 4>, add_up<2, 4>, add_up<3, 4>, add_up<4, 4>, add_up<5, 4>, add_up<6, 4>};

inline int columns_at_once(int rows, int left) {
    const int most = DOT_COLUMNS > 2 || rows <= 2 ? 4 : 2;
    return most * WIDTH <= left ? most : 2;
}

/* Likewise of weights of 4 bits: sums of a group are exact, and groups are added up in order. */
template <int R, int C>
void add_up_groups(const int8_t *inputs, int64_t stride, const float *group_sums, int64_t groups, const int8_t *weights,
                   int column, float *sums) {
    Floats sum[R][C];
    each<0, R>([&](auto r) { each<0, C>([&](auto c) { sum[r.at][c.at] = set1(0.0f); }); });
    for (int64_t group = 0; group < groups; group++, weights += GROUP_BYTES) {
        PartSums part[R][C];
        each<0, R>([&](auto r) { each<0, C>([&](auto c) { part[r.at][c.at] = no_parts(); }); });
        each<0, PAIRS>([&](auto pair) {
            Bytes low[C], high[C];
            each<0, C>([&](auto c) {
                const Bytes both = load(weights + (pair.at * PANEL + column + c.at * WIDTH) * STEP);
                low[c.at] = low_halves(both), high[c.at] = high_halves(both);
            });
            each<0, R>([&](auto r) {
                const int8_t *at = inputs + r.at * stride + group * GROUP + pair.at * 2 * STEP;
                const Bytes first = signed_inputs(at), second = signed_inputs(at + STEP);
                each<0, C>([&](auto c) {
                    part[r.at][c.at] = dot_parts(part[r.at][c.at], low[c.at], first);
                    part[r.at][c.at] = dot_parts(part[r.at][c.at], high[c.at], second);
                });
            });
        });
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(weights + PANEL * GROUP / 2) + column;
        each<0, C>([&](auto c) {
            const Floats scale = load_half(scales + c.at * WIDTH), low = load_half(scales + PANEL + c.at * WIDTH);
            each<0, R>([&](auto r) {
                const Floats scaled = fma(to_floats(part[r.at][c.at]), scale, sum[r.at][c.at]);
                sum[r.at][c.at] = fma(set1(group_sums[r.at * groups + group]), low, scaled);
            });
        });
    }
    each<0, R>([&](auto r) {
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, sum[r.at][c.at]); });
    });
}

typedef void (*AddUpGroups)(const int8_t *, int64_t, const float *, int64_t, const int8_t *, int, float *);

const AddUpGroups add_up_groups_two[] = {add_up_groups<1, 2>, add_up_groups<2, 2>, add_up_groups<3, 2>,
                                         add_up_groups<4, 2>, add_up_groups<5, 2>, add_up_groups<6, 2>};
const AddUpGroups add_up_groups_four[] = {add_up_groups<1, 4>, add_up_groups<2, 4>};

/* -- what becomes of them */

/* x / (1 + e^-x); e to a power above zero is never asked for, lest it overflow. */
inline Floats silu(Floats x) {
    const Floats zero = set1(0.0f), one = set1(1.0f);
    const Floats less = exponential(sub(zero, max(sub(zero, x), x)));
    return div(mul(x, select_below(x, zero, less, one)), add(one, less));
}

/* With erf by Abramowitz and Stegun 7.1.26, within 1.5e-7. */
inline Floats gelu(Floats x) {
    const Floats zero = set1(0.0f), one = set1(1.0f);
    const Floats z = mul(max(sub(zero, x), x), set1(0.70710678f));
    const Floats t = div(one, fma(z, set1(0.3275911f), one));
    Floats y = fma(set1(1.061405429f), t, set1(-1.453152027f));
    y = fma(y, t, set1(1.421413741f));
    y = fma(y, t, set1(-0.284496736f));
    y = fma(y, t, set1(0.254829592f));
    const Floats rest = mul(mul(y, t), exponential(sub(zero, mul(z, z)))); /* 1 - erf(z) */
    const Floats below = mul(x, rest), above = mul(x, sub(set1(2.0f), rest));
    return mul(set1(0.5f), select_below(x, zero, below, above));
}

/* A row's columns [first, first + columns) of a panel: scaled, with bias. */
inline void scale_row(float *sums, int columns, float row_scale, const float *scales, const float *biases) {
    for (int j = 0; j < columns; j += WIDTH) {
        const Floats scale = mul(load(scales + j), set1(row_scale));
        store(sums + j, add(mul(load(sums + j), scale), load(biases + j)));
    }
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
        scale_row(sums, block.columns, block.row_scales[row + r], weights.scales + column, weights.biases + column);
        end_row(block, sums, block.out + (row + r) * block.stride + to, valid);
    }
}

void multiply_groups(const Block &block) {
    const Weights &weights = *block.weights;
    const int8_t *panel = weights.panel_weights + block.panel * weights.panel_bytes;
    const int64_t groups = weights.padded_inputs / GROUP;
    float sums[GROUP_ROWS * PANEL];
    for (int row = 0; row < block.rows; row += GROUP_ROWS) {
        const int rows = least(GROUP_ROWS, block.rows - row);
        for (int j = 0, columns; j < block.columns; j += columns * WIDTH) {
            columns = rows <= 2 && j + 4 * WIDTH <= block.columns ? 4 : 2;
            const AddUpGroups *add_up = columns == 4 ? add_up_groups_four : add_up_groups_two;
            add_up[rows - 1](block.inputs + row * weights.padded_inputs, weights.padded_inputs,
                             block.group_sums + row * groups, groups, panel, block.first + j, sums + j);
        }
        end_rows(block, row, rows, sums);
    }
}

void multiply(const Block &block) {
    if (block.weights->four_bits) return multiply_groups(block);
    const Weights &weights = *block.weights;
    const int8_t *panel = weights.panel_weights + block.panel * weights.panel_bytes;
    const int32_t *offsets = weights.offsets + block.panel * PANEL;
    float sums[DOT_ROWS * PANEL];
    for (int row = 0; row < block.rows; row += DOT_ROWS) {
        const int rows = least(DOT_ROWS, block.rows - row);
        const int8_t *inputs = block.inputs + row * weights.padded_inputs;
        for (int j = 0, columns; j < block.columns; j += columns * WIDTH) {
            columns = columns_at_once(rows, block.columns - j);
            const AddUp *add_up = columns == 4 ? add_up_four : add_up_two;
            add_up[rows - 1](inputs, weights.padded_inputs, panel + (block.first + j) * STEP,
                             weights.padded_inputs / STEP, offsets + block.first + j, sums + j);
        }
        end_rows(block, row, rows, sums);
    }
}

/* -- inputs */

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
    const Floats zero = set1(0.0f);
    Floats high = set1(1e-30f), nothing = zero; /* a row of zeros has a scale, too */
    for (d = 0; d < padding; d += WIDTH) {
        const Floats value = load(y + d);
        high = max(max(sub(zero, value), value), high);
        nothing = fma(value, zero, nothing); /* NaN, if one of them is not finite */
    }
    const float top = largest(high);
    *to.scale = top / 127.0f + sum(nothing);
    const Floats factor = set1(127.0f / top), least_value = set1(-127.0f);
    const int flip = UNSIGNED && !to.sums ? -128 : 0;
    for (d = 0; d < padding; d += WIDTH) {
        const Floats whole = round(max(mul(load(y + d), factor), least_value));
        store_inputs(to.rounded + d, whole, flip);
        store(y + d, whole);
    }
    if (!to.sums) return;
    for (int group = 0; group < padding / GROUP; group++) {
        Floats whole = zero;
        for (d = group * GROUP; d < (group + 1) * GROUP; d += WIDTH) whole = add(whole, load(y + d));
        to.sums[group] = sum(whole);
    }
}

void round_row(const Rounding &to) {
    to.bf16 ? round_as(to, static_cast<const uint16_t *>(to.x)) : round_as(to, static_cast<const float *>(to.x));
}

} } }  // namespace

namespace headway {

extern const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS);
const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS) = {HEADWAY_LEVEL::multiply, HEADWAY_LEVEL::round_row};

} // namespace headway
