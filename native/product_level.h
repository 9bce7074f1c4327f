/* Products, in terms of a level's `Floats` and of its `Ints`, which hold as many. Included once per kind of dot product,
 * see simd_math.h. Each element is one chain of sums, so that no size of a tile changes its bits. */
#include "products.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

/* Numbers of a row of inputs beyond so many times their mean magnitude have two digits. Found by the divergence of a
 * model's predictions from fp32's: the inputs after a norm, where the same few are far in every row, count most. */
const float NEAR = 12.0f, NEAR_NORMED = 7.0f;
/* A row whose largest magnitude is not above it counts as zeros. */
const float LEAST_TOP = 1e-30f;

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

/* A panel's weights of 8 bits lie half by half. */
enum { PER_HALF = HALF / WIDTH };
inline const int8_t *column_of(const int8_t *panel, int64_t inputs, int column) {
    return panel + column / HALF * inputs * HALF + column % HALF * STEP;
}

/* sums[row][column], of R rows and C vectors of columns: what low digits make, in one exact sum of whole numbers. Few sums
 * are made of several parts each, which do not wait for each other. */
template <int R, int C> void add_up(const Rounded &inputs, const int8_t *weights, int column, float *sums) {
    enum { PARTS = R * C <= 2 ? 4 : R * C <= 4 ? 2 : 1 };
    Ints part[PARTS][R][C];
    each<0, PARTS>([&](auto p) {
        each<0, R>([&](auto r) {
            const Ints start = first_sum(p.at ? 0 : inputs.scales[r.at].offset);
            each<0, C>([&](auto c) { part[p.at][r.at][c.at] = start; });
        });
    });
    weights = column_of(weights, inputs.stride, column);
    const int64_t half = inputs.stride * HALF;
    const int8_t *from = inputs.whole, *end = from + inputs.stride;
    for (; from < end; from += 4 * STEP, weights += 4 * HALF * STEP) {
        each<0, 4>([&](auto step) {
            Bytes weight[C];
            each<0, C>([&](auto c) {
                const int at = (step.at * HALF + c.at % PER_HALF * WIDTH) * STEP;
                weight[c.at] = load_weights(weights + c.at / PER_HALF * half + at);
            });
            each<0, R>([&](auto r) {
                const Spread input = spread(from + r.at * inputs.stride + step.at * STEP);
                each<0, C>([&](auto c) {
                    Ints &to = part[step.at % PARTS][r.at][c.at];
                    to = dot(to, weight[c.at], input);
                });
            });
        });
    }
    each<0, R>([&](auto r) {
        const Floats scale = set1(inputs.scales[r.at].scale);
        each<0, C>([&](auto c) {
            Ints whole = part[0][r.at][c.at];
            each<1, PARTS>([&](auto p) { whole = plus(whole, part[p.at][r.at][c.at]); });
            store(sums + r.at * PANEL + c.at * WIDTH, mul(to_floats(whole), scale));
        });
    });
}

/* What high digits of a row add to it. */
template <int C> void add_far(const Rounded &row, const int8_t *weights, int column, float *sums) {
    const RowScale &scales = *row.scales;
    Ints part[C];
    each<0, C>([&](auto c) { part[c.at] = first_sum(scales.far_offset); });
    for (const Far *far = row.far, *end = far + scales.far_count; far < end; far++) {
        const int8_t *at = column_of(weights, row.stride, column) + static_cast<int64_t>(far->step) * HALF * STEP;
        const Spread high = spread(far->high);
        each<0, C>([&](auto c) {
            const int8_t *weight = at + c.at / PER_HALF * row.stride * HALF + c.at % PER_HALF * WIDTH * STEP;
            part[c.at] = dot(part[c.at], load_weights(weight), high);
        });
    }
    const Floats scale = set1(256.0f * scales.scale);
    each<0, C>([&](auto c) {
        float *to = sums + c.at * WIDTH;
        store(to, fma(to_floats(part[c.at]), scale, load(to)));
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
                const Floats whole = fma(to_floats(part[r.at][c.at]), scale, sum[r.at][c.at]);
                sum[r.at][c.at] = fma(set1(inputs.sums[r.at * inputs.groups + group]), least, whole);
            });
        });
    }
    each<0, R>([&](auto r) {
        const Floats scale = set1(inputs.scales[r.at].scale);
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, mul(sum[r.at][c.at], scale)); });
    });
}

/* Likewise; the least values are in the sums of whole numbers already. */
template <int C> void add_far_fours(const Rounded &row, const int8_t *weights, int column, float *sums) {
    Floats sum[C];
    each<0, C>([&](auto c) { sum[c.at] = set1(0.0f); });
    for (const Far *far = row.far, *end = far + row.scales->far_count; far < end; far++) {
        const int8_t *group = weights + far->step / (2 * PAIRS) * static_cast<int64_t>(GROUP_BYTES);
        const int8_t *at = group + (far->step % (2 * PAIRS) / 2 * PANEL + column) * STEP;
        const uint16_t *scales = reinterpret_cast<const uint16_t *>(group + PANEL * GROUP / 2) + column;
        const Bytes high = four_inputs(far->high);
        each<0, C>([&](auto c) {
            const Bytes both = load(at + c.at * WIDTH * STEP);
            const PartSums part = dot_parts(no_parts(), far->step % 2 ? high_halves(both) : low_halves(both), high);
            sum[c.at] = fma(to_floats(part), load_half(scales + c.at * WIDTH), sum[c.at]);
        });
    }
    const Floats scale = set1(256.0f * row.scales->scale);
    each<0, C>([&](auto c) {
        float *to = sums + c.at * WIDTH;
        store(to, fma(sum[c.at], scale, load(to)));
    });
}

typedef void (*AddUp)(const Rounded &, const int8_t *, int, float *);

typedef void (*AddFar)(const Rounded &, const int8_t *, int, float *);

const AddUp eights_of_two[] = {add_up<1, 2>, add_up<2, 2>, add_up<3, 2>, add_up<4, 2>, add_up<5, 2>, add_up<6, 2>};
const AddUp eights_of_four[] = {add_up<1, 4>, add_up<2, 4>, add_up<3, 4>, add_up<4, 4>, add_up<5, 4>, add_up<6, 4>};
const AddUp fours_of_two[] = {add_up_fours<1, 2>, add_up_fours<2, 2>, add_up_fours<3, 2>,
                              add_up_fours<4, 2>, add_up_fours<5, 2>, add_up_fours<6, 2>};
const AddUp fours_of_four[] = {add_up_fours<1, 4>, add_up_fours<2, 4>};

/* -- what becomes of them */

/* x / (1 + e^-x); e to a power above zero is never asked for, lest it overflow. */
inline Floats silu(Floats x) {
    const Floats zero = set1(0.0f), one = set1(1.0f);
    const Floats less = exponential_near(sub(zero, max(sub(zero, x), x)));
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

/* out = of(j), or with ADD out += of(j), for each vector of columns from j, up to `valid`. */
template <bool ADD, typename Of> inline void write(float *out, int valid, const Of &of) {
    int j = 0;
    for (; j + WIDTH <= valid; j += WIDTH) store(out + j, ADD ? add(load(out + j), of(j)) : of(j));
    if (j == valid) return;
    float rest[WIDTH];
    store(rest, of(j));
    for (int i = 0; j + i < valid; i++) out[j + i] = ADD ? out[j + i] + rest[i] : rest[i];
}

/* A row's columns of a panel: scaled, with bias, and what becomes of them. */
inline void end_row(Ending ending, const float *sums, const float *scales, const float *biases, float *out, int valid) {
    const auto scaled = [&](int j) { return add(mul(load(sums + j), load(scales + j)), load(biases + j)); };
    switch (ending) {
    case PLAIN:
        return write<false>(out, valid, scaled);
    case GELU:
        return write<false>(out, valid, [&](int j) { return gelu(scaled(j)); });
    case GATED:
        return write<false>(out, valid, [&](int j) { return mul(silu(scaled(j)), scaled(HALF + j)); });
    case ADDED:
        return write<true>(out, valid, scaled);
    }
}

void end_rows(const Block &block, int row, int rows, float *sums) {
    const Weights &weights = *block.weights;
    const int64_t column = block.panel * PANEL + block.first;
    const int64_t to = weights.gated ? block.panel * HALF : column;
    const int64_t left = (weights.gated ? weights.outputs / 2 : weights.outputs) - to;
    const int most = weights.gated ? static_cast<int>(HALF) : block.columns;
    const int valid = left < most ? static_cast<int>(left) : most;
    for (int r = 0; r < rows; r++, sums += PANEL) {
        float *out = block.out + (row + r) * block.stride + to;
        end_row(block.ending, sums, weights.scales + column, weights.biases + column, out, valid);
    }
}

/* sums[row][column] of up to as many rows as are added up at a time. */
void add_up_rows(const Block &block, const Rounded &inputs, int rows, const int8_t *panel, float *sums) {
    const bool fours = block.weights->four_bits;
    const AddUp *two = fours ? fours_of_two : eights_of_two, *four = fours ? fours_of_four : eights_of_four;
    const AddFar far_two = fours ? add_far_fours<2> : add_far<2>, far_four = fours ? add_far_fours<4> : add_far<4>;
    /* Few rows have registers for more columns: more sums that do not wait for each other. */
    const int most_wide = fours ? 2 : WIDE_ROWS;
    for (int j = 0; j < block.columns;) {
        const bool wide = rows <= most_wide && j + 4 * WIDTH <= block.columns;
        (wide ? four : two)[rows - 1](inputs, panel, block.first + j, sums + j);
        j += (wide ? 4 : 2) * WIDTH;
    }
    for (int r = 0; r < rows; r++) {
        const Rounded row = inputs.from(r);
        if (!row.scales->far_count) continue;
        for (int j = 0; j < block.columns;) {
            const bool wide = j + 4 * WIDTH <= block.columns;
            (wide ? far_four : far_two)(row, panel, block.first + j, sums + r * PANEL + j);
            j += (wide ? 4 : 2) * WIDTH;
        }
    }
}

void multiply(const Block &block) {
    const Weights &weights = *block.weights;
    const int8_t *panel = weights.panel_weights + block.panel * weights.panel_bytes;
    const int most = weights.four_bits ? FOURS_ROWS : EIGHTS_ROWS;
    float sums[6 * PANEL];
    for (int row = 0; row < block.rows; row += most) {
        const int rows = least(most, block.rows - row);
        add_up_rows(block, block.inputs.from(row), rows, panel, sums);
        end_rows(block, row, rows, sums);
    }
}

/* -- inputs */

/* What a row's numbers are rounded by. */
struct Spans {
    Floats top, total, nothing;
};

/* Of the row's numbers; `nothing` is NaN if one of them is not finite. */
inline Spans span_of(const float *y, int padding) {
    const Floats zero = set1(0.0f);
    Spans two[2] = {{zero, zero, zero}, {zero, zero, zero}};
    for (int d = 0; d < padding; d += 2 * WIDTH) {
        each<0, 2>([&](auto i) {
            Spans &to = two[i.at];
            const Floats value = load(y + d + i.at * WIDTH), size = max(sub(zero, value), value);
            to.top = max(size, to.top);
            to.total = add(to.total, size);
            to.nothing = fma(value, zero, to.nothing);
        });
    }
    return {max(two[0].top, two[1].top), add(two[0].total, two[1].total), add(two[0].nothing, two[1].nothing)};
}

/* Three bits of its fraction: what levels add up differently does not matter any more. */
inline float coarse(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    bits &= 0xfff00000;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* The scale whose 127-fold is nearest above `bound` of those of which the row's largest number is a whole multiple, of 127
 * to FARTHEST. */
inline float scale_of(float top, float bound) {
    const float times = 127.0f * (top / bound);
    return top / (times > 127.0f ? times < FARTHEST ? static_cast<float>(static_cast<int>(times)) : FARTHEST : 127.0f);
}

/* Notes the high digits of whole numbers some of which are beyond 127, and leaves the low ones. False if there is no room
 * for so many. */
inline bool note_far(Floats &whole, int first, const Rounded &to, RowScale &scales) {
    /* The nearest multiple of 256, of two the upper: a half more, no number is in the middle. */
    const Floats high = round(mul(add(whole, set1(0.5f)), set1(1.0f / 256)));
    whole = sub(whole, mul(high, set1(256.0f)));
    int8_t bytes[WIDTH];
    store_bytes(bytes, high);
    for (int i = 0; i < WIDTH; i += STEP) {
        int32_t any;
        __builtin_memcpy(&any, bytes + i, sizeof any);
        if (!any) continue;
        if (scales.far_count == to.most_far) return false;
        Far &step = to.far[scales.far_count++];
        step.step = (first + i) / STEP;
        int sum = 0;
        for (int k = 0; k < STEP; k++) {
            step.high[k] = bytes[i + k];
            sum += bytes[i + k];
        }
        scales.far_offset -= 128 * sum;
    }
    return true;
}

/* False if more numbers are far than there is room for. */
inline bool round_numbers(const Rounding &rounding, const float *y, float scale) {
    const Rounded &to = rounding.to;
    const Floats factor = set1(1.0f / scale), near = set1(127.0f), zero = set1(0.0f);
    RowScale scales = {scale, 0, 0, 0};
    Floats all = zero;
    for (int group = 0; group < to.groups; group++) {
        Floats total = zero;
        for (int d = group * GROUP; d < (group + 1) * GROUP; d += WIDTH) {
            Floats whole = round(mul(load(y + d), factor));
            total = add(total, whole);
            if (any_beyond(whole, near) && !note_far(whole, d, to, scales)) return false;
            store_bytes(to.whole + d, whole);
            all = add(all, whole);
        }
        if (rounding.in_groups) to.sums[group] = sum(total);
    }
    scales.offset = -128 * static_cast<int32_t>(sum(all));
    *to.scales = scales;
    return true;
}

/* A row that is not finite: NaN comes out. */
inline void spoil(const Rounded &to) {
    for (int64_t k = 0; k < to.stride; k++) to.whole[k] = 0;
    for (int group = 0; group < to.groups; group++) to.sums[group] = 0.0f;
    *to.scales = {__builtin_nanf(""), 0, 0, 0};
}

/* x, normalised, and zeros after it. */
inline void normalise(const float *x, const Rounding &rounding, int padding, float *y) {
    const int size = static_cast<int>(rounding.size);
    Floats even = set1(0.0f), odd = even;
    for (int d = 0; d < padding; d += 2 * WIDTH) {
        even = fma(load(x + d), load(x + d), even);
        odd = fma(load(x + d + WIDTH), load(x + d + WIDTH), odd);
    }
    const float inverse = 1.0f / __builtin_sqrtf(sum(add(even, odd)) / size + rounding.eps);
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH)
        store(y + d, mul(mul(load(x + d), set1(inverse)), load(rounding.norm + d)));
    for (; d < size; d++) y[d] = x[d] * inverse * rounding.norm[d];
    for (; d < padding; d++) y[d] = 0.0f;
}

/* The row in fp32, and zeros after it. */
template <typename T> const float *widened(const T *x, int size, int padding, float *y) {
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH) store(y + d, load(x + d));
    for (; d < size; d++) y[d] = wide(x[d]);
    for (; d < padding; d++) y[d] = 0.0f;
    return y;
}

/* 127 times the scale is NEAR times the mean magnitude, or as much more as leaves room for all that is beyond. */
void round_widened(const Rounding &rounding, const float *y) {
    const int size = static_cast<int>(rounding.size), padding = static_cast<int>(rounding.to.stride);
    if (rounding.norm) {
        normalise(y, rounding, padding, rounding.scratch);
        y = rounding.scratch;
    }
    const Spans spans = span_of(y, padding);
    const float nothing = sum(spans.nothing), top = largest(spans.top);
    if (nothing != nothing) return spoil(rounding.to);
    const float mean = sum(spans.total) / size;
    if (!(top > LEAST_TOP)) { /* a row of zeros has a scale, too */
        round_numbers(rounding, y, LEAST_TOP);
        return;
    }
    const float near = rounding.norm ? NEAR_NORMED : NEAR;
    for (float bound = coarse(near * mean); !round_numbers(rounding, y, scale_of(top, bound));) bound *= 1.25f;
}

void round_row(const Rounding &rounding) {
    const int size = static_cast<int>(rounding.size), padding = static_cast<int>(rounding.to.stride);
    const float *x = static_cast<const float *>(rounding.x);
    if (rounding.bf16)
        x = widened(static_cast<const uint16_t *>(rounding.x), size, padding, rounding.scratch);
    else if (size < padding)
        x = widened(x, size, padding, rounding.scratch);
    round_widened(rounding, x);
}

} } }  // namespace

namespace headway {

extern const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS);
const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS) = {HEADWAY_LEVEL::multiply, HEADWAY_LEVEL::round_row};

} // namespace headway
