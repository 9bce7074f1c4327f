/* The kernels, in terms of a level's `Floats`. Included once per level: all of it has internal linkage, and nothing of
 * the standard library is used, lest the linker keep one level's copy of an inline function for all of them. */
#include "kernels.h"
#include "simd_math.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

inline Floats as_floats(const float *p) { return load(p); }
inline Floats as_floats(const uint16_t *p) { return load(p); }

/* -- products: ROWS rows, COLUMNS vectors at most; each element is one chain of sums, so that no size changes its bits */

typedef void (*Score)(const float *queries, const float *keys, int dim, float *scores);

/* scores[row][key] = sum over d of queries[row][d] * keys[d][key], d ascending. */
template <int R, int C> void score(const float *queries, const float *keys, int dim, float *scores) {
    Floats sums[R][C];
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) sums[r][c] = set1(0.0f);
    for (int d = 0; d < dim; d++) {
        Floats key[C];
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) key[c] = load(keys + d * STRIP + c * WIDTH);
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            Floats query = set1(queries[r * dim + d]);
#pragma GCC unroll 8
            for (int c = 0; c < C; c++) sums[r][c] = fma(query, key[c], sums[r][c]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int c = 0; c < C; c++) store(scores + r * PARTITION + c * WIDTH, sums[r][c]);
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
#define HEADWAY_SCORE(R, C) score<R, C>
#define HEADWAY_WEIGH_FP32(R, C) weigh<float, R, C>
#define HEADWAY_WEIGH_BF16(R, C) weigh<uint16_t, R, C>
#define HEADWAY_WEIGH_INT8(R, C) weigh<int8_t, R, C>

const Score score_table[ROWS][4] = HEADWAY_ROWS(HEADWAY_SCORE);
const Weigh<float> weigh_fp32[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_FP32);
const Weigh<uint16_t> weigh_bf16[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_BF16);
const Weigh<int8_t> weigh_int8[ROWS][4] = HEADWAY_ROWS(HEADWAY_WEIGH_INT8);
inline Weigh<float> weigh_for(const float *, int rows, int columns) { return weigh_fp32[rows - 1][columns - 1]; }
inline Weigh<uint16_t> weigh_for(const uint16_t *, int rows, int columns) { return weigh_bf16[rows - 1][columns - 1]; }
inline Weigh<int8_t> weigh_for(const int8_t *, int rows, int columns) { return weigh_int8[rows - 1][columns - 1]; }

void score_strip(const float *queries, int rows, int dim, const float *keys, int count, float *scores) {
    for (int vector = 0, vectors = padded(count) / WIDTH; vector < vectors; vector += COLUMNS) {
        int columns = least(COLUMNS, vectors - vector);
        for (int row = 0; row < rows; row += ROWS)
            score_table[least(ROWS, rows - row) - 1][columns - 1](
                queries + row * dim, keys + vector * WIDTH, dim, scores + row * PARTITION + vector * WIDTH);
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

/* What a row's partitions so far come to: [top, total, values…]. */
void merge(float *into, const float *part, int wide_dim, bool begins) {
    if (begins) {
        copy(into, part, wide_dim + 2);
        return;
    }
    float top = part[0] > into[0] ? part[0] : into[0];
    float old_share = exponential(into[0] - top), share = exponential(part[0] - top);
    into[0] = top;
    into[1] = into[1] * old_share + part[1] * share;
    const Floats old_shares = set1(old_share), shares = set1(share);
    for (int d = 0; d < wide_dim; d += WIDTH)
        store(into + 2 + d, fma(load(into + 2 + d), old_shares, mul(load(part + 2 + d), shares)));
}

void write_row(const float *merged, int dim, float *out) {
    const float total = merged[1];
    int d = 0;
    for (; d + WIDTH <= dim; d += WIDTH) store(out + d, div(load(merged + 2 + d), set1(total)));
    for (; d < dim; d++) out[d] = merged[2 + d] / total;
}

/* -- a tile */

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
        merged = parts + rows * (wide_dim + 2);
        end = merged + rows * (wide_dim + 2);
    }
    float *end;
};

int64_t scratch_floats(int rows, int dim) {
    float *none = nullptr;
    return Room(none, rows, dim).end - none;
}

int64_t partial_floats(int rows, int dim) { return static_cast<int64_t>(rows) * (padded(dim) + 2); }

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

/* One partition of all rows: parts[row] = [top, total, values…]. */
template <typename T> void attend_partition(const Tile &tile, int partition, const Room &room) {
    const int rows = tile.positions * tile.group, dim = tile.dim, wide_dim = padded(dim);
    const int seen = seen_of(tile, rows - 1, partition); /* the last row sees the most */
    const int64_t base = static_cast<int64_t>(partition) * PARTITION;
    const T *keys[PARTITION], *values[PARTITION];
    place(tile, base, seen, keys, values);
    fetch(keys, least(STRIP, seen), dim);
    for (int j = 0; j < seen; j += STRIP) {
        int count = least(STRIP, seen - j);
        turn_keys(keys + j, values + j, count, seen - j - count, dim, room.keys);
        score_strip(room.queries, rows, dim, room.keys, count, room.scores + j);
    }
    Scales scales;
    read_scales(keys, seen, dim, scales.keys);
    read_scales(values, seen, dim, scales.values);
    for (int row = 0; row < rows; row++) {
        float *part = room.parts + row * (wide_dim + 2);
        int mine = seen_of(tile, row, partition);
        if (mine)
            soften<Held<T>::SCALED>(room.scores + row * PARTITION, mine, padded(seen), part, part + 1, &scales);
        else
            for (int k = 0; k < padded(seen); k++) room.scores[row * PARTITION + k] = 0.0f;
    }
    for (int i = 0; i < rows * wide_dim; i += WIDTH) store(room.sums + i, set1(0.0f));
    /* Widened once where several groups of rows read them. */
    const bool widen = dim % WIDTH || (rows > ROWS && sizeof(T) < sizeof(float));
    for (int j = 0; j < seen; j += STRIP) {
        int count = least(STRIP, seen - j);
        if (widen) {
            const float *widened[STRIP];
            widen_values(values + j, count, dim, room.values);
            for (int k = 0; k < count; k++) widened[k] = room.values + k * wide_dim;
            weigh_strip(room.scores + j, rows, widened, count, room.sums, wide_dim);
        } else {
            weigh_strip(room.scores + j, rows, values + j, count, room.sums, wide_dim);
        }
    }
    for (int row = 0; row < rows; row++)
        copy(room.parts + row * (wide_dim + 2) + 2, room.sums + row * wide_dim, wide_dim);
}

void merge_partition(const Tile &tile, int partition, const float *parts, float *merged) {
    const int rows = tile.positions * tile.group, row_floats = padded(tile.dim) + 2;
    for (int row = 0; row < rows; row++)
        if (seen_of(tile, row, partition))
            merge(merged + row * row_floats, parts + row * row_floats, padded(tile.dim), partition == 0);
}

void write_rows(const Tile &tile, const float *merged) {
    const int rows = tile.positions * tile.group, row_floats = padded(tile.dim) + 2;
    for (int row = 0; row < rows; row++)
        write_row(merged + row * row_floats, tile.dim,
                  tile.out + row / tile.group * tile.query_stride + row % tile.group * tile.dim);
}

void attend(const Tile &tile) {
    const int rows = tile.positions * tile.group, dim = tile.dim;
    const Room room(tile.scratch, rows, dim);
    for (int i = 0; i < tile.positions; i++)
        copy(room.queries + i * tile.group * dim, tile.queries + i * tile.query_stride, tile.group * dim);
    for (int partition = tile.from; partition < tile.to; partition++) {
        if (tile.state_format == HEADWAY_INT8)
            attend_partition<int8_t>(tile, partition, room);
        else if (tile.state_format == HEADWAY_BF16)
            attend_partition<uint16_t>(tile, partition, room);
        else
            attend_partition<float>(tile, partition, room);
        if (tile.partials)
            copy(tile.partials + partition * partial_floats(rows, dim), room.parts,
                 static_cast<int>(partial_floats(rows, dim)));
        else
            merge_partition(tile, partition, room.parts, room.merged);
    }
    if (!tile.partials) write_rows(tile, room.merged);
}

void finish(const Tile &tile) {
    const int rows = tile.positions * tile.group;
    const Room room(tile.scratch, rows, tile.dim);
    for (int partition = 0; partition < tile.to; partition++)
        merge_partition(tile, partition, tile.partials + partition * partial_floats(rows, tile.dim), room.merged);
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
            for (int d = 0; d < half; d++) {
                y[d] = x[d] * cosines[d] + x[d + half] * sines[d];
                y[d + half] = x[d + half] * cosines[d + half] + x[d] * sines[d + half];
            }
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
    HEADWAY_LEVEL::WIDTH,  HEADWAY_LEVEL::scratch_floats, HEADWAY_LEVEL::partial_floats,
    HEADWAY_LEVEL::attend, HEADWAY_LEVEL::finish,         HEADWAY_LEVEL::enter,
};

} // namespace headway
