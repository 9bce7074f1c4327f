/* Attention of a step: its rows are cut into tiles once, and every layer's call shares them among the pool's threads. */
#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <vector>

#include "headway.h"
#include "kernels.h"
#include "levels.h"
#include "pool.h"

using namespace headway;

namespace {

/* Rows of a tile, where a position's heads are not more by themselves: enough that turning the keys costs little. */
const int TILE_ROWS = 48;
/* Rows that enter at a time. */
const int ENTER_ROWS = 8;
/* A piece of work is at most this share of a thread's part, so that threads end together. */
const int PIECES_PER_THREAD = 4;
/* Below so much work, in multiplications of a row with a key, waking another thread costs more than it gives. */
const int64_t LEAST_SHARED = 4096;
/* What turning a key costs, in such multiplications. */
const int KEY_COST = 4;

/* Cache lines are kept apart. */
struct alignas(64) Counter {
    std::atomic<int> value{0};
};

struct Memory {
    std::unique_ptr<float[]> floats;
    int64_t size = 0;

    /* At least so many floats; what was there is lost. */
    float *get(int64_t count) {
        if (count > size) {
            floats.reset();
            size = 0;
            floats.reset(new float[static_cast<size_t>(count) + 16]);
            size = count;
        }
        return reinterpret_cast<float *>((reinterpret_cast<uintptr_t>(floats.get()) + 63) / 64 * 64);
    }
};

/* Rows of one sequence; every key head has them as a tile. `partials`: where its partitions' results go, in floats for
 * the first key head, if the sum is split; -1 if not. */
struct Rows {
    int64_t start, blocks, partials;
    int row, positions, partitions;
};

struct Piece {
    int rows, kv_head, from, to;
    int64_t cost;
    int split; /* which countdown says that all of a tile's pieces are done; -1: there is one piece */
};

struct Enter {
    int64_t position, slot;
};

} // namespace

struct headway_attention {
    headway_attention_shape shape;
    Heads heads;
    const Kernels *kernels;
    Pool *pool;

    std::vector<Enter> enters;
    std::vector<Rows> tiles;
    std::vector<Piece> pieces;
    std::vector<int32_t> blocks;
    std::unique_ptr<Counter[]> countdowns;
    std::vector<int> countdown_from;
    Memory queries, partials, scratch;
    int64_t scratch_floats = 0, cost = 0;

    /* Of the layer that runs. */
    int layer = 0, format = HEADWAY_FP32;
    const char *qkv = nullptr;
    float *out = nullptr;
    Counter next_enter, entered, next_piece;

    char *plane(int head) const {
        const int64_t bytes = shape.state_format == HEADWAY_BF16 ? 2 : 4;
        return static_cast<char *>(shape.state) +
               (static_cast<int64_t>(layer) * 2 * shape.kv_heads + head) * heads.plane * bytes;
    }

    /* Whether every position has a block, and every block and rotation that is named exists. */
    bool sound(const headway_span *spans, int span_count, const int32_t *tables, int64_t table_count) const;
    void plan(const headway_span *spans, int span_count, const int32_t *tables, int64_t table_count);
    void cut(int tile, int kv_head, int64_t most);
    void run(int worker);
    void enter(int first, int last, float *room);
    void attend(const Piece &piece, float *room);
};

/* -- once per step */

bool headway_attention::sound(const headway_span *spans, int span_count, const int32_t *tables,
                              int64_t table_count) const {
    const int64_t all = shape.slots / shape.block_tokens;
    for (int64_t i = 0; i < table_count; i++)
        if (tables[i] < 0 || tables[i] >= all) return false;
    for (int i = 0; i < span_count; i++) {
        const int64_t end = spans[i].start + static_cast<int64_t>(spans[i].count);
        const int64_t need = (end + shape.block_tokens - 1) / shape.block_tokens;
        if (spans[i].start < 0 || spans[i].count < 1 || spans[i].blocks < 0) return false;
        if (spans[i].blocks + need > table_count || (shape.cosines && end > shape.rope_positions)) return false;
    }
    return true;
}

void headway_attention::plan(const headway_span *spans, int span_count, const int32_t *tables, int64_t table_count) {
    enters.clear();
    tiles.clear();
    pieces.clear();
    countdown_from.clear();
    blocks.assign(tables, tables + table_count);
    const int group = shape.heads / shape.kv_heads, most = std::max(1, TILE_ROWS / group);
    int largest = 1;
    cost = 0;
    for (int i = 0; i < span_count; i++) {
        const headway_span &span = spans[i];
        for (int first = 0; first < span.count; first += most) {
            const int positions = std::min(most, span.count - first);
            const int64_t start = span.start + static_cast<int64_t>(first), end = start + positions;
            tiles.push_back({start, span.blocks, -1, static_cast<int>(enters.size()) + first, positions,
                             static_cast<int>((end + PARTITION - 1) / PARTITION)});
            largest = std::max(largest, positions);
            cost += end * (positions * group + KEY_COST) * shape.kv_heads;
        }
        const int32_t *table = blocks.data() + span.blocks;
        for (int j = 0; j < span.count; j++) {
            const int64_t position = span.start + static_cast<int64_t>(j);
            enters.push_back({position, static_cast<int64_t>(table[position / shape.block_tokens]) * shape.block_tokens +
                                            position % shape.block_tokens});
        }
    }
    const int64_t most_cost = cost / (pool->threads() * PIECES_PER_THREAD) + 1;
    int64_t partial_floats = 0;
    for (size_t i = 0; i < tiles.size(); i++) {
        Rows &tile = tiles[i];
        const int rows = tile.positions * group;
        const int64_t tile_cost = (tile.start + tile.positions) * (rows + KEY_COST);
        if (pool->threads() > 1 && tile_cost > most_cost && tile.partitions > 1) {
            tile.partials = partial_floats;
            partial_floats += kernels->partial_floats(rows, shape.head_dim) * tile.partitions * shape.kv_heads;
        }
        for (int head = 0; head < shape.kv_heads; head++) cut(static_cast<int>(i), head, most_cost);
    }
    /* The largest first: what is left at the end is small. */
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece &a, const Piece &b) { return a.cost > b.cost; });
    countdowns.reset(new Counter[countdown_from.size()]);
    for (size_t i = 0; i < countdown_from.size(); i++) countdowns[i].value = countdown_from[i];
    partials.get(partial_floats);
    queries.get(static_cast<int64_t>(enters.size()) * shape.heads * shape.head_dim);
    const int64_t heads_room = 2 * (static_cast<int64_t>(shape.head_dim) + kernels->width);
    scratch_floats = std::max(kernels->scratch_floats(largest * group, shape.head_dim), heads_room);
    scratch_floats = (scratch_floats + 63) / 64 * 64;
    scratch.get(scratch_floats * pool->threads());
}

void headway_attention::cut(int index, int kv_head, int64_t most) {
    const Rows &tile = tiles[static_cast<size_t>(index)];
    const int64_t per_key = tile.positions * (shape.heads / shape.kv_heads) + KEY_COST;
    if (tile.partials < 0) {
        pieces.push_back({index, kv_head, 0, tile.partitions, (tile.start + tile.positions) * per_key, -1});
        return;
    }
    const int size = static_cast<int>(std::max<int64_t>(1, most / (PARTITION * per_key)));
    const int split = static_cast<int>(countdown_from.size());
    int count = 0;
    for (int from = 0; from < tile.partitions; from += size, count++) {
        const int to = std::min(from + size, tile.partitions);
        pieces.push_back({index, kv_head, from, to, (to - from) * PARTITION * per_key, split});
    }
    countdown_from.push_back(count);
}

/* -- once per layer */

void headway_attention::run(int worker) {
    float *room = scratch.get(0) + scratch_floats * worker;
    const int rows = static_cast<int>(enters.size());
    for (int first; (first = next_enter.value.fetch_add(ENTER_ROWS)) < rows;) {
        const int last = std::min(first + ENTER_ROWS, rows);
        enter(first, last, room);
        entered.value.fetch_add(last - first);
    }
    /* Whoever has claimed rows is running; keys and values must be there before anyone attends. */
    for (int spins = 0; entered.value.load() < rows; spins++) {
        relax();
        if (spins > 2000) std::this_thread::yield();
    }
    const int count = static_cast<int>(pieces.size());
    for (int next; (next = next_piece.value.fetch_add(1)) < count;) attend(pieces[static_cast<size_t>(next)], room);
}

void headway_attention::enter(int first, int last, float *room) {
    const int64_t row_bytes = static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * shape.head_dim *
                              (format == HEADWAY_BF16 ? 2 : 4);
    const int64_t state_bytes = shape.state_format == HEADWAY_BF16 ? 2 : 4;
    Heads mine = heads;
    mine.bf16_in = format == HEADWAY_BF16;
    mine.norms = shape.head_norms ? shape.head_norms[layer] : nullptr;
    for (int row = first; row < last; row++) {
        const Enter &at = enters[static_cast<size_t>(row)];
        const int64_t turn = at.position * shape.head_dim;
        kernels->enter(mine, qkv + row * row_bytes, shape.cosines ? shape.cosines + turn : nullptr,
                       shape.cosines ? shape.sines + turn : nullptr,
                       queries.get(0) + static_cast<int64_t>(row) * shape.heads * shape.head_dim,
                       plane(0) + at.slot * shape.head_dim * state_bytes, room);
    }
}

void headway_attention::attend(const Piece &piece, float *room) {
    const Rows &rows = tiles[static_cast<size_t>(piece.rows)];
    const int group = shape.heads / shape.kv_heads;
    const int64_t stride = static_cast<int64_t>(shape.heads) * shape.head_dim;
    const int64_t at = rows.row * stride + static_cast<int64_t>(piece.kv_head) * group * shape.head_dim;
    Tile tile;
    tile.queries = queries.get(0) + at;
    tile.query_stride = stride;
    tile.out = out + at;
    tile.keys = plane(piece.kv_head);
    tile.values = plane(shape.kv_heads + piece.kv_head);
    tile.blocks = blocks.data() + rows.blocks;
    tile.start = rows.start;
    tile.positions = rows.positions;
    tile.group = group;
    tile.dim = shape.head_dim;
    tile.block_tokens = shape.block_tokens;
    tile.bf16 = shape.state_format == HEADWAY_BF16;
    tile.from = piece.from;
    tile.to = piece.to;
    tile.scratch = room;
    tile.partials = nullptr;
    if (piece.split >= 0)
        tile.partials = partials.get(0) + rows.partials +
                        kernels->partial_floats(rows.positions * group, shape.head_dim) * rows.partitions * piece.kv_head;
    kernels->attend(tile);
    if (piece.split < 0) return;
    std::atomic<int> &left = countdowns[static_cast<size_t>(piece.split)].value;
    if (left.fetch_sub(1) == 1) {
        left.store(countdown_from[static_cast<size_t>(piece.split)]);
        tile.to = rows.partitions;
        kernels->finish(tile);
    }
}

/* -- the C interface */

int32_t headway_shape_bytes(void) { return sizeof(headway_attention_shape); }

int32_t headway_span_bytes(void) { return sizeof(headway_span); }

headway_attention *headway_attention_open(const headway_attention_shape *shape, int32_t level, headway_pool *pool) {
    const Kernels *kernels = kernels_of(level);
    if (!kernels) return nullptr;
    headway_attention *made = new (std::nothrow) headway_attention;
    if (!made) return nullptr;
    made->shape = *shape;
    made->kernels = kernels;
    made->pool = &pool->pool;
    made->heads = {shape->heads,        shape->kv_heads, shape->head_dim, shape->scale, shape->norm_eps, nullptr, 0,
                   shape->state_format == HEADWAY_BF16, shape->slots * shape->head_dim};
    return made;
}

void headway_attention_close(headway_attention *attention) { delete attention; }

int32_t headway_attention_step(headway_attention *attention, const headway_span *spans, int32_t span_count,
                               const int32_t *blocks, int64_t block_count) {
    if (!attention->sound(spans, span_count, blocks, block_count)) return -2;
    try {
        attention->plan(spans, span_count, blocks, block_count);
        return 0;
    } catch (const std::bad_alloc &) {
        return -1;
    }
}

void headway_attention_layer(headway_attention *attention, int32_t layer, const void *qkv, int32_t format, float *out) {
    attention->layer = layer;
    attention->qkv = static_cast<const char *>(qkv);
    attention->format = format;
    attention->out = out;
    attention->next_enter.value = 0;
    attention->entered.value = 0;
    attention->next_piece.value = 0;
    attention->pool->run(
        [](void *context, int worker) { static_cast<headway_attention *>(context)->run(worker); }, attention,
        attention->cost < LEAST_SHARED);
}
