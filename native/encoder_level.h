/* Attention of whole inputs, and norms. Included after level.h, whose products and softmax it uses. */
#include "encoder.h"

namespace headway { namespace HEADWAY_LEVEL { namespace {

/* Queries whose scores exist at a time: what they take stays in the nearest cache. */
enum { QUERIES = 4 * ROWS };

/* Scratch memory of an input's head. */
struct WholeRoom {
    float *keys, *queries, *scores, *sums, *parts, *merged, *end;

    WholeRoom(float *at, int length, int dim) {
        keys = at;
        queries = keys + static_cast<int64_t>((length + STRIP - 1) / STRIP) * STRIP * dim;
        scores = queries + QUERIES * dim;
        sums = scores + QUERIES * PARTITION;
        parts = sums + QUERIES * dim;
        merged = parts + QUERIES * part_floats(dim);
        end = merged + QUERIES * part_floats(dim);
    }
};

int64_t whole_floats(int length, int dim) {
    float *none = nullptr;
    return WholeRoom(none, length, dim).end - none;
}

/* Where the vectors of up to PARTITION positions are. */
inline void point(const float *first, int64_t stride, int count, const float **to) {
    for (int j = 0; j < count; j++) to[j] = first + j * stride;
}

void turn_all_keys(const Whole &whole, float *to) {
    const float *keys[STRIP];
    for (int j = 0; j < whole.length; j += STRIP) {
        const int count = least(STRIP, whole.length - j);
        point(whole.qkv + whole.keys + j * whole.stride, whole.stride, count, keys);
        turn_keys(keys, keys, count, 0, whole.dim, to + static_cast<int64_t>(j) * whole.dim);
    }
}

/* `rows` queries over one partition: sums[row], and its top and total. */
void attend_to(const Whole &whole, int partition, int rows, const WholeRoom &room, float *tops, float *totals) {
    const int base = partition * PARTITION, seen = least(PARTITION, whole.length - base), dim = whole.dim;
    for (int j = 0; j < seen; j += STRIP)
        score_strip(room.queries, rows, dim, room.keys + static_cast<int64_t>(base + j) * dim, least(STRIP, seen - j),
                    room.scores + j);
    for (int row = 0; row < rows; row++)
        soften(room.scores + row * PARTITION, seen, padded(seen), tops + row, totals + row);
    for (int i = 0; i < rows * dim; i += WIDTH) store(room.sums + i, set1(0.0f));
    const float *values[STRIP];
    for (int j = 0; j < seen; j += STRIP) {
        const int count = least(STRIP, seen - j);
        point(whole.qkv + whole.values + (base + j) * whole.stride, whole.stride, count, values);
        weigh_strip(room.scores + j, rows, values, count, room.sums, dim);
    }
}

/* `rows` queries from `first` on, counted from whole.first, over all partitions. */
void attend_rows(const Whole &whole, int first, int rows, const WholeRoom &room) {
    const int dim = whole.dim, parts = (whole.length + PARTITION - 1) / PARTITION;
    const Floats scale = set1(whole.scale);
    for (int row = 0; row < rows; row++) {
        const float *query = whole.qkv + (whole.first + first + row) * whole.stride;
        for (int d = 0; d < dim; d += WIDTH) store(room.queries + row * dim + d, mul(load(query + d), scale));
    }
    float tops[QUERIES], totals[QUERIES];
    if (parts == 1) {
        attend_to(whole, 0, rows, room, tops, totals);
        for (int row = 0; row < rows; row++) {
            const Floats share = set1(1.0f / totals[row]);
            float *out = whole.out + (first + row) * whole.out_stride;
            for (int d = 0; d < dim; d += WIDTH) store(out + d, mul(load(room.sums + row * dim + d), share));
        }
        return;
    }
    for (int partition = 0; partition < parts; partition++) {
        attend_to(whole, partition, rows, room, tops, totals);
        for (int row = 0; row < rows; row++) {
            float *part = room.parts + row * part_floats(dim);
            top_of(part, dim) = tops[row];
            total_of(part, dim) = totals[row];
            copy(part, room.sums + row * dim, dim);
            merge(room.merged + row * part_floats(dim), part, dim, partition == 0);
        }
    }
    for (int row = 0; row < rows; row++)
        write_row(room.merged + row * part_floats(dim), dim, whole.out + (first + row) * whole.out_stride);
}

void attend_whole(const Whole &whole) {
    const WholeRoom room(whole.scratch, whole.length, whole.dim);
    turn_all_keys(whole, room.keys);
    for (int first = 0; first < whole.count; first += QUERIES)
        attend_rows(whole, first, least(QUERIES, whole.count - first), room);
}

/* -- norms */

/* Vectors that are summed side by side, so that no sum waits for the one before. */
enum { SIDE_BY_SIDE = 4 };

struct Sums {
    Floats of[SIDE_BY_SIDE];

    Sums() {
        for (int i = 0; i < SIDE_BY_SIDE; i++) of[i] = set1(0.0f);
    }
    float total() const { return sum(add(add(of[0], of[1]), add(of[2], of[3]))); }
};

/* normed = x, or x + more + most; its sum. */
inline float add_row(const NormRow &row, int whole) {
    float *y = row.normed;
    Sums sums;
    for (int d = 0; d < whole; d += SIDE_BY_SIDE * WIDTH)
        for (int i = 0, at = d; i < SIDE_BY_SIDE && at < whole; i++, at += WIDTH) {
            Floats x = load(row.x + at);
            if (row.more) x = add(x, load(row.more + at));
            if (row.most) x = add(x, load(row.most + at));
            store(y + at, x);
            sums.of[i] = add(sums.of[i], x);
        }
    float total = sums.total();
    for (int d = whole; d < row.size; d++) {
        y[d] = row.x[d] + (row.more ? row.more[d] : 0) + (row.most ? row.most[d] : 0);
        total += y[d];
    }
    return total;
}

/* The sum of squares of what the row is away from its mean. */
inline float spread_row(const float *y, float mean, int whole, int size) {
    const Floats means = set1(mean);
    Sums sums;
    for (int d = 0; d < whole; d += SIDE_BY_SIDE * WIDTH)
        for (int i = 0, at = d; i < SIDE_BY_SIDE && at < whole; i++, at += WIDTH) {
            const Floats away = sub(load(y + at), means);
            sums.of[i] = fma(away, away, sums.of[i]);
        }
    float total = sums.total();
    for (int d = whole; d < size; d++) total += (y[d] - mean) * (y[d] - mean);
    return total;
}

void norm_row(const NormRow &row) {
    const int size = row.size, whole = size / WIDTH * WIDTH;
    float *y = row.normed;
    const float mean = add_row(row, whole) / size;
    const float inverse = 1.0f / __builtin_sqrtf(spread_row(y, mean, whole, size) / size + row.eps);
    const Floats means = set1(mean), inverses = set1(inverse);
    for (int d = 0; d < whole; d += WIDTH) {
        Floats x = mul(mul(sub(load(y + d), means), inverses), load(row.weight + d));
        if (row.bias) x = add(x, load(row.bias + d));
        store(y + d, x);
        if (row.kept) store(row.kept + d, row.scale ? mul(x, load(row.scale + d)) : x);
    }
    for (int d = whole; d < size; d++) {
        y[d] = (y[d] - mean) * inverse * row.weight[d] + (row.bias ? row.bias[d] : 0);
        if (row.kept) row.kept[d] = row.scale ? y[d] * row.scale[d] : y[d];
    }
}

/* -- pooling */

void mean_rows(const float *x, int count, int size, float *to) {
    const float share = 1.0f / count;
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH) {
        Floats total = set1(0.0f);
        for (int row = 0; row < count; row++) total = add(total, load(x + static_cast<int64_t>(row) * size + d));
        store(to + d, mul(total, set1(share)));
    }
    for (; d < size; d++) {
        float total = 0.0f;
        for (int row = 0; row < count; row++) total += x[static_cast<int64_t>(row) * size + d];
        to[d] = total * share;
    }
}

void unit_row(float *x, int size) {
    Floats squares = set1(0.0f);
    int d = 0;
    for (; d + WIDTH <= size; d += WIDTH) squares = fma(load(x + d), load(x + d), squares);
    float total = sum(squares);
    for (; d < size; d++) total += x[d] * x[d];
    const float length = __builtin_sqrtf(total), divisor = length < 1e-12f ? 1e-12f : length;
    for (d = 0; d + WIDTH <= size; d += WIDTH) store(x + d, div(load(x + d), set1(divisor)));
    for (; d < size; d++) x[d] /= divisor;
}

} } }  // namespace

namespace headway {

extern const EncoderKernels HEADWAY_NAME(encoder_, HEADWAY_LEVEL);
const EncoderKernels HEADWAY_NAME(encoder_, HEADWAY_LEVEL) = {
    HEADWAY_LEVEL::whole_floats,
    HEADWAY_LEVEL::attend_whole,
    HEADWAY_LEVEL::norm_row,
    HEADWAY_LEVEL::mean_rows,
    HEADWAY_LEVEL::unit_row,
};

} // namespace headway
