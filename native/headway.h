/* The C interface of Headway's native library: what `headway.compute.native` calls through ctypes.
 *
 * No headers of torch or Python. Pointers are borrowed for the length of a call, unless said otherwise; nothing throws;
 * no object may be used by two threads at once. Numbers of levels are bits, so that a set of them is an int.
 */
#ifndef HEADWAY_H
#define HEADWAY_H

#include <stdint.h>

#if defined(_WIN32)
#define HEADWAY_API __declspec(dllexport)
#else
#define HEADWAY_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised whenever a signature, a struct or the meaning of either changes: the caller refuses any other. */
#define HEADWAY_ABI 10

/* What code is compiled for. `generic` runs everywhere. */
enum { HEADWAY_GENERIC = 1, HEADWAY_NEON = 2, HEADWAY_AVX2 = 4, HEADWAY_AVX512 = 8, HEADWAY_AVX512BF16 = 16 };

/* Number formats. HEADWAY_INT8 is for state alone: whole numbers, and behind those of a head one scale for them. */
enum { HEADWAY_FP32 = 0, HEADWAY_BF16 = 1, HEADWAY_INT8 = 2 };

HEADWAY_API int32_t headway_abi(void);

/* The levels that this library holds and this machine can run. */
HEADWAY_API int32_t headway_levels(void);

/* Sizes in bytes of headway_attention_shape and headway_span, for a caller to compare with its own. */
HEADWAY_API int32_t headway_shape_bytes(void);
HEADWAY_API int32_t headway_span_bytes(void);

/* -- worker pool ---------------------------------------------------------------------------------------------------- */

typedef struct headway_pool headway_pool;

/* `threads` counts the caller; the others start at the first call that has work for them, and sleep when there is none.
 * After work they spin for `spin_us` before they sleep. NULL if there is no memory. */
HEADWAY_API headway_pool *headway_pool_open(int32_t threads, int32_t spin_us);

/* Ends the threads. Nothing else may use the pool any more. */
HEADWAY_API void headway_pool_close(headway_pool *pool);

/* -- attention ------------------------------------------------------------------------------------------------------ */

typedef struct headway_attention headway_attention;

/* A model's attention and where its state lies.
 *
 * state         [blocks, layers, 2 * kv_heads, block_tokens, head_dim]: of each layer keys of all heads, then values;
 *               borrowed until headway_attention_close. In int8 a head of a slot takes head_dim + 2 bytes: numbers
 *               from -127 to 127, the nearest multiples of a scale, then the scale, a bf16: the head's largest
 *               magnitude / 127, rounded up; NaN where a number is not finite. A step reads its own positions, too, as
 *               they are held
 * slots         blocks * block_tokens
 * cosines, sines   [rope_positions, head_dim], the sign of the first half's sine folded in; borrowed likewise.
 *               A head x turns into x * cosine + roll(x, head_dim / 2) * sine. NULL: heads come turned
 * head_norms    [layers][heads + kv_heads, head_dim]: queries and keys are normalised (RMS) per head before they are
 *               turned; borrowed likewise. NULL: they are not
 * scale         what queries are multiplied by at last
 */
typedef struct {
    int32_t layers, heads, kv_heads, head_dim, block_tokens, state_format;
    int64_t slots;
    void *state;
    const float *cosines, *sines;
    int64_t rope_positions;
    const float *const *head_norms;
    float norm_eps, scale;
} headway_attention_shape;

/* Consecutive positions of one sequence: `count` from `start`. Its block table is `blocks` from the step's array. */
typedef struct {
    int32_t start, count;
    int64_t blocks;
} headway_span;

/* NULL if there is no memory, or the level cannot run here. `pool` is borrowed until the close. */
HEADWAY_API headway_attention *headway_attention_open(const headway_attention_shape *shape, int32_t level,
                                                      headway_pool *pool);
HEADWAY_API void headway_attention_close(headway_attention *attention);

/* The step's spans, whose positions are the step's rows in this order, and their block tables; both are copied.
 * Returns 0; -1 if there is no memory; -2 if a span's positions lack a block, or a block or position does not exist. */
HEADWAY_API int32_t headway_attention_step(headway_attention *attention, const headway_span *spans, int32_t span_count,
                                           const int32_t *blocks, int64_t block_count);

/* Writes the state of the step's positions in `layer`, then attends.
 *
 * qkv   [rows, heads + 2 * kv_heads, head_dim] in `format`; not changed
 * out   [rows, heads * head_dim], fp32; rows of the step's spans only
 *
 * A row's result depends on its own numbers, the state of the positions that it sees, and their number; not on the rest
 * of the step, on threads, or on where its span began. */
HEADWAY_API void headway_attention_layer(headway_attention *attention, int32_t layer, const void *qkv, int32_t format,
                                         float *out);

/* -- products of rounded weights and inputs ------------------------------------------------------------------------- */

/* y = x W^T + b, where each row of W, and each row of x as it comes, are rounded to whole multiples of a scale of their own:
 * of W from -127 to 127, of x from -32,639 to 32,639. Nearly all of a row of x is within 127; for what is not, at most one
 * step of four inputs in sixteen, a second digit is held beside the first (as the outliers of LLM.int8(), Dettmers et al.
 * 2022, are multiplied apart). Sums are exact: a row of y depends on its own row of x alone. */

/* What adds up products of 8-bit numbers. */
enum {
    HEADWAY_DOTS_GENERIC = 1,
    HEADWAY_DOTS_NEON = 2,
    HEADWAY_DOTS_AVX2 = 4,
    HEADWAY_DOTS_DOTPROD = 8,
    HEADWAY_DOTS_AVXVNNI = 16,
    HEADWAY_DOTS_AVX512VNNI = 32
};

/* What becomes of y: it is written, or x * (1 + erf(x / sqrt(2))) / 2 of it, or it is added to what is there. */
enum { HEADWAY_PLAIN = 0, HEADWAY_GELU = 1, HEADWAY_ADDED = 2 };

/* Those that this library holds and this machine can run. */
HEADWAY_API int32_t headway_dots(void);

typedef struct headway_weights headway_weights;

/* For a weight [outputs, inputs]. With `gated`, the first half of the outputs are gates: silu(gate) * up leaves, [rows, outputs / 2]. `bits` is 8, or 4: then
 * each 32 inputs of an output have a scale and a least value in half precision, as in GGUF's Q4_1, whose weights come
 * out as they were; sums within these are exact, and they are added up in order. NULL if there is no memory, or there are
 * more than 131,072 inputs. */
HEADWAY_API headway_weights *headway_weights_open(int64_t outputs, int64_t inputs, int32_t gated, int32_t bits);
HEADWAY_API void headway_weights_free(headway_weights *weights);
/* What they take, packed. */
HEADWAY_API int64_t headway_weights_bytes(const headway_weights *weights);
/* Rounds and packs `weight`, fp32 or bf16, with `bias` [outputs] or NULL; both are copied, into `memory`: so many bytes, zero,
 * aligned to 64, which must outlive the weights' use. */
HEADWAY_API void headway_weights_pack(headway_weights *weights, void *memory, const void *weight, int32_t format,
                                      const float *bias);

/* Multiplies, any number of weights; they may be shared by several of these. */
typedef struct headway_products headway_products;

/* NULL if there is no memory, or `dots` is none that can run here. `pool` is borrowed until the close. */
HEADWAY_API headway_products *headway_products_open(int32_t dots, headway_pool *pool);
HEADWAY_API void headway_products_close(headway_products *products);

/* x     [rows, inputs] in `format`; `norm` [inputs] or NULL: each row is first normalised (RMS) with these weights
 * out   [rows, outputs], or half of these if the weights are gated, fp32
 *
 * A row that holds a number that is not finite becomes NaN. Returns 0; -1 if there is no memory. */
HEADWAY_API int32_t headway_products_multiply(headway_products *products, const headway_weights *weights, const void *x,
                                              int32_t format, const float *norm, float norm_eps, int64_t rows,
                                              int32_t ending, float *out);

/* -- encoders ------------------------------------------------------------------------------------------------------- */

/* BERT (Devlin et al. 2019) and what shares its layers: norms after each block, GELU, no rotation, each position sees all
 * of its input. Products are of int8 weights and inputs. Everything that these structs point to is borrowed until the
 * close.
 *
 * qkv                outputs: queries, keys, values, heads within them
 * ..._norm, ..._bias [hidden]: layer norms; a bias may be NULL
 * ..._scale          [hidden]: what leaves the norm before is multiplied by where it goes around a block (its weights
 *                    were divided by that); NULL: nothing */
typedef struct {
    const headway_weights *qkv, *o, *up, *down;
    const float *attention_norm, *attention_norm_bias, *attention_scale;
    const float *mlp_norm, *mlp_norm_bias, *mlp_scale;
} headway_encoder_layer;

/* embedding   [vocab, hidden]
 * places      [positions, hidden]: what is added by position; NULL: nothing
 * second      [hidden]: what is added besides in the second text of a pair; NULL: nothing
 * scale       what scores are multiplied by */
typedef struct {
    const headway_encoder_layer *layer;
    int32_t layers, hidden, heads;
    float eps, scale;
    int64_t vocab, positions;
    const float *embedding, *places, *second;
    const float *embedding_norm, *embedding_norm_bias, *embedding_scale;
} headway_encoder_shape;

HEADWAY_API int32_t headway_encoder_bytes(void);

typedef struct headway_encoder headway_encoder;

/* NULL if there is no memory, or level or dots cannot run here. hidden / heads is a multiple of 16. */
HEADWAY_API headway_encoder *headway_encoder_open(const headway_encoder_shape *shape, int32_t level, int32_t dots,
                                                  headway_pool *pool);
HEADWAY_API void headway_encoder_close(headway_encoder *encoder);

/* tokens    of all inputs, one after another
 * seconds   [inputs]: where the second text of each begins, 0 for none; or NULL
 * result    HEADWAY_STATES: the last hidden states; HEADWAY_FIRSTS: those of the inputs' first positions; HEADWAY_MEANS: their
 *           means over each input's positions
 * unit      whether firsts or means are divided by their length (or 1e-12, if that is more)
 * out       fp32: [sum of lengths, hidden] for states, else [inputs, hidden]
 *
 * A row's bits depend on its own input alone. Returns 0; -1 if there is no memory; -2 if a length or a token is none that
 * the shape has. */
enum { HEADWAY_STATES, HEADWAY_FIRSTS, HEADWAY_MEANS };

HEADWAY_API int32_t headway_encoder_run(headway_encoder *encoder, const int32_t *tokens, const int32_t *lengths,
                                        const int32_t *seconds, int32_t inputs, int32_t result, int32_t unit, float *out);

/* The parts of an encoder's run that `headway_encoder_clock` tells apart. */
enum {
    HEADWAY_EMBED, /* look-up, norm and rounding */
    HEADWAY_QKV,
    HEADWAY_ATTEND, /* and rounding */
    HEADWAY_OUT,
    HEADWAY_UP, /* with GELU */
    HEADWAY_ROUND_WIDE,
    HEADWAY_DOWN,
    HEADWAY_NORMS, /* and rounding, and means */
    HEADWAY_WAIT,
    HEADWAY_ENCODER_PARTS,
};

/* ns  [HEADWAY_ENCODER_PARTS]: each run adds the nanoseconds that it takes for each part, of all threads together. NULL,
 *     as at first: it looks at no clock. */
HEADWAY_API void headway_encoder_clock(headway_encoder *encoder, int64_t *ns);

/* -- a decoder's layers ---------------------------------------------------------------------------------------------- */

/* One layer; everything is borrowed until headway_decoder_close. Norms are RMS, [hidden]; `gate_up` is gated. Other layers
 * have the same sizes. */
typedef struct {
    const float *attention_norm, *mlp_norm;
    const headway_weights *qkv, *o, *gate_up, *down;
} headway_layer;

HEADWAY_API int32_t headway_layer_bytes(void);

/* embedding   [vocab, hidden] in `format`
 * norm        [hidden]: the last one, before `head`, whose outputs are the vocabulary
 *
 * All of it is borrowed until headway_decoder_close. */
typedef struct {
    const headway_layer *layer;
    int32_t layers, format;
    int64_t vocab;
    const void *embedding;
    const float *norm;
    const headway_weights *head;
    float norm_eps;
} headway_decoder_shape;

HEADWAY_API int32_t headway_decoder_bytes(void);

typedef struct headway_decoder headway_decoder;

/* `attention` (borrowed until the close) has as many layers, and its threads are shared. NULL if there is no memory, or
 * `dots` is none that can run here. */
HEADWAY_API headway_decoder *headway_decoder_open(const headway_decoder_shape *shape, int32_t dots,
                                                  headway_attention *attention);
HEADWAY_API void headway_decoder_close(headway_decoder *decoder);

/* Evaluates the positions of the step that headway_attention_step was told of last, and writes their state in all layers.
 *
 * tokens   [rows]
 * asked    [asked_rows]: rows whose last hidden states are wanted; of the first `logit_rows` of them the logits too
 * hidden   [asked_rows, hidden], fp32
 * logits   [logit_rows, vocab], fp32
 * largest  [logit_rows]: the first place of each row's largest logit
 * spoiled  [rows + logit_rows]: 1 for each row of hidden states, and for each of logits, that holds NaN or infinity, else 0
 *
 * Returns how many are spoiled; -1 if there is no memory; -2 if the step has another number of positions, or a token or a
 * row does not exist. */
HEADWAY_API int32_t headway_decoder_step(headway_decoder *decoder, const int32_t *tokens, int64_t rows,
                                         const int32_t *asked, int64_t asked_rows, int64_t logit_rows, float *hidden,
                                         float *logits, int32_t *largest, uint8_t *spoiled);

#ifdef __cplusplus
}
#endif
#endif
