/* The kernels, in terms of a level's `Floats`. Included once per level: all of it has internal linkage, and nothing of
 * the standard library is used, lest the linker keep one level's copy of an inline function for all of them. */
#include "kernels.h"
#include "simd_math.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

inline Floats as_floats(const float *p) { return load(p); }
inline Floats as_floats(const uint16_t *p) { return load(p); }

/* -- products: ROWS rows, COLUMNS vectors at most; each element is one chain of sums, so that no size changes its bits */

/* What is multiplied: numbers as they are, or what a level with other products has. */
struct FloatTerms {
    typedef float Item;
    typedef Floats Vector;
    static Vector vector(const Item *p) { return load(p); }
    static Vector spread(Item x) { return set1(x); }
    static Floats add(Floats sum, Vector row, Vector column) { return fma(row, column, sum); }
};

template <typename Terms>
using Multiply = void (*)(const typename Terms::Item *rows, int row_stride, const typename Terms::Item *columns,
                          int column_stride, int count, float *out, int out_stride);

/* out[row][column] = sum over k < count of rows[row][k] * columns[k][column], k ascending. */
template <typename Terms, int R, int C>
void multiply(const typename Terms::Item *rows, int row_stride, const typename Terms::Item *columns, int column_stride,
              int count, float *out, int out_stride) {
    Floats sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = set1(0.0f);
    for (int k = 0; k < count; k++) {
        typename Terms::Vector column[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) column[c] = Terms::vector(columns + k * column_stride + c * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            const typename Terms::Vector row = Terms::spread(rows[r * row_stride + k]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sums[r][c] = Terms::add(sums[r][c], row, column[c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(out + r * out_stride + c * WIDTH, sums[r][c]);
}

template <typename T> using Weigh = void (*)(const float *weights, const T *const *values, int count, float *out, int stride);

/* out[row][d] += sum over j < count of weights[row][j] * values[j][d], j ascending. */
template <typename T, int R, int C>
void weigh(const float *weights, const T *const *values, int count, float *out, int stride) {
    Floats sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = load(out + r * stride + c * WIDTH);
    for (int j = 0; j < count; j++) {
        const T *from = values[j];
        Floats value[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) value[c] = as_floats(from + c * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Floats weight = set1(weights[r * PARTITION + j]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sums[r][c] = fma(weight, value[c], sums[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(out + r * stride + c * WIDTH, sums[r][c]);
}

/* Which function for so many rows and vectors; unused columns of the smaller levels repeat the last. */
#define HEADWAY_COLUMNS(of, R) \
    { of(R, 1), of(R, 2), of(R, (COLUMNS > 2 ? 3 : 2)), of(R, (COLUMNS > 2 ? 4 : 2)) }
#define HEADWAY_ROWS(of) \
    { HEADWAY_COLUMNS(of, 1), HEADWAY_COLUMNS(of, 2), HEADWAY_COLUMNS(of, 3), \
      HEADWAY_COLUMNS(of, 4), HEADWAY_COLUMNS(of, 5), HEADWAY_COLUMNS(of, 6) }
#define HEADWAY_MULTIPLY_FLOATS(R, C) multiply<FloatTerms, R, C>
#define HEADWAY_WEIGH_FP32(R, C) weigh<float, R, C>
#define HEADWAY_WEIGH_BF16(R, C) weigh<uint16_t, R, C>
#define HEADWAY_WEIGH_INT8(R, C) weigh<int8_t, R, C>

const Multiply<FloatTerms> multiply_floats[ROWS][4] = HEADWAY_ROWS(HEADWAY_MULTIPLY_FLOATS);
const Weigh<float> weigh_fp32[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_FP32);
const Weigh<uint16_t> weigh_bf16[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_BF16);
const Weigh<int8_t> weigh_int8[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_INT8);
inline Weigh<float> weigh_for(const float *, int rows, int columns) { return weigh_fp32[rows - 1][columns - 1]; }
inline Weigh<uint16_t> weigh_for(const uint16_t *, int rows, int columns) { return weigh_bf16[rows - 1][columns - 1]; }
inline Weigh<int8_t> weigh_for(const int8_t *, int rows, int columns) { return weigh_int8[rows - 1][columns - 1]; }

/* scores[row][key] = sum over d of queries[row][d] * keys[d][key]. */
void score_strip(const float *queries, int rows, int dim, const float *keys, int count, float *scores) {
    for (int vector = 0, vectors = padded(count) / WIDTH; vector < vectors; vector += COLUMNS) {
        int columns = least(COLUMNS, vectors - vector);
        for (int row = 0; row < rows; row += ROWS)
            multiply_floats[least(ROWS, rows - row) - 1][columns - 1](
                queries + row * dim, dim, keys + vector * WIDTH, STRIP, dim, scores + row * PARTITION + vector * WIDTH,
                PARTITION);
    }
}

/* `wide_dim`: dim, a multiple of the width. */
template <typename T>
void weigh_strip(const float *weights, int rows, const T *const *values, int count, float *out, int wide_dim) {
    const T *from[STRIP];
    for (int vector = 0, vectors = wide_dim / WIDTH; vector < vectors; vector += COLUMNS) {
        int columns = least(COLUMNS, vectors - vector);
        for (int j = 0; j < count; j++) from[j] = values[j] + vector * WIDTH;
        for (int row = 0; row < rows; row += ROWS)
            weigh_for(values[0], least(ROWS, rows - row), columns)(
                weights + row * PARTITION, from, count, out + row * wide_dim + vector * WIDTH, wide_dim);
    }
}

/* -- how a head is held */

/* Whether whole numbers are, with a scale behind them: then scores are multiplied by keys' scales, and weights by
 * values'. */
template <typename T> struct Held {
    enum { SCALED = 0 };
};
template <> struct Held<int8_t> {
    enum { SCALED = 1 };
};

inline void hold(const float *x, int dim, float *to) { copy(to, x, dim); }
inline void hold(const float *x, int dim, uint16_t *to) {
    for (int d = 0; d < dim; d++) narrow(x[d], to + d);
}
/* To the nearest multiple of the scale, ties to even. */
inline void hold(const float *x, int dim, int8_t *to) {
    const uint32_t infinity = 0x7f800000;
    uint32_t top = 0;
    for (int d = 0; d < dim; d++) {
        uint32_t bits;
        __builtin_memcpy(&bits, x + d, sizeof bits);
        bits &= 0x7fffffff; /* magnitudes are ordered as these are */
        top = bits > top ? bits : top;
    }
    float share;
    __builtin_memcpy(&share, &top, sizeof share);
    share /= 127.0f;
    uint32_t bits;
    __builtin_memcpy(&bits, &share, sizeof bits);
    const uint16_t held = top < infinity ? static_cast<uint16_t>((bits + 0xffff) >> 16) : 0x7fc0;
    __builtin_memcpy(to + dim, &held, sizeof held);
    const float scale = wide(held);
    if (!(scale > 0)) {
        for (int d = 0; d < dim; d++) to[d] = 0;
        return;
    }
    for (int d = 0; d < dim; d++) /* see `round` of simd_generic.h */
        to[d] = static_cast<int8_t>(static_cast<int32_t>((x[d] / scale + 12582912.0f) - 12582912.0f));
}

template <typename T> inline void read_scales(const T *const *, int, int, float *) {}
/* Up to the next multiple of the width 0. */
inline void read_scales(const int8_t *const *heads, int count, int dim, float *to) {
    for (int j = 0; j < count; j++) {
        uint16_t held;
        __builtin_memcpy(&held, heads[j] + dim, sizeof held);
        to[j] = wide(held);
    }
    for (int j = count; j < padded(count); j++) to[j] = 0.0f;
}

/* -- a strip of positions: keys with positions along vectors, values with dims along vectors */

/* State is read once per step, in blocks that lie anywhere: what comes next is asked for while this is computed. */
template <typename T> inline void fetch(const T *const *rows, int count, int dim) {
    const int items = dim + (Held<T>::SCALED ? SCALE_BYTES : 0);
    for (int j = 0; j < count; j++)
        for (int d = 0; d < items; d += 64 / static_cast<int>(sizeof(T))) __builtin_prefetch(rows[j] + d, 0, 3);
}

/* to[d][j], j < count; up to the next multiple of the width the last key is repeated. The `after` keys that follow, and
 * the values, are fetched. */
template <typename T> void turn_keys(const T *const *keys, const T *const *values, int count, int after, int dim, float *to) {
    for (int j = 0; j < count; j += WIDTH) {
        fetch(keys + j + STRIP, least(WIDTH, after - j), dim);
        fetch(values + j, least(WIDTH, count - j), dim);
        const T *from[WIDTH];
        for (int i = 0; i < WIDTH; i++) from[i] = keys[least(j + i, count - 1)];
        int d = 0;
        for (; d + WIDTH <= dim; d += WIDTH) {
            Floats square[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++) square[i] = as_floats(from[i] + d);
            transpose(square, to + d * STRIP + j, STRIP);
        }
        for (; d < dim; d++)
            for (int i = 0; i < WIDTH; i++) to[d * STRIP + j + i] = wide(from[i][d]);
    }
}

/* to[j][d], fp32, zero from dim to the next multiple of the width. */
template <typename T> void widen_values(const T *const *values, int count, int dim, float *to) {
    int wide_dim = padded(dim);
    for (int j = 0; j < count; j++, to += wide_dim) {
        int d = 0;
        for (; d + WIDTH <= dim; d += WIDTH) store(to + d, as_floats(values[j] + d));
        for (; d < wide_dim; d++) to[d] = d < dim ? wide(values[j][d]) : 0.0f;
    }
}

/* -- softmax */

/* Of a partition's positions. */
struct Scales {
    float keys[PARTITION], values[PARTITION];
};

/* scores[0 .. seen) become e^(score - the largest), up to `end` (a multiple of the width) zero. Gives the largest and
 * the sum. With scales, scores are first multiplied by those of the keys, and at last, after the sum, by the values'. */
template <bool SCALED = false>
void soften(float *scores, int seen, int end, float *top, float *total, const Scales *scales = nullptr) {
    const Floats none = set1(-__builtin_inff());
    const auto score_at = [scores, scales](int at) {
        if (!SCALED) return load(scores + at);
        const Floats score = mul(load(scores + at), load(scales->keys + at));
        store(scores + at, score);
        return score;
    };
    Floats high = none;
    int j = 0;
    for (; j + WIDTH <= seen; j += WIDTH) high = max(score_at(j), high);
    if (j < seen) high = max(first(seen - j, score_at(j), none), high);
    *top = largest(high);
    const Floats base = set1(*top), zero = set1(0.0f);
    Floats sums = zero;
    for (j = 0; j + WIDTH <= seen; j += WIDTH) {
        Floats weights = exponential(sub(load(scores + j), base));
        sums = add(sums, weights);
        store(scores + j, SCALED ? mul(weights, load(scales->values + j)) : weights);
    }
    if (j < seen) {
        Floats weights = first(seen - j, exponential(sub(load(scores + j), base)), zero);
        sums = add(sums, weights);
        store(scores + j, SCALED ? first(seen - j, mul(weights, load(scales->values + j)), zero) : weights);
        j += WIDTH;
    }
    for (; j < end; j += WIDTH) store(scores + j, zero);
    *total = sum(sums);
}

/* What a row's positions come to: values [wide_dim], the largest score, and the sum of weights, a whole number of vectors. */
inline int part_floats(int dim) { return padded(dim) + padded(2); }
inline float &top_of(float *part, int wide_dim) { return part[wide_dim]; }
inline float &total_of(float *part, int wide_dim) { return part[wide_dim + 1]; }

/* What a row's partitions so far come to. */
void merge(float *into, float *part, int wide_dim, bool begins) {
    if (begins) {
        copy(into, part, wide_dim + 2);
        return;
    }
    const float old_top = top_of(into, wide_dim), new_top = top_of(part, wide_dim), top = new_top > old_top ? new_top : old_top;
    float less[WIDTH];
    store(less, exponential(first(1, set1(old_top - top), set1(new_top - top))));
    top_of(into, wide_dim) = top;
    total_of(into, wide_dim) = total_of(into, wide_dim) * less[0] + total_of(part, wide_dim) * less[1];
    const Floats old_shares = set1(less[0]), shares = set1(less[1]);
    for (int d = 0; d < wide_dim; d += WIDTH)
        store(into + d, fma(load(into + d), old_shares, mul(load(part + d), shares)));
}

void write_row(float *merged, int dim, float *out) {
    const float total = total_of(merged, padded(dim));
    int d = 0;
    for (; d + WIDTH <= dim; d += WIDTH) store(out + d, div(load(merged + d), set1(total)));
    for (; d < dim; d++) out[d] = merged[d] / total;
}

/* -- a tile */

/* Enough that turning the keys costs little, and so few that their scores stay in the second-level cache. */
enum { TILE_ROWS = 48 };

/* Scratch memory of a tile. */
struct Room {
    float *queries, *keys, *values, *scores, *sums, *parts, *merged;

    Room(float *at, int rows, int dim) {
        int wide_dim = padded(dim);
        queries = at;
        keys = queries + padded(rows * dim);
        values = keys + dim * STRIP;
        scores = values + STRIP * wide_dim;
        sums = scores + rows * PARTITION;
        parts = sums + rows * wide_dim;
        merged = parts + rows * part_floats(dim);
        end = merged + rows * part_floats(dim);
    }
    float *end;
};

int64_t partial_floats(int rows, int dim) { return static_cast<int64_t>(rows) * part_floats(dim); }

/* How many positions of a partition the row sees: none, if it ends before. */
inline int seen_of(const Tile &tile, int row, int partition) {
    int64_t seen = tile.start + row / tile.group + 1 - static_cast<int64_t>(partition) * PARTITION;
    return seen < 0 ? 0 : seen > PARTITION ? static_cast<int>(PARTITION) : static_cast<int>(seen);
}

template <typename T> void place(const Tile &tile, int64_t position, int count, const T **keys, const T **values) {
    const int64_t items = head_items(tile.state_format, tile.dim);
    int64_t block = position / tile.block_tokens, offset = position % tile.block_tokens;
    for (int j = 0; j < count; j++) {
        int64_t at = tile.blocks[block] * tile.block_items + offset * items;
        keys[j] = static_cast<const T *>(tile.keys) + at;
        values[j] = static_cast<const T *>(tile.values) + at;
        if (++offset == tile.block_tokens) offset = 0, block++;
    }
}

/* do_it(first row, rows, positions of the partition that the last of them sees) for each group of rows that are multiplied
 * together: none is multiplied with what the last does not see. */
template <typename Do> inline void each_group(const Tile &tile, int partition, const Do &do_it) {
    const int all = tile.positions * tile.group;
    for (int row = 0; row < all; row += ROWS) {
        const int rows = least(ROWS, all - row);
        do_it(row, rows, seen_of(tile, row + rows - 1, partition));
    }
}

/* One partition of all rows, into parts. */
template <typename T> void attend_partition(const Tile &tile, int partition, const Room &room) {
    const int all = tile.positions * tile.group, dim = tile.dim, wide_dim = padded(dim);
    const int seen = seen_of(tile, all - 1, partition); /* the last row sees the most */
    const int64_t base = static_cast<int64_t>(partition) * PARTITION;
    const T *keys[PARTITION], *values[PARTITION];
    place(tile, base, seen, keys, values);
    fetch(keys, least(STRIP, seen), dim);
    for (int j = 0; j < seen; j += STRIP) {
        const int count = least(STRIP, seen - j);
        turn_keys(keys + j, values + j, count, seen - j - count, dim, room.keys);
        each_group(tile, partition, [&](int row, int rows, int most) {
            score_strip(room.queries + row * dim, rows, dim, room.keys, least(count, most - j),
                        room.scores + row * PARTITION + j);
        });
    }
    Scales scales;
    read_scales(keys, seen, dim, scales.keys);
    read_scales(values, seen, dim, scales.values);
    each_group(tile, partition, [&](int first, int rows, int most) {
        for (int row = first; row < first + rows; row++) {
            float *part = room.parts + row * part_floats(dim);
            int mine = seen_of(tile, row, partition);
            if (mine)
                soften<Held<T>::SCALED>(room.scores + row * PARTITION, mine, padded(most), &top_of(part, wide_dim),
                                        &total_of(part, wide_dim), &scales);
            else
                for (int k = 0; k < padded(most); k++) room.scores[row * PARTITION + k] = 0.0f;
        }
    });
    for (int i = 0; i < all * wide_dim; i += WIDTH) store(room.sums + i, set1(0.0f));
    /* Widened once where several groups of rows read them. */
    const bool widen = dim % WIDTH || (all > ROWS && sizeof(T) < sizeof(float));
    for (int j = 0; j < seen; j += STRIP) {
        const int count = least(STRIP, seen - j);
        const float *widened[STRIP];
        if (widen) widen_values(values + j, count, dim, room.values);
        for (int k = 0; k < count; k++) widened[k] = room.values + k * wide_dim;
        each_group(tile, partition, [&](int row, int rows, int most) {
            const float *weights = room.scores + row * PARTITION + j;
            float *sums = room.sums + row * wide_dim;
            if (most <= j) return;
            if (widen)
                weigh_strip(weights, rows, widened, least(count, most - j), sums, wide_dim);
            else
                weigh_strip(weights, rows, values + j, least(count, most - j), sums, wide_dim);
        });
    }
    for (int row = 0; row < all; row++)
        copy(room.parts + row * part_floats(dim), room.sums + row * wide_dim, wide_dim);
}

/* The results of `count` rows from `first` on go to where they are merged later, or are merged now: partitions come in
 * order. */
void keep_rows(const Tile &tile, int partition, int first, int count, float *parts, float *merged) {
    const int each = part_floats(tile.dim);
    if (tile.partials) {
        const int64_t before = partition * partial_floats(tile.positions * tile.group, tile.dim);
        return copy(tile.partials + before + first * each, parts, count * each);
    }
    for (int row = 0; row < count; row++)
        if (seen_of(tile, first + row, partition))
            merge(merged + (first + row) * each, parts + row * each, padded(tile.dim), partition == 0);
}

void write_rows(const Tile &tile, float *merged) {
    const int rows = tile.positions * tile.group, row_floats = part_floats(tile.dim);
    for (int row = 0; row < rows; row++)
        write_row(merged + row * row_floats, tile.dim,
                  tile.out + row / tile.group * tile.query_stride + row % tile.group * tile.dim);
}

template <typename T> void attend_floats(const Tile &tile) {
    const int dim = tile.dim;
    const Room room(tile.scratch, tile.positions * tile.group, dim);
    for (int i = 0; i < tile.positions; i++)
        copy(room.queries + i * tile.group * dim, tile.queries + i * tile.query_stride, tile.group * dim);
    for (int partition = tile.from; partition < tile.to; partition++) {
        attend_partition<T>(tile, partition, room);
        keep_rows(tile, partition, 0, tile.positions * tile.group, room.parts, room.merged);
    }
    if (!tile.partials) write_rows(tile, room.merged);
}

#ifdef HEADWAY_PAIRS
#include "pairs_level.h"
#define HEADWAY_ROUNDED attend_pairs
const int ROUNDED_TILE_ROWS = PAIR_TILE_ROWS;
#else
#define HEADWAY_ROUNDED attend_floats
const int ROUNDED_TILE_ROWS = TILE_ROWS;
#endif

int tile_rows(int state_format) { return state_format == HEADWAY_FP32 ? TILE_ROWS : ROUNDED_TILE_ROWS; }

int64_t scratch_floats(int rows, int dim) {
    float *none = nullptr;
    int64_t floats = Room(none, rows, dim).end - none;
#ifdef HEADWAY_PAIRS
    const int64_t pairs = PairRoom(none, rows, dim).end - none;
    floats = pairs > floats ? pairs : floats;
#endif
    return floats;
}

void attend(const Tile &tile) {
    if (tile.state_format == HEADWAY_INT8)
        HEADWAY_ROUNDED<int8_t>(tile);
    else if (tile.state_format == HEADWAY_BF16)
        HEADWAY_ROUNDED<uint16_t>(tile);
    else
        attend_floats<float>(tile);
}

void finish(const Tile &tile) {
    const int rows = tile.positions * tile.group;
    const Room room(tile.scratch, rows, tile.dim);
    Tile merged = tile;
    merged.partials = nullptr;
    for (int partition = 0; partition < tile.to; partition++) {
        float *parts = tile.partials + partition * partial_floats(rows, tile.dim);
        keep_rows(merged, partition, 0, rows, parts, room.merged);
    }
    write_rows(tile, room.merged);
}

/* -- what comes before attention */

/* x / sqrt(mean(x^2) + eps) * weight. x is followed by zeros up to a multiple of the width. */
void normalise(float *x, int dim, const float *weight, float eps) {
    Floats squares = set1(0.0f);
    for (int d = 0; d < dim; d += WIDTH) squares = fma(load(x + d), load(x + d), squares);
    float inverse = 1.0f / __builtin_sqrtf(sum(squares) / dim + eps);
    for (int d = 0; d < dim; d++) x[d] = x[d] * inverse * weight[d];
}

/* y = x turned by a position's angles: dim d and dim d + half are a plane's coordinates. */
inline void turn_head(const float *x, const float *cosines, const float *sines, int half, float *y) {
    int d = 0;
    for (; d + WIDTH <= half; d += WIDTH) {
        const Floats a = load(x + d), b = load(x + d + half);
        store(y + d, add(mul(a, load(cosines + d)), mul(b, load(sines + d))));
        store(y + d + half, add(mul(b, load(cosines + d + half)), mul(a, load(sines + d + half))));
    }
    for (; d < half; d++) {
        y[d] = x[d] * cosines[d] + x[d + half] * sines[d];
        y[d + half] = x[d + half] * cosines[d + half] + x[d] * sines[d + half];
    }
}

template <typename In, typename State>
void enter_as(const Heads &heads, const In *row, const float *cosines, const float *sines, float *queries, State *slot,
              float *scratch) {
    const int dim = heads.dim, half = dim / 2, turned = heads.heads + heads.kv_heads;
    float *x = scratch, *y = scratch + padded(dim);
    for (int d = dim; d < padded(dim); d++) x[d] = 0.0f;
    for (int head = 0; head < turned; head++, row += dim) {
        for (int d = 0; d < dim; d++) x[d] = wide(row[d]);
        if (heads.norms) normalise(x, dim, heads.norms + head * dim, heads.eps);
        const float *turn = x;
        if (cosines) {
            turn_head(x, cosines, sines, half, y);
            turn = y;
        }
        if (head < heads.heads)
            for (int d = 0; d < dim; d++) queries[head * dim + d] = turn[d] * heads.scale;
        else
            hold(turn, dim, slot + (head - heads.heads) * heads.plane);
    }
    for (int head = 0; head < heads.kv_heads; head++, row += dim) {
        for (int d = 0; d < dim; d++) x[d] = wide(row[d]);
        hold(x, dim, slot + (heads.kv_heads + head) * heads.plane);
    }
}

template <typename In>
void enter_of(const Heads &heads, const In *row, const float *cosines, const float *sines, float *queries, void *slot,
              float *scratch) {
    if (heads.state_format == HEADWAY_INT8)
        enter_as(heads, row, cosines, sines, queries, static_cast<int8_t *>(slot), scratch);
    else if (heads.state_format == HEADWAY_BF16)
        enter_as(heads, row, cosines, sines, queries, static_cast<uint16_t *>(slot), scratch);
    else
        enter_as(heads, row, cosines, sines, queries, static_cast<float *>(slot), scratch);
}

void enter(const Heads &heads, const void *row, const float *cosines, const float *sines, float *queries, void *slot,
           float *scratch) {
    if (heads.format == HEADWAY_BF16)
        enter_of(heads, static_cast<const uint16_t *>(row), cosines, sines, queries, slot, scratch);
    else
        enter_of(heads, static_cast<const float *>(row), cosines, sines, queries, slot, scratch);
}

} } // namespace

extern const Kernels HEADWAY_NAME(kernels_, HEADWAY_LEVEL);
const Kernels HEADWAY_NAME(kernels_, HEADWAY_LEVEL) = {
    HEADWAY_LEVEL::WIDTH,  HEADWAY_LEVEL::tile_rows, HEADWAY_LEVEL::scratch_floats, HEADWAY_LEVEL::partial_floats,
    HEADWAY_LEVEL::attend, HEADWAY_LEVEL::finish,    HEADWAY_LEVEL::enter,
};

} // namespace headway
