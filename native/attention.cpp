/* Attention of a step: its rows are cut into tiles once, and every layer's call shares them among the pool's threads. */
#include "attention.h"

#include <algorithm>
#include <new>

#include "levels.h"

using namespace headway;

namespace {

/* A piece of work is at most this share of a thread's part, so that threads end together. */
const int PIECES_PER_THREAD = 4;
/* Below so much work, in multiplications of a row with a key, waking another thread costs more than it gives. */
const int64_t LEAST_SHARED = 4096;
/* What turning a key costs, in such multiplications. */
const int KEY_COST = 4;

} // namespace

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
    const int group = shape.heads / shape.kv_heads, most = std::max(1, kernels->tile_rows(shape.state_format) / group);
    const int64_t items = head_items(shape.state_format, shape.head_dim);
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
            enters.push_back({position, table[position / shape.block_tokens] * block_items() +
                                            position % shape.block_tokens * items});
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
    deal();
    countdowns.reset(new Counter[countdown_from.size()]);
    for (size_t i = 0; i < countdown_from.size(); i++) countdowns[i].value = countdown_from[i];
    partials.get(partial_floats);
    queries.get(static_cast<int64_t>(enters.size()) * shape.heads * shape.head_dim);
    const int64_t heads_room = 2 * (static_cast<int64_t>(shape.head_dim) + kernels->width);
    scratch_floats = std::max(kernels->scratch_floats(largest * group, shape.head_dim), heads_room);
    scratch_floats = (scratch_floats + 63) / 64 * 64;
    scratch.get(scratch_floats * pool->threads());
}

void headway_attention::deal() {
    dealt.clear();
    const size_t threads = static_cast<size_t>(pool->threads());
    for (size_t thread = 0; thread < threads; thread++)
        for (size_t i = thread; i < pieces.size(); i += threads) dealt.push_back(pieces[i]);
    pieces.swap(dealt);
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

void headway_attention::enter(const LayerAttention &call, int first, int last, float *room) {
    const int64_t row_bytes =
        static_cast<int64_t>(shape.heads + 2 * shape.kv_heads) * shape.head_dim * item_bytes(call.format);
    Heads mine = heads;
    mine.format = call.format;
    mine.norms = shape.head_norms ? shape.head_norms[call.layer] : nullptr;
    for (int row = first; row < last; row++) {
        const Enter &enter = enters[static_cast<size_t>(row)];
        const int64_t turn = enter.position * shape.head_dim;
        kernels->enter(mine, call.qkv + row * row_bytes, shape.cosines ? shape.cosines + turn : nullptr,
                       shape.cosines ? shape.sines + turn : nullptr,
                       queries.get(0) + static_cast<int64_t>(row) * shape.heads * shape.head_dim,
                       plane(call.layer, 0) + enter.at * item_bytes(shape.state_format), room);
    }
}

void headway_attention::attend(const LayerAttention &call, const Piece &piece, float *room) {
    const Rows &rows = tiles[static_cast<size_t>(piece.rows)];
    const int group = shape.heads / shape.kv_heads;
    const int64_t stride = static_cast<int64_t>(shape.heads) * shape.head_dim;
    const int64_t at = rows.row * stride + static_cast<int64_t>(piece.kv_head) * group * shape.head_dim;
    Tile tile;
    tile.queries = queries.get(0) + at;
    tile.query_stride = stride;
    tile.out = call.out + at;
    tile.keys = plane(call.layer, piece.kv_head);
    tile.values = plane(call.layer, shape.kv_heads + piece.kv_head);
    tile.block_items = block_items();
    tile.blocks = blocks.data() + rows.blocks;
    tile.start = rows.start;
    tile.positions = rows.positions;
    tile.group = group;
    tile.dim = shape.head_dim;
    tile.block_tokens = shape.block_tokens;
    tile.state_format = shape.state_format;
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
    made->stages.reset(new Stages(pool->pool.threads()));
    made->heads = {shape->heads,        shape->kv_heads, shape->head_dim, shape->scale, shape->norm_eps, nullptr, 0,
                   shape->state_format, shape->block_tokens * head_items(shape->state_format, shape->head_dim)};
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
    attention->alone = {layer, format, static_cast<const char *>(qkv), out};
    attention->stages->reset();
    attention->pool->run(
        [](void *context, int worker) {
            headway_attention *mine = static_cast<headway_attention *>(context);
            Walk walk(*mine->stages, worker);
            mine->run(walk, mine->alone, Idle());
        },
        attention, attention->cost < LEAST_SHARED);
}
