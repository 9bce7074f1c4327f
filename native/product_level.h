/* Products, in terms of a level's `Floats` and of its `Ints`, which hold as many. Included once per kind of dot product,
 * see simd_math.h. Each element is one chain of sums, so that no size of a tile changes its bits. */
#include "products.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

/* Numbers of a row of inputs beyond so many times their mean magnitude have two digits. */
#ifdef HEADWAY_DEV
extern "C" char *getenv(const char *); extern "C" double atof(const char *);
static const float NEAR = atof(getenv("NEAR")); static long FARS = 0, ROUNDS=0; extern "C" int printf(const char*,...);
struct Told { ~Told() { if (ROUNDS) printf("far inputs' steps per row %.2f of %ld rows\n", double(FARS)/ROUNDS, ROUNDS); } } told;
#else
const float NEAR = 6.0f;
#endif

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

/* sums[row][column], of R rows and C vectors of columns: what low digits make, in one exact sum of whole numbers. */
template <int R, int C> void add_up(const Rounded &inputs, const int8_t *weights, int column, float *sums) {
    Ints part[R][C];
    each<0, R>([&](auto r) {
        const Ints start = first_sum(inputs.scales[r.at].offset);
        each<0, C>([&](auto c) { part[r.at][c.at] = start; });
    });
    weights += column * STEP;
    const int8_t *from = inputs.whole, *end = from + inputs.stride;
    for (; from < end; from += 2 * STEP, weights += 2 * PANEL * STEP) {
        each<0, 2>([&](auto step) {
            Bytes weight[C];
            each<0, C>([&](auto c) { weight[c.at] = load_weights(weights + (step.at * PANEL + c.at * WIDTH) * STEP); });
            each<0, R>([&](auto r) {
                const Spread input = spread(from + r.at * inputs.stride + step.at * STEP);
                each<0, C>([&](auto c) { part[r.at][c.at] = dot(part[r.at][c.at], weight[c.at], input); });
            });
        });
    }
    each<0, R>([&](auto r) {
        const Floats scale = set1(inputs.scales[r.at].scale);
        each<0, C>([&](auto c) { store(sums + r.at * PANEL + c.at * WIDTH, mul(to_floats(part[r.at][c.at]), scale)); });
    });
}

/* What high digits of a row add to it. */
template <int C> void add_far(const Rounded &row, const int8_t *weights, int column, float *sums) {
    const RowScale &scales = *row.scales;
    Ints part[C];
    each<0, C>([&](auto c) { part[c.at] = first_sum(scales.far_offset); });
    for (const Far *far = row.far, *end = far + scales.far_count; far < end; far++) {
        const int8_t *at = weights + (static_cast<int64_t>(far->step) * PANEL + column) * STEP;
        const Spread high = spread(far->high);
        each<0, C>([&](auto c) { part[c.at] = dot(part[c.at], load_weights(at + c.at * WIDTH * STEP), high); });
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

/* sums[row][column] of up to as many rows as are added up at a time. */
void add_up_rows(const Block &block, const Rounded &inputs, int rows, const int8_t *panel, float *sums) {
    const bool fours = block.weights->four_bits;
    const AddUp *two = fours ? fours_of_two : eights_of_two, *four = fours ? fours_of_four : eights_of_four;
    const AddFar far = fours ? add_far_fours<2> : add_far<2>;
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
        for (int j = 0; j < block.columns; j += 2 * WIDTH) far(row, panel, block.first + j, sums + r * PANEL + j);
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

/* How many of the row's numbers are beyond it. */
inline int count_beyond(const float *y, int padding, float bound) {
    const Floats zero = set1(0.0f), one = set1(1.0f), bounds = set1(bound);
    Floats count = zero;
    for (int d = 0; d < padding; d += WIDTH) {
        const Floats value = load(y + d);
        count = add(count, select_below(bounds, max(sub(zero, value), value), one, zero));
    }
    return static_cast<int>(sum(count));
}

/* Three bits of its fraction: what levels add up differently does not matter any more. */
inline float coarse(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    bits &= 0xfff00000;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

/* The row's scale, of which its largest number is a whole multiple of 127 to FARTHEST: 127 times the scale is some NEAR
 * times the mean magnitude, or as much more as leaves no more numbers beyond it than may be. */
inline float scale_of(const float *y, int size, int padding, float top, float total, int most_far) {
    if (!(top > 1e-30f)) return 1e-30f; /* a row of zeros has a scale, too */
    float bound = coarse(NEAR * (total / size));
    while (bound < top && count_beyond(y, padding, bound) > most_far) bound *= 1.25f;
    const float times = 127.0f * (top / bound);
    return top / (times < 127.0f ? 127.0f : times < FARTHEST ? static_cast<float>(static_cast<int>(times)) : FARTHEST);
}

/* Notes the high digits of whole numbers some of which are beyond 127, and returns the low ones. */
inline Floats note_far(Floats whole, int first, RowScale &scales, Far *far) {
    float lanes[WIDTH];
    store(lanes, whole);
    for (int i = 0; i < WIDTH; i += STEP) {
        Far step = {(first + i) / STEP, {}};
        int sum = 0, any = 0;
        for (int k = 0; k < STEP; k++) {
            const int high = (static_cast<int>(lanes[i + k]) + 128) >> 8;
            lanes[i + k] -= static_cast<float>(256 * high);
            step.high[k] = static_cast<int8_t>(high);
            sum += high, any |= high;
        }
        if (!any) continue;
        far[scales.far_count++] = step;
        scales.far_offset -= 128 * sum;
    }
    return load(lanes);
}

inline void round_numbers(const Rounding &rounding, const float *y, float scale) {
    const Rounded &to = rounding.to;
    const Floats factor = set1(1.0f / scale), near = set1(127.0f), zero = set1(0.0f);
    RowScale scales = {scale, 0, 0, 0};
    Floats all = zero;
    for (int group = 0; group < to.groups; group++) {
        Floats total = zero;
        for (int d = group * GROUP; d < (group + 1) * GROUP; d += WIDTH) {
            Floats whole = round(mul(load(y + d), factor));
            total = add(total, whole);
            if (any_beyond(whole, near)) whole = note_far(whole, d, scales, to.far);
            store_bytes(to.whole + d, whole);
            all = add(all, whole);
        }
        if (rounding.in_groups) to.sums[group] = sum(total);
    }
    scales.offset = -128 * static_cast<int32_t>(sum(all));
    *to.scales = scales;
#ifdef HEADWAY_DEV
    FARS += scales.far_count; ROUNDS++;
#endif
}

/* A row that is not finite: NaN comes out. */
inline void spoil(const Rounded &to) {
    __builtin_memset(to.whole, 0, static_cast<size_t>(to.stride));
    for (int group = 0; group < to.groups; group++) to.sums[group] = 0.0f;
    *to.scales = {__builtin_nanf(""), 0, 0, 0};
}

inline float normalise(float *y, const Rounding &rounding, int padding) {
    const int size = static_cast<int>(rounding.size);
    Floats squares = set1(0.0f);
    for (int d = 0; d < padding; d += WIDTH) squares = fma(load(y + d), load(y + d), squares);
    const float inverse = 1.0f / __builtin_sqrtf(sum(squares) / size + rounding.eps);
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH)
        store(y + d, mul(mul(load(y + d), set1(inverse)), load(rounding.norm + d)));
    for (; d < size; d++) y[d] = y[d] * inverse * rounding.norm[d];
    return inverse;
}

template <typename T> void round_as(const Rounding &rounding, const T *x) {
    const int size = static_cast<int>(rounding.size), padding = static_cast<int>(rounding.to.stride);
    float *y = rounding.scratch;
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH) store(y + d, load(x + d));
    for (; d < size; d++) y[d] = wide(x[d]);
    for (; d < padding; d++) y[d] = 0.0f;
    if (rounding.norm) normalise(y, rounding, padding);
    const Spans spans = span_of(y, padding);
    const float nothing = sum(spans.nothing);
    if (nothing != nothing) return spoil(rounding.to);
    const int most_far = static_cast<int>(rounding.to.most_far);
    round_numbers(rounding, y, scale_of(y, size, padding, largest(spans.top), sum(spans.total), most_far));
}

void round_row(const Rounding &rounding) {
    rounding.bf16 ? round_as(rounding, static_cast<const uint16_t *>(rounding.x))
                  : round_as(rounding, static_cast<const float *>(rounding.x));
}

} } }  // namespace

namespace headway {

extern const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS);
const ProductKernels HEADWAY_NAME(products_, HEADWAY_DOTS) = {HEADWAY_LEVEL::multiply, HEADWAY_LEVEL::round_row};

} // namespace headway
