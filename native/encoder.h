/* What an encoder needs besides products: compiled once per level, see level.h. */
#ifndef HEADWAY_ENCODER_H
#define HEADWAY_ENCODER_H

#include <stdint.h>

namespace headway {

/* Some positions of one input, of one head, that attend to all of that input. */
struct Whole {
    const float *qkv;   /* of the input's first position: its query of this head */
    int64_t stride;     /* floats from one position to the next */
    int64_t keys, values; /* floats from a query to its key, and to its value */
    int length, first, count, dim; /* dim: a multiple of 16 */
    float scale;
    float *out; /* of position `first` */
    int64_t out_stride;
    float *scratch; /* whole_floats */
};

/* A row's layer norm: (x - mean) / sqrt(variance + eps) * weight + bias, of x, or of x + more + most. */
struct NormRow {
    const float *x, *more, *most; /* [size]; `more` and `most` may be NULL */
    const float *weight, *bias;   /* bias may be NULL */
    const float *scale;           /* what `kept` is multiplied by besides; NULL: nothing */
    float eps;
    int size;
    float *normed; /* [size], may be x */
    float *kept;   /* [size], may be x; NULL: nothing is kept */
};

struct EncoderKernels {
    int64_t (*whole_floats)(int length, int dim);
    void (*attend)(const Whole &whole);
    void (*norm)(const NormRow &row);
    /* to [size] = the mean of x [count, size]. */
    void (*mean)(const float *x, int count, int size, float *to);
    /* x [size] is divided by its length, or by 1e-12 if that is more. */
    void (*unit)(float *x, int size);
};

extern const EncoderKernels encoder_generic;
#if defined(__x86_64__) || defined(_M_X64)
extern const EncoderKernels encoder_avx2, encoder_avx512;
#elif defined(__aarch64__)
extern const EncoderKernels encoder_neon;
#endif

} // namespace headway
#endif
