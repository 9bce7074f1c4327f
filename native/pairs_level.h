/* Attention over state in bf16 or int8, at a level that multiplies pairs of bf16 numbers: twice as many at a time as of
 * fp32. Queries and the softmax's weights are rounded to bf16; what the state holds is one already, or a whole number.
 * Sums are fp32, each one chain in the order of dims, or of positions in pairs, so that no size changes its bits.
 * Included by level.h. */

/* Rows whose scores are computed, softened and spent before the next ones': they stay in the first-level cache. */
enum { PAIR_ROWS = 4 * ROWS };
/* Keys and values are laid out once for so many. */
enum { PAIR_TILE_ROWS = 8 * PAIR_ROWS };

/* Numbers as pairs: of a dim and the next (keys, queries), of a position and the next (values, weights). */
struct PairRoom {
    uint32_t *queries; /* [rows, halves] */
    uint32_t *keys;    /* [strips, wide_halves, STRIP] */
    uint32_t *values;  /* [PARTITION / 2, wide_dim] */
    uint32_t *weights; /* [PAIR_ROWS, PARTITION / 2] */
    float *scores;     /* [PAIR_ROWS, PARTITION] */
    float *parts;      /* [PAIR_ROWS, part_floats] */
    float *merged;     /* [rows, part_floats] */
    float *end;

    PairRoom(float *at, int rows, int dim) {
        const int wide_dim = padded(dim);
        uint32_t *words = reinterpret_cast<uint32_t *>(at);
        keys = words;
        values = keys + PARTITION * wide_halves(dim);
        weights = values + PARTITION / 2 * wide_dim;
        queries = weights + PAIR_ROWS * PARTITION / 2;
        scores = reinterpret_cast<float *>(queries + padded(rows * halves(dim)));
        parts = scores + PAIR_ROWS * PARTITION;
        merged = parts + PAIR_ROWS * part_floats(dim);
        end = merged + rows * part_floats(dim);
    }
    static int halves(int dim) { return (dim + 1) / 2; }
    static int wide_halves(int dim) { return padded(halves(dim)); }
};

struct PairTerms {
    typedef uint32_t Item;
    typedef Pairs Vector;
    static Vector vector(const Item *p) { return load_pairs(p); }
    static Vector spread(Item x) { return set1_pair(x); }
    static Floats add(Floats sum, Vector row, Vector column) { return dot_pairs(sum, row, column); }
};

#define HEADWAY_MULTIPLY_PAIRS(R, C) multiply<PairTerms, R, C>
const Multiply<PairTerms> multiply_pairs[ROWS][4] = HEADWAY_ROWS(HEADWAY_MULTIPLY_PAIRS);

/* -- a partition's keys and values, as pairs */

/* to [wide_halves, STRIP] for `count` <= STRIP keys; up to the next multiple of the width the last is repeated. The `after`
 * keys that follow, and the values, are fetched. */
template <typename T>
void turn_pairs(const T *const *keys, const T *const *values, int count, int after, int dim, uint32_t *to) {
    for (int j = 0; j < count; j += WIDTH) {
        fetch(keys + j + STRIP, least(WIDTH, after - j), dim);
        fetch(values + j, least(WIDTH, count - j), dim);
        for (int d = 0; d < dim; d += 2 * WIDTH) {
            Floats square[WIDTH];
#pragma GCC unroll 16
            for (int i = 0; i < WIDTH; i++)
                square[i] = as_lanes(pairs_of(keys[least(j + i, count - 1)] + d, least(2 * WIDTH, dim - d)));
            transpose(square, reinterpret_cast<float *>(to + d / 2 * STRIP + j), STRIP);
        }
    }
}

/* to [pairs, wide_dim]; the last of an odd count is paired with zeros, and so are dims from `dim` on. */
template <typename T> void pair_values(const T *const *values, int count, int dim, uint32_t *to) {
    const int wide_dim = padded(dim);
    for (int j = 0; j < count; j += 2, to += wide_dim)
        for (int d = 0; d < wide_dim; d += 2 * WIDTH) {
            const int items = least(2 * WIDTH, dim - d);
            const Pairs even = pairs_of(values[j] + d, items);
            const Pairs odd = j + 1 < count ? pairs_of(values[j + 1] + d, items) : set1_pair(0);
            Pairs low, high;
            interleave(even, odd, &low, &high);
            store_pairs(to + d, low);
            if (d + WIDTH < wide_dim) store_pairs(to + d + WIDTH, high);
        }
}

/* -- rows of a partition */

/* weights[0 .. seen) = e^(score - the largest) as bf16, and zero up to `end`, a multiple of the width. Gives the largest
 * and the sum, of what is not rounded. Scales as in `soften`; scores are changed. */
template <bool SCALED>
void soften_pairs(float *scores, int seen, int end, float *top, float *total, const Scales *scales, uint16_t *weights) {
    const Floats none = set1(-__builtin_inff()), zero = set1(0.0f), log2_of_e = set1(1.44269504f);
    const int whole = seen / WIDTH * WIDTH, rest = seen - whole;
    const auto score_at = [scores, scales](int at) {
        if (!SCALED) return load(scores + at);
        const Floats score = mul(load(scores + at), load(scales->keys + at));
        store(scores + at, score);
        return score;
    };
    Floats high = none;
    for (int j = 0; j < whole; j += WIDTH) high = max(score_at(j), high);
    if (rest) high = max(first(rest, score_at(whole), none), high);
    *top = largest(high);
    const Floats base = set1(-*top * 1.44269504f);
    const auto weight_at = [scores, log2_of_e, base](int at) {
        return power_of_two(fma(load(scores + at), log2_of_e, base));
    };
    const auto scaled = [scales](int at, Floats weight) {
        return SCALED ? mul(weight, load(scales->values + at)) : weight;
    };
    Floats sums = zero;
    for (int j = 0; j < whole; j += WIDTH) {
        const Floats weight = weight_at(j);
        sums = add(sums, weight);
        store_rounded(weights + j, scaled(j, weight));
    }
    int j = whole;
    if (rest) {
        const Floats weight = first(rest, weight_at(j), zero);
        sums = add(sums, weight);
        store_rounded(weights + j, first(rest, scaled(j, weight), zero)); /* a scale beyond may be NaN */
        j += WIDTH;
    }
    for (; j < end; j += WIDTH) store_rounded(weights + j, zero);
    *total = sum(sums);
}

/* `count` <= PAIR_ROWS rows. Of a group of rows that are multiplied together, none
 * is multiplied with positions that the last does not see. */
template <typename T>
void attend_rows(const Tile &tile, int partition, int row, int count, const PairRoom &room, const Scales &scales) {
    const int dim = tile.dim, wide_dim = padded(dim), halves = PairRoom::halves(dim), stride = part_floats(dim);
    const int most = seen_of(tile, row + count - 1, partition);
    for (int j = 0; j < most; j += STRIP)
        for (int group = 0; group < count; group += ROWS) {
            const int rows = least(ROWS, count - group);
            const int vectors = padded(least(STRIP, seen_of(tile, row + group + rows - 1, partition) - j)) / WIDTH;
            for (int vector = 0; vector < vectors; vector += COLUMNS)
                multiply_pairs[rows - 1][least(COLUMNS, vectors - vector) - 1](
                    room.queries + (row + group) * halves, halves,
                    room.keys + j * PairRoom::wide_halves(dim) + vector * WIDTH, STRIP, halves,
                    room.scores + group * PARTITION + j + vector * WIDTH, PARTITION);
        }
    for (int group = 0; group < count; group += ROWS) {
        const int rows = least(ROWS, count - group), seen = seen_of(tile, row + group + rows - 1, partition);
        for (int r = group; r < group + rows; r++) {
            float *part = room.parts + r * stride;
            soften_pairs<Held<T>::SCALED>(room.scores + r * PARTITION, seen_of(tile, row + r, partition), padded(seen),
                                          &top_of(part, wide_dim), &total_of(part, wide_dim), &scales,
                                          reinterpret_cast<uint16_t *>(room.weights + r * (PARTITION / 2)));
        }
        for (int vector = 0, vectors = seen ? wide_dim / WIDTH : 0; vector < vectors; vector += COLUMNS)
            multiply_pairs[rows - 1][least(COLUMNS, vectors - vector) - 1](
                room.weights + group * (PARTITION / 2), PARTITION / 2, room.values + vector * WIDTH, wide_dim,
                (seen + 1) / 2, room.parts + group * stride + vector * WIDTH, stride);
    }
    keep_rows(tile, partition, row, count, room.parts, room.merged);
}

template <typename T> void attend_partition_pairs(const Tile &tile, int partition, const PairRoom &room) {
    const int rows = tile.positions * tile.group, dim = tile.dim;
    const int seen = seen_of(tile, rows - 1, partition);
    const T *keys[PARTITION], *values[PARTITION];
    place(tile, static_cast<int64_t>(partition) * PARTITION, seen, keys, values);
    fetch(keys, least(STRIP, seen), dim);
    for (int j = 0; j < seen; j += STRIP) {
        const int count = least(STRIP, seen - j);
        turn_pairs(keys + j, values + j, count, seen - j - count, dim, room.keys + j * PairRoom::wide_halves(dim));
    }
    pair_values(values, seen, dim, room.values);
    Scales scales;
    read_scales(keys, seen, dim, scales.keys);
    read_scales(values, seen, dim, scales.values);
    for (int row = 0; row < rows; row += PAIR_ROWS)
        attend_rows<T>(tile, partition, row, least(PAIR_ROWS, rows - row), room, scales);
}

/* [rows, halves], rounded; an odd dim is paired with zero. */
void round_queries(const Tile &tile, uint32_t *to) {
    const int dim = tile.dim, halves = PairRoom::halves(dim);
    for (int row = 0; row < tile.positions * tile.group; row++, to += halves) {
        const float *from = tile.queries + row / tile.group * tile.query_stride + row % tile.group * dim;
        uint16_t *items = reinterpret_cast<uint16_t *>(to);
        items[2 * halves - 1] = 0;
        int d = 0;
        for (; d + WIDTH <= dim; d += WIDTH) store_rounded(items + d, load(from + d));
        for (; d < dim; d++) narrow(from[d], items + d);
    }
}

template <typename T> void attend_pairs(const Tile &tile) {
    const PairRoom room(tile.scratch, tile.positions * tile.group, tile.dim);
    round_queries(tile, room.queries);
    for (int partition = tile.from; partition < tile.to; partition++) {
        attend_partition_pairs<T>(tile, partition, room);
    }
    if (!tile.partials) write_rows(tile, room.merged);
}
